//! The node itself, by /proc. What a kernel does not say is absent.

use std::path::PathBuf;

use procfs::net::InterfaceDeviceStatus;
use procfs::{
    CpuPressure, CpuTime, DiskStats, FromRead, FromReadSI, IoPressure, KernelStats, LoadAverage, Meminfo,
    MemoryPressure,
};
use slurm_serve_proto::v1;

/// /proc/diskstats counts in these, whatever a disk's own are.
const SECTOR: u64 = 512;

/// Reads it, and remembers what rates are made of.
#[derive(Debug)]
pub struct Host {
    proc: PathBuf,
    sys: PathBuf,
    before: Option<Ticks>,
}

/// Of all CPUs since boot.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Default for Host {
    fn default() -> Self {
        Self::at("/proc".into(), "/sys".into())
    }
}

impl Host {
    /// By these in place of /proc and /sys.
    pub fn at(proc: PathBuf, sys: PathBuf) -> Self {
        Self {
            proc,
            sys,
            before: None,
        }
    }

    /// What it says now.
    pub fn read(&mut self) -> v1::Host {
        let mut host = v1::Host::default();
        let stat =
            <KernelStats as FromReadSI>::from_file(self.proc.join("stat"), procfs::current_system_info());
        if let Ok(stat) = stat {
            host.cpus = u32::try_from(stat.cpu_time.len()).unwrap_or(u32::MAX);
            host.cpu_utilization_ratio = self.utilization(ticks(&stat.total));
        }
        host.load1 = self
            .file::<LoadAverage>("loadavg")
            .map(|load| f64::from(load.one));
        if let Some(memory) = self.file::<Meminfo>("meminfo") {
            host.memory_total_bytes = Some(memory.mem_total);
            host.memory_available_bytes = memory.mem_available;
            host.swap_used_bytes = memory.swap_total.checked_sub(memory.swap_free);
        }
        let waits = |some: f32| Some(f64::from(some) / 100.0);
        host.cpu_pressure_ratio = self
            .file::<CpuPressure>("pressure/cpu")
            .and_then(|it| waits(it.some.avg10));
        host.memory_pressure_ratio = self
            .file::<MemoryPressure>("pressure/memory")
            .and_then(|it| waits(it.some.avg10));
        host.io_pressure_ratio = self
            .file::<IoPressure>("pressure/io")
            .and_then(|it| waits(it.some.avg10));
        if let Some(network) = self.file::<InterfaceDeviceStatus>("1/net/dev") {
            let real = || {
                network
                    .0
                    .values()
                    .filter(|device| self.is_hardware("net", &device.name))
            };
            host.network_received_bytes = Some(real().map(|device| device.recv_bytes).sum());
            host.network_sent_bytes = Some(real().map(|device| device.sent_bytes).sum());
        }
        if let Some(disks) = self.file::<DiskStats>("diskstats") {
            let real = || {
                disks
                    .0
                    .iter()
                    .filter(|disk| self.is_hardware("block", &disk.name))
            };
            let bytes = |sectors: u64| sectors.saturating_mul(SECTOR);
            host.disk_read_bytes = Some(real().map(|disk| bytes(disk.sectors_read)).sum());
            host.disk_written_bytes = Some(real().map(|disk| bytes(disk.sectors_written)).sum());
        }
        host
    }

    fn file<T: FromRead>(&self, name: &str) -> Option<T> {
        T::from_file(self.proc.join(name)).ok()
    }

    /// As a ratio since the look before. Clocks of idle CPUs have been seen to go back a little.
    fn utilization(&mut self, now: Ticks) -> Option<f64> {
        let before = self.before.replace(now)?;
        let all = now.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let idle = now.idle.saturating_sub(before.idle).min(all);
        Some((all - idle) as f64 / all as f64)
    }

    /// Devices with something behind them: not a bridge, a loop device, or a partition, which would count twice.
    fn is_hardware(&self, class: &str, name: &str) -> bool {
        !name.contains('/')
            && self
                .sys
                .join("class")
                .join(class)
                .join(name)
                .join("device")
                .exists()
    }
}

/// Guests' time is in users' already.
fn ticks(cpu: &CpuTime) -> Ticks {
    let idle = cpu.idle + cpu.iowait.unwrap_or(0);
    let busy = [
        cpu.irq.unwrap_or(0),
        cpu.softirq.unwrap_or(0),
        cpu.steal.unwrap_or(0),
    ];
    Ticks {
        idle,
        all: idle + cpu.user + cpu.nice + cpu.system + busy.iter().sum::<u64>(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn stat(root: &Path, user: u64, idle: u64) {
        let text = format!(
            "cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 {user} 0 0 {idle} 0 0 0 0 0 0\n\
                            ctxt 1\nbtime 1\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n"
        );
        write(root, "proc/stat", &text);
    }

    #[test]
    fn a_node_is_told_in_base_units() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        stat(root, 100, 900);
        write(root, "proc/loadavg", "1.50 1.00 0.50 2/300 4000\n");
        write(
            root,
            "proc/pressure/io",
            "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\n\
                                         full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
        );
        write(
            root,
            "proc/1/net/dev",
            "Inter-| Receive | Transmit\n face |bytes packets errs\n    \
            lo: 7 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0\n  ib0: 100 0 0 0 0 0 0 0 50 0 0 0 0 0 0 0\n",
        );
        write(
            root,
            "proc/diskstats",
            " 259 0 nvme0n1 1 0 10 0 1 0 20 0 0 0 0\n 259 1 nvme0n1p1 1 0 10 0 1 0 20 0 0 0 0\n",
        );
        write(root, "sys/class/net/ib0/device/vendor", "");
        write(root, "sys/class/block/nvme0n1/device/model", "");
        let mut host = Host::at(root.join("proc"), root.join("sys"));
        let first = host.read();
        assert_eq!(
            (first.cpus, first.cpu_utilization_ratio),
            (1, None),
            "a rate wants two looks"
        );
        assert_eq!((first.load1, first.io_pressure_ratio), (Some(1.5), Some(0.125)));
        assert_eq!(
            (first.network_received_bytes, first.network_sent_bytes),
            (Some(100), Some(50))
        );
        assert_eq!(
            (first.disk_read_bytes, first.disk_written_bytes),
            (Some(5120), Some(10240))
        );
        stat(root, 130, 910);
        assert_eq!(host.read().cpu_utilization_ratio, Some(0.75));
        // A clock that goes back gives no rate.
        stat(root, 120, 900);
        assert_eq!(host.read().cpu_utilization_ratio, None);
    }

    #[test]
    fn what_is_missing_or_odd_is_absent() {
        let root = tempfile::tempdir().unwrap();
        for file in ["stat", "meminfo", "diskstats", "1/net/dev", "loadavg"] {
            write(root.path(), &format!("proc/{file}"), "what\u{0}ever: 1 2 x\n");
        }
        let mut odd = Host::at(root.path().join("proc"), root.path().join("sys"));
        let read = odd.read();
        assert_eq!(
            (read.load1, read.memory_total_bytes, read.cpu_utilization_ratio),
            (None, None, None)
        );
        let nothing = Host::at("/nonexistent".into(), "/nonexistent".into()).read();
        assert_eq!(nothing, v1::Host::default());
    }

    #[test]
    fn this_node_is_read() {
        let host = Host::default().read();
        assert!(host.cpus > 0 && host.memory_total_bytes > Some(1 << 20) && host.load1.is_some());
    }
}
