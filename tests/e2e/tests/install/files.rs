//! `install.sh` with DESTDIR, without root and without a Slurm: what lies where, what stays, what goes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use slurm_serve::plugin_file;

use crate::{repository, run, stripped};

fn install(built: &Path, to: &Path, more: &[(&str, &str)], verb: &str) -> Result<String> {
    let mut command = Command::new(repository().join("slurm-conf/install.sh"));
    command
        .arg(verb)
        .env("BUILT", built)
        .env("DESTDIR", to)
        .env("SLURM_VERSION", "26.05.5");
    run(command.envs(more.iter().copied()))
}

#[test]
fn everything_lies_where_an_admin_expects_it_and_edited_settings_stay() {
    let (built, stage) = (stripped().unwrap(), tempfile::tempdir().unwrap());
    let (built, at) = (built.path(), |path: &str| stage.path().join(path));
    let install = |more: &[(&str, &str)], verb| install(built, stage.path(), more, verb).unwrap();
    install(&[], "install");
    for file in [
        "usr/local/bin/slurm-serve",
        "usr/local/bin/sserve",
        "usr/local/lib/slurm-serve/health-check",
        "usr/local/lib/systemd/system/slurm-serve-agent.service",
        "usr/local/lib/systemd/system/slurm-serve-gateway.service",
        "usr/local/share/slurm-serve/models.d/gpt-oss-120b.toml",
        "etc/slurm-serve/config.toml",
    ] {
        assert!(at(file).is_file(), "{file}");
    }
    let plugin = at("usr/local/lib/slurm-serve/spank_serve.so");
    assert_eq!(plugin_file::read_version(&plugin).unwrap().to_string(), "26.05.5");
    let snippet = fs::read_to_string(at("etc/slurm/plugstack.conf.d/serve.conf")).unwrap();
    assert!(
        snippet.ends_with("\noptional /usr/local/lib/slurm-serve/spank_serve.so\n"),
        "{snippet}"
    );

    // An older file that nobody edited is replaced; one that was edited stays, and the new one lies beside it.
    let (config, last) = (
        at("etc/slurm-serve/config.toml"),
        at("usr/local/share/slurm-serve/installed/config.toml"),
    );
    let shipped = fs::read_to_string(&config).unwrap();
    for path in [&config, &last] {
        fs::write(path, "# of an older release\n").unwrap();
    }
    install(&[], "install");
    assert_eq!(fs::read_to_string(&config).unwrap(), shipped);
    fs::write(&config, "# mine\n").unwrap();
    fs::write(&last, "# of an older release\n").unwrap();
    let said = install(&[], "install");
    assert!(said.contains("config.toml was edited and stays"), "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), "# mine\n");
    let new = at("etc/slurm-serve/config.toml.new");
    assert_eq!(fs::read_to_string(&new).unwrap(), shipped);
    // Once told, it is not told again until there is something new.
    fs::remove_file(&new).unwrap();
    install(&[], "install");
    assert!(!new.exists());

    install(&[], "uninstall");
    let left = run(Command::new("find").arg(stage.path()).args(["-type", "f"])).unwrap();
    assert_eq!(left.trim(), config.display().to_string());
    install(&[("PURGE", "1")], "uninstall");
    assert!(!at("etc/slurm-serve").exists());
}

#[test]
fn no_half_written_file_is_ever_seen_and_nothing_temporary_stays() {
    let (built, stage) = (stripped().unwrap(), tempfile::tempdir().unwrap());
    for _ in 0..2 {
        install(built.path(), stage.path(), &[], "install").unwrap();
    }
    let left = run(Command::new("find").arg(stage.path()).args(["-name", "*.new"])).unwrap();
    assert_eq!(left, "");
    // Files are renamed into place, so the plugin of a running slurmd is never written to.
    use std::os::unix::fs::MetadataExt as _;
    let plugin = stage.path().join("usr/local/lib/slurm-serve/spank_serve.so");
    let before = fs::metadata(&plugin).unwrap().ino();
    let _held = fs::File::open(&plugin).unwrap();
    install(built.path(), stage.path(), &[], "install").unwrap();
    assert_ne!(before, fs::metadata(&plugin).unwrap().ino());
}

#[test]
fn without_a_slurm_its_release_is_asked_for() {
    let (built, stage) = (stripped().unwrap(), tempfile::tempdir().unwrap());
    let empty = [("SLURM_VERSION", "")];
    // This machine may have a Slurm: then it is taken.
    if plugin_file::host_version().is_none() {
        let error = install(built.path(), stage.path(), &empty, "install").unwrap_err();
        assert!(
            format!("{error:#}").contains("SLURM_VERSION=24.11.5"),
            "{error:#}"
        );
        assert!(
            !stage
                .path()
                .join("etc/slurm/plugstack.conf.d/serve.conf")
                .exists()
        );
    }
}

/// systemd's own opinion of the units, where it is installed; their paths must exist for it, so this is no DESTDIR.
#[test]
fn systemd_finds_no_fault_with_the_units() {
    let (built, to) = (stripped().unwrap(), tempfile::tempdir().unwrap());
    let (prefix, etc) = (to.path().join("usr"), to.path().join("etc"));
    let [prefix, etc] = [&prefix, &etc].map(|path| path.to_str().unwrap());
    install(
        built.path(),
        Path::new(""),
        &[("PREFIX", prefix), ("SYSCONFDIR", etc)],
        "install",
    )
    .unwrap();
    for unit in ["slurm-serve-agent", "slurm-serve-gateway"] {
        let path = format!("{prefix}/lib/systemd/system/{unit}.service");
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains(&format!("\nExecStart={prefix}/bin/slurm-serve ")),
            "{text}"
        );
        match Command::new("systemd-analyze")
            .args(["verify", "--man=no", &path])
            .output()
        {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                // Other units of the machine may have faults of their own.
                let ours: Vec<_> = said.lines().filter(|line| line.contains("slurm-serve")).collect();
                assert!(output.status.success() && ours.is_empty(), "{said}");
            }
            Err(_) => eprintln!("no systemd-analyze here: {unit} is not looked at"),
        }
    }
}
