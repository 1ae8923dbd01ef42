//! What the plugin relies on in slurm-spank's bundled bindings, against the headers of a real release of Slurm.
//!
//! One build is loaded by many releases; this is the proof that they mean the same by every number, structure and function.
//! Headers are taken from the lab's root file systems (`lab root` makes them), and from `$SLURM_SERVE_SLURM_HEADERS` (the folder that
//! holds `slurm/spank.h`) if that is set. A release whose root file system is not there is said to be left out, and with
//! `$SLURM_SERVE_ALL_RELEASES` fails. Needs libclang.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use quote::ToTokens;
use spank_serve::task_exit::{BATCH_STEP, INTERACTIVE_STEP};

/// The releases that the lab has.
const RELEASES: [&str; 3] = ["22.05", "24.11", "26.05"];

/// Every function of Slurm's that the built plugin leaves undefined (`nm -D --undefined-only spank_serve.so`).
const FUNCTIONS: [&str; 15] = [
    "slurm_debug",
    "slurm_debug2",
    "slurm_debug3",
    "slurm_error",
    "slurm_info",
    "slurm_spank_log",
    "slurm_verbose",
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_option_getopt",
    "spank_option_register",
    "spank_setenv",
    "spank_strerror",
    "spank_unsetenv",
];

/// The families of numbers that cross the border: errors, items, contexts.
const FAMILIES: [&str; 3] = ["ESPANK_", "spank_item_S_", "spank_context_S_CTX"];

/// Bindings as names and what they stand for.
#[derive(Default)]
struct Bindings {
    constants: BTreeMap<String, String>,
    functions: BTreeMap<String, String>,
    types: BTreeMap<String, String>,
}

impl Bindings {
    fn parse(text: &str) -> Self {
        let mut bindings = Self::default();
        for item in syn::parse_file(text).expect("bindgen writes Rust").items {
            match item {
                syn::Item::Const(constant) => {
                    let value = constant.expr.to_token_stream().to_string();
                    bindings.constants.insert(constant.ident.to_string(), value);
                }
                syn::Item::Type(alias) => {
                    let meaning = alias.ty.to_token_stream().to_string();
                    bindings.types.insert(alias.ident.to_string(), meaning);
                }
                syn::Item::ForeignMod(block) => block.items.into_iter().for_each(|item| {
                    if let syn::ForeignItem::Fn(function) = item {
                        let name = function.sig.ident.to_string();
                        bindings.functions.insert(name, signature(&function.sig));
                    }
                }),
                _ => {}
            }
        }
        bindings
    }

    /// A constant by its own name or, as bindgen puts the enum's name before it, by its end.
    fn constant(&self, name: &str) -> Option<&str> {
        let plain = name.split_once("ESPANK_").map(|(_, end)| format!("ESPANK_{end}"));
        let wanted = plain.as_deref().unwrap_or(name);
        let found = self.constants.iter().find(|(known, _)| {
            *known == wanted
                || known
                    .strip_suffix(wanted)
                    .is_some_and(|start| start.ends_with('_'))
        });
        found.map(|(_, value)| value.as_str())
    }
}

/// Types alone: releases name parameters differently.
fn signature(function: &syn::Signature) -> String {
    let inputs = function.inputs.iter().map(|input| match input {
        syn::FnArg::Typed(typed) => typed.ty.to_token_stream().to_string(),
        syn::FnArg::Receiver(_) => unreachable!("C has no receivers"),
    });
    let inputs = inputs.collect::<Vec<_>>().join(", ");
    let variadic = if function.variadic.is_some() { ", ..." } else { "" };
    format!("({inputs}{variadic}) {}", function.output.to_token_stream())
}

/// The folder of the lab's root file systems.
fn cache() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("SLURM_SERVE_CACHE") {
        return Some(folder.into());
    }
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    Some(base?.join("slurm-serve"))
}

/// The folder that holds a release's `slurm/spank.h`.
fn headers(release: &str) -> Option<PathBuf> {
    let roots = std::fs::read_dir(cache()?).ok()?.flatten();
    let mut found: Vec<PathBuf> = roots
        .filter(|root| {
            root.file_name()
                .to_string_lossy()
                .starts_with(&format!("root-{release}-"))
        })
        .map(|root| root.path().join("usr/include"))
        .filter(|folder| folder.join("slurm/spank.h").is_file())
        .collect();
    found.sort();
    found.pop()
}

/// slurm-spank's bindings, as they were built into the plugin.
fn bundled() -> Bindings {
    // Only what was fetched for this platform can be resolved without a network.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--offline",
            "--filter-platform",
            &platform,
            "--manifest-path",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let packages = metadata["packages"]
        .as_array()
        .expect("cargo metadata lists packages");
    let package = packages.iter().find(|package| package["name"] == "slurm-spank");
    let manifest = package
        .and_then(|package| package["manifest_path"].as_str())
        .expect("slurm-spank is used");
    let file = Path::new(manifest).with_file_name("build").join("bindings.rs");
    Bindings::parse(&std::fs::read_to_string(file).expect("slurm-spank ships its bindings"))
}

