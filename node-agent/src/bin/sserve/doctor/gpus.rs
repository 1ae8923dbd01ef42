//! GPUs as Slurm, the driver's devices and NVML see them.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::finding::Findings;
use super::host::{Host, Role};

const CHECK: &str = "gpus";
/// A driver that hangs on a dead card hangs NVML.
const LIMIT: Duration = Duration::from_secs(10);

/// What NVML says.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// There is no such library here.
    NoLibrary,
    /// It is there and does not work.
    Broken(String),
    Cards {
        driver: String,
        names: Vec<String>,
    },
}

/// Compares them.
pub async fn look(host: &Host, found: &mut Findings) {
    if host.role == Role::Login {
        return;
    }
    let slurms = host
        .record
        .as_ref()
        .map(|_| by_slurm(host.field("Gres").unwrap_or_default()));
    judge(slurms, devices(Path::new("/dev")), nvml(), found);
}

fn judge(slurms: Option<u32>, devices: usize, seen: Seen, found: &mut Findings) {
    let by_slurm = slurms.map_or("Slurm does not tell its count".to_owned(), |count| {
        format!("{count} by Slurm")
    });
    let wanted = slurms.unwrap_or(0);
    match seen {
        Seen::NoLibrary if wanted == 0 => found.ok(
            CHECK,
            format!("{by_slurm}, no NVML library, {devices} devices /dev/nvidiaN"),
        ),
        Seen::NoLibrary => found.warn(
            CHECK,
            format!("{by_slurm}, {devices} devices /dev/nvidiaN, but no NVML library (libnvidia-ml.so.1)"),
            "install the driver's libraries; engines need them too",
        ),
        Seen::Broken(why) if wanted == 0 => found.warn(CHECK, format!("{by_slurm}; NVML: {why}"), ""),
        Seen::Broken(why) => found.fail(
            CHECK,
            format!("{by_slurm}, and NVML: {why}"),
            "see nvidia-smi and the kernel's log (dmesg | grep -i xid)",
        ),
        Seen::Cards { driver, names } => {
            let cards = format!("{} by NVML ({}), driver {driver}", names.len(), summed(&names));
            match slurms.is_none_or(|count| u32::try_from(names.len()) == Ok(count)) {
                true => found.ok(CHECK, format!("{by_slurm}, {cards}")),
                false => found.fail(
                    CHECK,
                    format!("{by_slurm}, but {cards}"),
                    "correct Gres= in slurm.conf and gres.conf, or look for the card that is gone (dmesg | grep -i xid)",
                ),
            }
        }
    }
}

/// `2 NVIDIA H200`.
fn summed(names: &[String]) -> String {
    let mut kinds: Vec<&String> = names.iter().collect();
    kinds.sort();
    kinds.dedup();
    let counted = kinds
        .iter()
        .map(|kind| format!("{} {kind}", names.iter().filter(|name| name == kind).count()));
    counted.collect::<Vec<_>>().join(", ")
}

/// GPUs in a node's Gres: `gpu:2`, `gpu:h100:4(S:0-1),gpu:a30:1,shard:8`.
pub fn by_slurm(gres: &str) -> u32 {
    // Sockets stand in brackets, and may hold commas: `gpu:4(S:0,2)`.
    let mut plain = String::new();
    let mut depth = 0;
    for c in gres.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let counts = plain.split(',').filter_map(|item| {
        let rest = item.trim().strip_prefix("gpu")?;
        match rest.rsplit_once(':') {
            Some((kind, count)) if kind.is_empty() || kind.starts_with(':') => {
                Some(count.parse().unwrap_or(1))
            }
            None if rest.is_empty() => Some(1),
            _ => None,
        }
    });
    counts.fold(0, u32::saturating_add)
}

fn devices(dev: &Path) -> usize {
    let entries = std::fs::read_dir(dev).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| {
            let number = name.strip_prefix("nvidia").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        })
        .count()
}

fn nvml() -> Seen {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody waits any more once the time is over.
        let _ = sender.send(ask_nvml());
    });
    match receiver.recv_timeout(LIMIT) {
        Ok(Ok(seen)) => seen,
        Ok(Err(NvmlError::LibloadingError(_))) => Seen::NoLibrary,
        Ok(Err(error)) => Seen::Broken(error.to_string()),
        Err(_) => Seen::Broken(format!("no answer within {} s", LIMIT.as_secs())),
    }
}

fn ask_nvml() -> Result<Seen, NvmlError> {
    let nvml = Nvml::init()?;
    let driver = nvml.sys_driver_version()?;
    let names = (0..nvml.device_count()?).map(|index| nvml.device_by_index(index)?.name());
    Ok(Seen::Cards {
        driver,
        names: names.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn gpus_are_counted_as_slurm_writes_them() {
        for (gres, count) in [
            ("", 0),
            ("gpu", 1),
            ("gpu:2", 2),
            ("gpu:h100:4(S:0-1)", 4),
            ("gpu:h100:4(S:0,2),gpu:a30:1,shard:8", 5),
            ("shard:8,gpumem:3G", 0),
        ] {
            assert_eq!(by_slurm(gres), count, "{gres}");
        }
    }

    #[test]
    fn a_cpu_node_is_fine_and_a_lost_card_is_not() {
        let cards = |count| Seen::Cards {
            driver: "570.1".into(),
            names: vec!["NVIDIA H200".into(); count],
        };
        for (slurms, seen, verdict) in [
            (Some(0), Seen::NoLibrary, Verdict::Ok),
            (None, Seen::NoLibrary, Verdict::Ok),
            (Some(2), Seen::NoLibrary, Verdict::Warn),
            (Some(2), cards(2), Verdict::Ok),
            (Some(2), cards(1), Verdict::Fail),
            (Some(0), cards(1), Verdict::Fail),
            (None, cards(1), Verdict::Ok),
            (Some(1), Seen::Broken("GPU is lost".into()), Verdict::Fail),
        ] {
            let mut found = Findings::default();
            let shown = format!("{slurms:?} {seen:?}");
            judge(slurms, 0, seen, &mut found);
            assert_eq!(found.verdict("gpus"), Some(verdict), "{shown}");
        }
    }
}
