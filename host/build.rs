//! Lists the committed PTX for `src/ptx.rs`, and lets programs link where there is no driver.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    println!("cargo::rerun-if-changed=ptx");

    // cust asks the linker for libcuda. Its functions are defined in src/driver.rs, so an empty
    // library of that name satisfies it, and no program needs the real one to start.
    println!("cargo::rustc-link-search=native={}", here.join("cuda/lib64").display());

    let mut table = String::from("&[\n");
    for arch in sorted(&here.join("ptx")) {
        let name = arch.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(capability) =
            name.strip_prefix("sm_").and_then(|number| number.parse::<u32>().ok())
        else {
            continue;
        };
        for file in sorted(&arch) {
            if file.extension().is_some_and(|extension| extension == "ptx") {
                let module = file.file_stem().unwrap().to_str().unwrap();
                if module.starts_with("ceiling") && env::var_os("CARGO_FEATURE_BENCH").is_none() {
                    continue;
                }
                writeln!(
                    table,
                    "    Ptx::new({module:?}, {capability}, concat!(include_str!({file:?}), \"\\0\")),"
                )
                .unwrap();
            }
        }
    }
    table.push(']');
    fs::write(PathBuf::from(env::var("OUT_DIR").unwrap()).join("ptx.rs"), table).unwrap();
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
