//! Lists the committed PTX for `src/ptx.rs`, and says which layouts it was compiled for.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    println!("cargo::rerun-if-changed=ptx");

    let mut modules = Vec::new();
    for arch in sorted(&here.join("ptx")) {
        let name = arch.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(capability) =
            name.strip_prefix("sm_").and_then(|number| number.parse::<u32>().ok())
        else {
            continue;
        };
        for file in sorted(&arch) {
            let name = file.file_name().unwrap().to_str().unwrap();
            if let Some(module) = name.strip_suffix(".ptx.zst") {
                if module.starts_with("ceiling") && env::var_os("CARGO_FEATURE_BENCH").is_none() {
                    continue;
                }
                let compressed = format!("include_bytes!({file:?})");
                modules.push(format!("    Ptx::new({module:?}, {capability}, {compressed}),\n"));
            }
        }
    }
    // An array rather than a slice: a module has a `OnceLock`, and a static may not borrow a
    // temporary that has one.
    let (count, modules) = (modules.len(), modules.concat());
    let table = format!("static ALL: [Ptx; {count}] = [\n{modules}];\n");
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
