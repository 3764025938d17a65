//! Lists the committed PTX for `src/ptx.rs`, and says which layouts it was compiled for.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    println!("cargo::rerun-if-changed=ptx");

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
                let text = format!("include_str!({file:?})");
                writeln!(table, "    Ptx::new({module:?}, {capability}, {text}),").unwrap();
            }
        }
    }
    table.push(']');
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    fs::write(out.join("ptx.rs"), table).unwrap();

    let manifest = fs::read_to_string(here.join("ptx/manifest.txt")).unwrap();
    let layouts = manifest.lines().find_map(|line| line.strip_prefix("layouts: "));
    let layouts = layouts.expect("ptx/manifest.txt has a line `layouts: …`");
    fs::write(out.join("layouts.rs"), format!("0x{layouts}")).unwrap();
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
