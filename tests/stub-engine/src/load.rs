//! Loading: the stages, their log lines, and where a script ends it.

use std::time::Duration;

use crate::args::Options;
use crate::log::{self, Who};
use crate::script::{Ending, Script, Stage};

/// How long [`Script::load_until`] is waited for before the stub gives up.
const UNTIL_LIMIT: Duration = Duration::from_secs(600);

/// Goes through the stages. `Err` is how the process has to end instead.
pub async fn load(options: &Options, script: &Script) -> Result<(), Ending> {
    let model = &options.model;
    log::info(
        Who::Api,
        "api_server.py:1977",
        format_args!("vLLM API server version {}", crate::VERSION),
    );
    log::info(
        Who::Api,
        "model.py:1510",
        format_args!("Using max model len {}", options.max_model_len),
    );
    stage(options, script, Stage::Config, 10).await?;

    log::info(
        Who::Core,
        "gpu_model_runner.py:3259",
        format_args!("Starting to load model {model}..."),
    );
    for shard in 0..4 {
        let percent = shard * 25;
        log::bar(format_args!(
            "Loading safetensors checkpoint shards: {percent:3}% Completed | {shard}/4"
        ));
        tokio::time::sleep(script.load / 10).await;
    }
    log::bar("Loading safetensors checkpoint shards: 100% Completed | 4/4\n");
    stage(options, script, Stage::Weights, 0).await?;
    let seconds = script.load.as_secs_f64() * 0.4;
    log::info(
        Who::Core,
        "default_loader.py:268",
        format_args!("Loading weights took {seconds:.2} seconds"),
    );

    log::info(
        Who::Core,
        "backends.py:548",
        "Start compiling function <code object forward>",
    );
    stage(options, script, Stage::Compile, 30).await?;
    log::info(Who::Core, "monitor.py:34", "torch.compile takes 0.00 s in total");

    log::bar("Capturing CUDA graphs (decode, FULL):  50%|#####     | 1/2");
    stage(options, script, Stage::Graphs, 20).await?;
    log::bar("Capturing CUDA graphs (decode, FULL): 100%|##########| 2/2\n");
    until(script).await?;
    log::info(
        Who::Core,
        "core.py:210",
        "init engine (profile, create kv cache, warmup model) took 0.00 seconds",
    );
    Ok(())
}

/// Spends `percent` of the loading time, then ends what the script ends here.
async fn stage(options: &Options, script: &Script, stage: Stage, percent: u32) -> Result<(), Ending> {
    tokio::time::sleep(script.load * percent / 100).await;
    if let Some(failure) = script.fail.filter(|f| f.stage() == Some(stage)) {
        failure.tell(options);
        return Err(Ending::Code(failure.code()));
    }
    match script.die_at {
        Some((at, ending)) if at == stage => Err(ending),
        _ => Ok(()),
    }
}

async fn until(script: &Script) -> Result<(), Ending> {
    let Some(path) = &script.load_until else {
        return Ok(());
    };
    let appears = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(UNTIL_LIMIT, appears).await.is_err() {
        let limit = UNTIL_LIMIT.as_secs();
        log::line(format_args!(
            "stub-engine: {} did not appear within {limit} s",
            path.display()
        ));
        return Err(Ending::Code(1));
    }
    Ok(())
}
