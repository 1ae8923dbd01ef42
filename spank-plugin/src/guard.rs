//! What keeps Slurm's processes safe from this plugin: no panic and no SIGPIPE leaves a hook.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slurm_spank::spank_log_error;

/// Runs a hook's body; a panic in it ends here and gives `None`. (The panic hook set by [`report_panics`] has told what happened.)
///
/// slurm-spank catches panics too, but while it holds its mutexes: they would be poisoned, and every later hook of this
/// process would fail.
pub fn caught<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Sends this plugin's panics to Slurm's log, as one line, instead of to stderr. The panic hook belongs to our own copy of the
/// standard library, so no other plugin is affected.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let what = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        spank_log_error!("serve: a fault of the plugin itself at {place}: {what}");
    }));
}

/// Runs `body` with SIGPIPE held back in this thread, and takes away one that it caused.
///
/// tokio writes to sockets by writev(2), which has no MSG_NOSIGNAL. Where Slurm leaves SIGPIPE at its default (26.05's prolog and
/// epilog, task_init everywhere) a peer that closes while we write would kill the helper, and Slurm would drain the node.
pub fn without_sigpipe<T>(body: impl FnOnce() -> T) -> T {
    let _held = HeldSigpipe::new();
    body()
}

/// SIGPIPE is blocked in this thread while this lives.
struct HeldSigpipe {
    old_mask: libc::sigset_t,
    was_pending: bool,
}

impl HeldSigpipe {
    fn new() -> Self {
        let sigpipe = set_of(&[libc::SIGPIPE]);
        let mut old_mask = MaybeUninit::uninit();
        let mut pending = MaybeUninit::uninit();
        // SAFETY: all three are properly aligned sigset_t; pthread_sigmask and sigpending write the whole of what they are
        // given, and can only fail for arguments that these are not (EINVAL, EFAULT).
        let (old_mask, was_pending) = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe, old_mask.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
            (old_mask.assume_init(), was_pending)
        };
        Self {
            old_mask,
            was_pending,
        }
    }
}

impl Drop for HeldSigpipe {
    fn drop(&mut self) {
        // One that was pending before is not ours to take.
        if !self.was_pending {
            let sigpipe = set_of(&[libc::SIGPIPE]);
            let at_once = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: both arguments live through the call; the siginfo is not asked for.
            while unsafe { libc::sigtimedwait(&sigpipe, std::ptr::null_mut(), &at_once) } == -1
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        // SAFETY: `old_mask` was written by pthread_sigmask in `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, std::ptr::null_mut()) };
    }
}

/// While this lives, the signals that end a job end this process too.
///
/// slurmstepd's handlers are inherited by the child that runs task_init; on 24.11 the SIGTERM of scancel would merely
/// interrupt our wait, and the script would then run.
pub struct Mortal {
    old_mask: libc::sigset_t,
}

const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

impl Mortal {
    /// Only for the forked child that is about to become the user's program: exec resets handlers anyway.
    pub fn new() -> Self {
        for signal in ENDING {
            // SAFETY: SIG_DFL and SIG_IGN are valid dispositions for these signals. Swapping through SIG_DFL is
            // harmless: whatever arrives in between is meant to end this process.
            unsafe {
                if libc::signal(signal, libc::SIG_DFL) == libc::SIG_IGN {
                    libc::signal(signal, libc::SIG_IGN);
                }
            }
        }
        let mut old_mask = MaybeUninit::uninit();
        // SAFETY: as in `HeldSigpipe::new`.
        let old_mask = unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set_of(&ENDING), old_mask.as_mut_ptr());
            old_mask.assume_init()
        };
        Self { old_mask }
    }
}

impl Default for Mortal {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        // SAFETY: `old_mask` was written by pthread_sigmask in `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, std::ptr::null_mut()) };
    }
}

/// Ends this process now: no atexit handlers (slurm-spank's mutexes are held), no destructors.
///
/// In task_init this fails the job and nothing else; in sbatch, srun and salloc it ends the command.
pub fn end_process() -> ! {
    // SAFETY: _exit takes any status and does not return.
    unsafe { libc::_exit(1) }
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set; the signals are valid numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn pending(signal: libc::c_int) -> bool {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigpending initialises the set.
        unsafe {
            libc::sigpending(set.as_mut_ptr());
            libc::sigismember(set.as_ptr(), signal) == 1
        }
    }

    fn blocked(signal: libc::c_int) -> bool {
        let mut set = MaybeUninit::uninit();
        // SAFETY: a null new mask only reads; the set is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr());
            libc::sigismember(set.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_sigpipe_is_taken_away_and_the_mask_restored() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        without_sigpipe(|| {
            assert!(blocked(libc::SIGPIPE));
            // SAFETY: raise of a blocked signal only makes it pending.
            unsafe { libc::raise(libc::SIGPIPE) };
            assert!((&ours).write_all(b"x").is_err());
            assert!(pending(libc::SIGPIPE));
        });
        assert!(!pending(libc::SIGPIPE));
        assert!(!blocked(libc::SIGPIPE));
    }

    #[test]
    fn the_mask_is_restored_after_a_panic() {
        let result = caught(|| without_sigpipe(|| panic!("for the test")));
        assert!(result.is_none());
        assert!(!blocked(libc::SIGPIPE));
    }
}
