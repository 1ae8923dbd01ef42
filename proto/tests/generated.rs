//! The checked-in Rust must be what the `.proto` files say.

use std::path::{Path, PathBuf};

use prost::Message;

const FILES: [&str; 7] = [
    "model",
    "catalog",
    "jobs",
    "hooks",
    "runner",
    "peers",
    "telemetry",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generate(into: &Path) {
    let files = FILES.map(|name| root().join(format!("slurm_serve/v1/{name}.proto")));
    let set = protox::compile(files, [root()]).expect("the .proto files compile");
    std::fs::write(into.join("descriptors.bin"), set.encode_to_vec()).expect("write the descriptors");
    tonic_prost_build::configure()
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .out_dir(into)
        .compile_fds(set)
        .expect("generate");
}

#[test]
fn generated_code_is_current() {
    let checked_in = root().join("src/generated");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(&checked_in).expect("make src/generated");
        generate(&checked_in);
    }
    let fresh = tempfile::tempdir().expect("a temporary folder");
    generate(fresh.path());
    for name in ["slurm_serve.v1.rs", "descriptors.bin"] {
        let want = std::fs::read(fresh.path().join(name)).expect("fresh");
        let have = std::fs::read(checked_in.join(name)).unwrap_or_default();
        assert!(
            want == have,
            "src/generated/{name} is not what the .proto files say: run UPDATE_GENERATED=1 cargo test -p slurm-serve-proto"
        );
    }
}
