//! (to be filled)
/// x
#[derive(Debug, clap::Args)]
pub struct StepArgs {}
/// x
pub fn main(_: StepArgs) -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
