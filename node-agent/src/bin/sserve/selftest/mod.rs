//! `sserve selftest`: a job through each ending, on this very cluster.

use slurm_serve::selftest_engine;

use crate::failure::Failure;
use crate::out;

/// For admins: a job through each ending, on this cluster
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the recipe of the engine that the selftest uses, and do nothing.
    #[arg(long)]
    print_recipe: bool,
}

/// Runs the verb.
pub async fn run(args: Args) -> Result<(), Failure> {
    if args.print_recipe {
        return out::lines(selftest_engine::RECIPE.lines());
    }
    Err(Failure::usage("nothing but --print-recipe is there yet"))
}
