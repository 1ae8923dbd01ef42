//! The one file that SPANK's symbols come from. Each hook finds out where it is and hands over.
#![allow(unsafe_code)]

use std::error::Error;

use slurm_serve_recipe::{OPTION_NAMES, RawOptions};
use slurm_spank::{Context, Plugin, SPANK_PLUGIN, SpankHandle, SpankOption};
use slurm_spank::{spank_log_error, spank_log_info, spank_log_user, spank_log_verbose};

use crate::rpc::{Agent, CallError};
use crate::settings::Settings;
use crate::submit::{Command, Verdict};
use crate::task::{Asker, Job};
use crate::{guard, job_script, options, socket, submit, task, task_exit};

/// 22.05.8: what `plugin_version` holds until `sserve plugin stamp` writes the number of the release at hand. A literal: the
/// bundled bindings' own number says nothing about where this will be loaded.
const UNSTAMPED: std::os::raw::c_uint = 0x0016_0508;

SPANK_PLUGIN!(b"serve", UNSTAMPED, ServePlugin);

const VERSION_TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Of which slurm-serve this is a part, for `sserve doctor`, which reads it out of the file.
#[unsafe(export_name = "slurm_serve_version")]
pub static VERSION: [u8; VERSION_TEXT.len()] = *VERSION_TEXT.as_bytes().first_chunk().expect("all of it");

/// Nothing is kept between hooks.
#[derive(Default)]
struct ServePlugin;

type Hook = Result<(), Box<dyn Error>>;

// SAFETY: the trait asks that no hook leave threads behind that a fork could meet; no hook starts one (see `rpc`).
unsafe impl Plugin for ServePlugin {
    /// Replaces slurm-spank's subscriber, which would write h2's frames into slurmd.log.
    fn setup(&mut self, _spank: &mut SpankHandle) -> Hook {
        guard::report_panics();
        Ok(())
    }

    /// Replaces slurm-spank's report by slurm_info, which no user ever sees. Never called: no hook returns an error.
    fn report_error(&self, _spank: &mut SpankHandle, error: &dyn Error) {
        spank_log_error!("serve: {error}");
    }

    fn init(&mut self, spank: &mut SpankHandle) -> Hook {
        guard::caught(|| {
            if spank.context().is_ok_and(|context| context == Context::Slurmd) {
                complain_once(spank);
                return;
            }
            // Never a static table: sbatch does not read it, and getopt in the prolog is broken by it.
            for option in OPTION_NAMES {
                let wanted = SpankOption::new(option.name)
                    .takes_value(option.arginfo)
                    .usage(option.usage);
                if let Err(error) = spank.register_option(wanted) {
                    spank_log_error!("serve: --{} is not available: {error}", option.name);
                }
            }
        });
        Ok(())
    }

    fn init_post_opt(&mut self, spank: &mut SpankHandle) -> Hook {
        guard::caught(|| {
            let command = match spank.context() {
                Ok(Context::Allocator) => Command::Submits,
                Ok(Context::Local) => Command::Srun,
                Ok(Context::Remote) if !given_to_task(spank).model.is_empty() => {
                    socket::hold(&settings(spank).socket);
                    return;
                }
                _ => return,
            };
            let var = |name: &str| std::env::var(name).ok();
            let given = given(spank);
            match submit::check(command, &given, &settings(spank), var) {
                Verdict::Pass(lines) => {
                    lines.iter().for_each(|line| spank_log_user!("{line}"));
                    forget_what_was_not_given(&given);
                }
                Verdict::Refuse(lines) => {
                    lines.iter().for_each(|line| spank_log_user!("{line}"));
                    // An error returned by an optional plugin changes nothing.
                    guard::end_process();
                }
            }
        });
        Ok(())
    }

    fn job_prolog(&mut self, spank: &mut SpankHandle) -> Hook {
        guard::caught(|| {
            let options = options::for_agent(given(spank));
            let ids = job_script::JobIds {
                job_id: spank.job_id().unwrap_or(0),
                uid: spank.job_uid().unwrap_or(u32::MAX),
                gid: spank.job_gid().unwrap_or(u32::MAX),
            };
            let tagged = !options.model.is_empty();
            let request = job_script::started_request(|name| std::env::var(name).ok(), ids, options);
            let told = job_script::started(&agent(spank), request);
            report("the start", ids.job_id, tagged, &told);
        });
        Ok(())
    }

    fn job_epilog(&mut self, spank: &mut SpankHandle) -> Hook {
        guard::caught(|| {
            let options = options::for_agent(given(spank));
            let job_id = spank.job_id().unwrap_or(0);
            let told = job_script::ended(&agent(spank), job_id, &options);
            report("the end", job_id, !options.model.is_empty(), &told);
        });
        Ok(())
    }

