//! What vLLM leaves on a machine: `vllm_dist_*` in the temporary folder (`TMPDIR`) always, open in no process, and after a SIGKILL the shared memory
//! of Python's multiprocessing, `psm_*` (mapped and open) and `sem.mp-*` (mapped only), in `/dev/shm`.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Size of a POSIX semaphore of glibc.
const SEMAPHORE_BYTES: u64 = 32;

/// The shared memory that this process has made.
pub struct Segments {
    psm: PathBuf,
    sem: PathBuf,
    _open: File,
}

impl Segments {
    /// Makes all three, with random names, readable by the owner only.
    pub fn make(psm_bytes: u64) -> io::Result<Self> {
        let name = random_name();
        let psm = PathBuf::from(format!("/dev/shm/psm_{name}"));
        let sem = PathBuf::from(format!("/dev/shm/sem.mp-{name}"));
        create(&std::env::temp_dir().join(format!("vllm_dist_{name:0>32}")), 0)?;
        let open = create(&psm, psm_bytes.max(1))?;
        create(&sem, SEMAPHORE_BYTES)?;
        map(&open)?;
        attach(&sem)?;
        Ok(Self {
            psm,
            sem,
            _open: open,
        })
    }

    /// The paths in `/dev/shm`, for the child to map too.
    pub fn paths(&self) -> [&Path; 2] {
        [&self.psm, &self.sem]
    }

    /// What a clean exit of vLLM removes: the shared memory, not `vllm_dist_*`.
    pub fn remove(self) {
        for path in self.paths() {
            if let Err(error) = std::fs::remove_file(path) {
                crate::log::line(format_args!(
                    "stub-engine: can't remove {}: {error}",
                    path.display()
                ));
            }
        }
    }
}

/// Maps an existing segment for the rest of the process's life; its file is closed again.
pub fn attach(path: &Path) -> io::Result<()> {
    map(&OpenOptions::new().read(true).write(true).open(path)?)
}

fn create(path: &Path, bytes: u64) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_len(bytes)?;
    Ok(file)
}

fn map(file: &File) -> io::Result<()> {
    let bytes = usize::try_from(file.metadata()?.len())
        .ok()
        .and_then(NonZeroUsize::new);
    let bytes = bytes
        .ok_or_else(|| io::Error::other("an empty file can't be mapped"))?
        .get();
    // SAFETY: a fresh mapping at an address of the kernel's choice, of an open file at its full length; the address is
    // dropped at once, so nothing in this process ever reads or writes through it.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Eight characters from the clock and the pid: unique among stubs on one machine, `create_new` catches the rest.
fn random_name() -> String {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    format!("{:08x}", nanos ^ std::process::id().rotate_left(16))
}