/// Bindings of the real headers, made with the settings that slurm-spank's own were made with. With the layout of structures, as
/// bindgen's own assertions.
fn real(folder: &Path) -> (Bindings, String) {
    let text = bindgen::Builder::default()
        .rust_target("1.72.0".parse().expect("a version of Rust"))
        .header_contents("all.h", "#include <slurm/spank.h>\n#include <slurm/slurm.h>\n")
        .clang_arg(format!("-I{}", folder.display()))
        .allowlist_function("spank_.*|slurm_.*")
        .allowlist_type("spank.*|slurm_err_t")
        .allowlist_var("ESPANK.*|SLURM_BATCH_SCRIPT|SLURM_INTERACTIVE_STEP|SLURM_VERSION.*")
        .generate()
        .unwrap_or_else(|error| panic!("{} can't be bound: {error}", folder.display()))
        .to_string();
    (Bindings::parse(&text), text)
}

#[test]
fn the_bundled_bindings_mean_what_every_release_says() {
    let mut checked = Vec::new();
    for release in RELEASES {
        match headers(release) {
            Some(folder) => {
                check(release, &folder);
                checked.push(release);
            }
            None => {
                let left_out = format!(
                    "Slurm {release} is left out: its root file system is not there (`lab root --release {release}` makes it)"
                );
                assert!(
                    std::env::var_os("SLURM_SERVE_ALL_RELEASES").is_none(),
                    "{left_out}"
                );
                eprintln!("{left_out}");
            }
        }
    }
    if let Some(folder) = std::env::var_os("SLURM_SERVE_SLURM_HEADERS") {
        check("those of $SLURM_SERVE_SLURM_HEADERS", Path::new(&folder));
        checked.push("others");
    }
    assert!(
        !checked.is_empty(),
        "no Slurm headers: make the lab's root file system (`lab root`), or set SLURM_SERVE_SLURM_HEADERS to the folder that holds slurm/spank.h"
    );
}

fn check(release: &str, folder: &Path) {
    let (bundled, (real, real_text)) = (bundled(), real(folder));
    let mut differences = Vec::new();

    let relied_on = bundled
        .constants
        .iter()
        .filter(|(name, _)| FAMILIES.iter().any(|family| name.contains(family)));
    let mut compared = 0;
    for (name, value) in relied_on {
        compared += 1;
        match real.constant(name) {
            Some(other) if other == value => {}
            other => differences.push(format!("{name}: {value} in the plugin, {other:?} in the headers")),
        }
    }
    assert!(
        compared > 40,
        "only {compared} constants were found: has slurm-spank changed how it names them?"
    );

    for name in FUNCTIONS {
        let (ours, theirs) = (bundled.functions.get(name), real.functions.get(name));
        if ours.is_none() || ours != theirs {
            differences.push(format!(
                "{name}: {ours:?} in the plugin, {theirs:?} in the headers"
            ));
        }
    }

    for name in [
        "spank_t",
        "spank_err_t",
        "spank_opt_cb_f",
        "slurm_err_t",
        "spank_item",
        "spank_context",
    ] {
        if let Some(ours) = bundled.types.get(name)
            && real.types.get(name) != Some(ours)
        {
            differences.push(format!(
                "{name}: {ours} in the plugin, {:?} in the headers",
                real.types.get(name)
            ));
        }
    }

    for (name, ours) in [
        ("SLURM_BATCH_SCRIPT", BATCH_STEP),
        ("SLURM_INTERACTIVE_STEP", INTERACTIVE_STEP),
    ] {
        match real.constant(name).map(str::parse::<u32>) {
            Some(Ok(value)) if ours == value => {}
            other => differences.push(format!("{name}: {ours} in the plugin, {other:?} in the headers")),
        }
    }

    differences.extend(option_layout(&real_text));
    assert!(
        differences.is_empty(),
        "Slurm {release}:\n{}",
        differences.join("\n")
    );
}

/// slurm-spank writes `struct spank_option` by hand.
fn option_layout(real_text: &str) -> Vec<String> {
    use slurm_spank::spank_sys::spank_option;
    let real: String = real_text.split_whitespace().collect();
    let fields = [
        ("name", std::mem::offset_of!(spank_option, name)),
        ("arginfo", std::mem::offset_of!(spank_option, arginfo)),
        ("usage", std::mem::offset_of!(spank_option, usage)),
        ("has_arg", std::mem::offset_of!(spank_option, has_arg)),
        ("val", std::mem::offset_of!(spank_option, val)),
        ("cb", std::mem::offset_of!(spank_option, cb)),
    ];
    let size = std::mem::size_of::<spank_option>();
    let mut expected = vec![format!("size_of::<spank_option>(),{size}usize")];
    expected.extend(
        fields.map(|(field, offset)| format!("addr_of!((*ptr).{field})asusize-ptrasusize}},{offset}usize")),
    );
    expected
        .into_iter()
        .filter(|assertion| !real.contains(assertion))
        .map(|assertion| format!("struct spank_option: the headers do not say {assertion}"))
        .collect()
}