    fn task_init(&mut self, spank: &mut SpankHandle) -> Hook {
        let done = guard::caught(|| {
            let options = given_to_task(spank);
            if options.model.is_empty() {
                return;
            }
            let _mortal = guard::Mortal::new();
            let asker = Asker {
                job_id: spank.job_id().unwrap_or(0),
                step_id: spank.job_stepid().unwrap_or(u32::MAX),
                options,
                leads: spank.task_global_id().unwrap_or(0) == 0,
            };
            // The first task of each node tells of a failure: what is wrong may be wrong on that node alone.
            let tells = asker.leads || spank.task_id().unwrap_or(0) == 0;
            let settings = settings(spank);
            if let Err(failure) = task::prepare(&mut SlurmJob(spank), &asker, &settings) {
                if tells {
                    failure.0.iter().for_each(|line| spank_log_user!("{line}"));
                }
                guard::end_process();
            }
        });
        if done.is_none() {
            spank_log_user!(
                "serve: a fault of slurm-serve itself: the job ends here; its admin finds more in slurmd's log"
            );
            guard::end_process();
        }
        Ok(())
    }

    fn task_exit(&mut self, spank: &mut SpankHandle) -> Hook {
        guard::caught(|| {
            if given(spank).model.is_empty() || !spank.job_stepid().is_ok_and(task_exit::ends_the_job) {
                return;
            }
            let job_id = spank.job_id().unwrap_or(0);
            let told = task_exit::ending(&agent(spank), job_id, spank.task_exit_status().unwrap_or(0));
            if let Err(error) = told {
                // Not as an error, which here would go to the job's stderr: its user can do nothing about it.
                spank_log_info!("serve: job {job_id}: the agent was not told of its script's end: {error}");
            }
        });
        Ok(())
    }
}

/// The options as this context knows them, as text that the user controls.
fn given(spank: &SpankHandle) -> RawOptions {
    options::gather(|name| {
        spank
            .get_option_value_lossy(name)
            .map(std::borrow::Cow::into_owned)
    })
}

/// The same for a task. With `sbatch --export=NONE` Slurm 22.05 tells the batch step of no option (24.11 and 26.05 do); the variable by
/// which its steps inherit it is there all the same. Elsewhere that variable alone makes no job a tagged one.
fn given_to_task(spank: &SpankHandle) -> RawOptions {
    let given = given(spank);
    let var = |name: &str| spank.getenv_lossy(name).ok().flatten();
    if given.model.is_empty() && var("SLURM_EXPORT_ENV").is_some() {
        return options::gather(|name| var(&options::inherited_name(name)));
    }
    given
}

/// The shell of a tagged salloc holds two variables for each option. Who unsets the documented one and submits must not find the
/// job tagged by the other: its prolog would show no option, and its script would ask for a model.
#[allow(clippy::disallowed_methods)] // remove_var is unsafe beside other threads; there are none here, see below.
fn forget_what_was_not_given(given: &RawOptions) {
    for option in OPTION_NAMES {
        if given.get(option.kind).is_empty() {
            let variable = options::remote_name(option.name);
            // SAFETY: sbatch, salloc and srun have one thread when they call init_post_opt (srun starts its second one
            // later, before local_user_init), so nobody reads the environment meanwhile.
            unsafe { std::env::remove_var(variable) };
        }
    }
}

fn settings(spank: &SpankHandle) -> Settings {
    Settings::parse(spank.plugin_argv().unwrap_or_default()).0
}

fn agent(spank: &SpankHandle) -> Agent {
    Agent::at(&settings(spank).socket)
}

/// slurmd's start is where an admin looks; each job repeating it would help nobody.
fn complain_once(spank: &SpankHandle) {
    match spank.plugin_argv() {
        Ok(arguments) => {
            let (_, complaints) = Settings::parse(arguments);
            complaints
                .iter()
                .for_each(|line| spank_log_error!("serve: {line}"));
        }
        Err(error) => spank_log_error!("serve: plugstack arguments ignored: {error}"),
    }
}

/// Says in slurmd's log what the agent was not told. For a job that has nothing to do with us that is not worth a line.
fn report(what: &str, job_id: u32, tagged: bool, told: &Result<(), CallError>) {
    match told {
        Ok(()) => {}
        Err(error) if tagged => {
            spank_log_error!("serve: job {job_id}: the agent was not told of {what}: {error}");
        }
        Err(error) => spank_log_verbose!("serve: job {job_id}: the agent was not told of {what}: {error}"),
    }
}

/// The job's side of task_init, by SPANK.
struct SlurmJob<'a, 'b>(&'a SpankHandle<'b>);

impl Job for SlurmJob<'_, '_> {
    fn var(&self, name: &str) -> Option<String> {
        self.0.getenv_lossy(name).ok().flatten()
    }

    fn vars(&self) -> Vec<(String, String)> {
        let entries = self.0.job_env_os().unwrap_or_default();
        let text = entries
            .into_iter()
            .filter_map(|entry| entry.to_str()?.split_once('='));
        text.map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.0
            .setenv(name, value, true)
            .map_err(|error| error.to_string())
    }

    fn unset(&mut self, name: &str) {
        // Fails only for a variable that is not there.
        let _ = self.0.unsetenv(name);
    }

    fn say(&self, line: &str) {
        spank_log_user!("{line}");
    }
}
