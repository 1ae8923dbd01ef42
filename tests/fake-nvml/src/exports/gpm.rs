//! Performance monitors.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlDevice_t, nvmlGpmMetric_t,
    nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};

use super::export;
use crate::call::{Answer, Call};
use crate::gpm::short_name;
use crate::handles::{DeviceKey, to_number, to_pointer};
use crate::out::Out;
use crate::samples::Taken;
use crate::state::state;
use crate::{ErrorCode, Gpm, Gpu};

export! {
    /// Whether the GPU has them.
    fn nvmlGpmQueryDeviceSupport(|call| device: nvmlDevice_t, support: Out<nvmlGpmSupport_t>) {
        let supported = call.device(device)?.gpu().gpm.is_some();
        support.edit(|support| {
            if support.version != NVML_GPM_SUPPORT_VERSION {
                return Err(ErrorCode::ARGUMENT_VERSION_MISMATCH);
            }
            support.isSupportedDevice = supported.into();
            Ok(())
        })?
    }

    /// Room for a sample.
    fn nvmlGpmSampleAlloc(|_call| sample: Out<nvmlGpmSample_t>) {
        let new = state().samples.alloc();
        sample.put(to_pointer(new))
    }

    /// Ends a sample.
    fn nvmlGpmSampleFree(|_call| sample: nvmlGpmSample_t) {
        state().samples.free(number(sample)?)
    }

    /// A sample of the whole GPU.
    fn nvmlGpmSampleGet(|call| device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        take(call, device, None, sample)
    }

    /// A sample of one GPU instance of a GPU.
    fn nvmlGpmMigSampleGet(|call| device: nvmlDevice_t, gpu_instance: c_uint, sample: nvmlGpmSample_t) {
        take(call, device, Some(gpu_instance), sample)
    }

    /// What happened between two samples; each metric by itself succeeds or fails.
    fn nvmlGpmMetricsGet(|call| request: Out<nvmlGpmMetricsGet_t>) {
        request.edit(|request| {
            if request.version != NVML_GPM_METRICS_GET_VERSION {
                return Err(ErrorCode::ARGUMENT_VERSION_MISMATCH);
            }
            let number_of_metrics = request.numMetrics as usize;
            let metrics = request.metrics.get_mut(..number_of_metrics).ok_or(ErrorCode::INVALID_ARGUMENT)?;
            let (first, second) = {
                let samples = &state().samples;
                (samples.get(number(request.sample1)?)?, samples.get(number(request.sample2)?)?)
            };
            if first.gpu != second.gpu || first.gi != second.gi || second.at < first.at {
                return Err(ErrorCode::INVALID_ARGUMENT);
            }
            let target = call.target(&DeviceKey { uuid: first.gpu.clone() })?;
            let gpm = monitors(target.gpu(), first.gi)?;
            for metric in metrics {
                fill(gpm, metric, first.at, second.at);
            }
            Ok(())
        })?
    }
}

fn take(call: &Call, device: nvmlDevice_t, gi: Option<u32>, sample: nvmlGpmSample_t) -> Answer {
    let target = call.whole_gpu(device)?;
    monitors(target.gpu(), gi)?;
    let taken = Taken {
        gpu: target.gpu().uuid.clone(),
        gi,
        at: target.now,
    };
    state().samples.take(number(sample)?, taken)
}

fn monitors(gpu: &Gpu, gi: Option<u32>) -> Answer<&Gpm> {
    let Some(gi) = gi else {
        return gpu.gpm.as_ref().ok_or(ErrorCode::NOT_SUPPORTED);
    };
    let mut instances = gpu.instances().iter();
    let instance = instances
        .find(|instance| instance.gi == gi)
        .ok_or(ErrorCode::INVALID_ARGUMENT)?;
    instance.gpm.as_ref().ok_or(ErrorCode::NOT_SUPPORTED)
}

fn fill(gpm: &Gpm, metric: &mut nvmlGpmMetric_t, start: f64, end: f64) {
    if let Some(name) = short_name(metric.metricId) {
        metric.metricInfo.shortName = name.as_ptr().cast_mut();
    }
    match gpm
        .metric(metric.metricId)
        .and_then(|value| value.mean(start, end))
    {
        Some(mean) => {
            metric.value = mean;
            metric.nvmlReturn = 0;
        }
        None => metric.nvmlReturn = ErrorCode::NOT_SUPPORTED.0,
    }
}

fn number(sample: nvmlGpmSample_t) -> Answer<usize> {
    to_number(sample).ok_or(ErrorCode::INVALID_ARGUMENT)
}
