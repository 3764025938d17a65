//! The kernels' source, from which the committed PTX was compiled.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

/// Every `.rs` and `Cargo.toml` under the kernels' directory, sorted by path.
pub(crate) struct Sources(Vec<(String, Vec<u8>)>);

impl Sources {
    pub(crate) fn read(kernels: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(kernels, "", &mut files)
            .with_context(|| format!("cannot read the sources in {}", kernels.display()))?;
        files.sort();
        Ok(Self(files))
    }

    /// The hash of the sources and of the flags they are compiled with.
    pub(crate) fn sha256(&self, flags: &str) -> String {
        let mut hash = Sha256::new();
        let mut update = |part: &[u8]| {
            // Hash the length too, so that two different lists of parts never hash the same bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        for (path, contents) in &self.0 {
            update(path.as_bytes());
            update(contents);
        }
        update(flags.as_bytes());
        hex(&hash.finalize())
    }

    /// The arrays that `shared_array!` declares.
    pub(crate) fn shared_arrays(&self) -> Vec<SharedArray> {
        self.0
            .iter()
            .flat_map(|(_, contents)| shared_arrays(&String::from_utf8_lossy(contents)))
            .collect()
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn collect(dir: &Path, prefix: &str, files: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    for item in fs::read_dir(dir)? {
        let item = item?;
        let Ok(name) = item.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}{name}");
        if item.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&item.path(), &format!("{path}/"), files)?;
            }
        } else if name.ends_with(".rs") || name == "Cargo.toml" {
            files.push((path, fs::read(item.path())?));
        }
    }
    Ok(())
}

/// An array in shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SharedArray {
    pub(crate) name: String,
    /// Whether the launch determines its length.
    pub(crate) dynamic: bool,
}

fn shared_arrays(source: &str) -> Vec<SharedArray> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    code.split("shared_array! {")
        .skip(1)
        .filter_map(|declaration| {
            let (name, array) = declaration.split_once("fn ")?.1.split_once("() -> [")?;
            let dynamic = !array.split_once(']')?.0.contains(';');
            Some(SharedArray { name: name.to_owned(), dynamic })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let owned = |(path, text): &(&str, &str)| (path.to_string(), text.as_bytes().to_vec());
        Sources(files.iter().map(owned).collect())
    }

    #[test]
    fn the_hash_sees_contents_names_and_flags() {
        let hash = sources(&[("src/lib.rs", "a"), ("src/mse.rs", "b")]).sha256("-O");
        assert_eq!(hash.len(), 64);
        for (files, flags) in [
            ([("src/lib.rs", "a"), ("src/mse.rs", "c")], "-O"),
            ([("src/lib.rs", "a"), ("src/kl.rs", "b")], "-O"),
            ([("src/lib.rs", "asrc/"), ("mse.rs", "b")], "-O"),
            ([("src/lib.rs", "a"), ("src/mse.rs", "b")], "-O3"),
        ] {
            assert_ne!(hash, sources(&files).sha256(flags), "{files:?} {flags}");
        }
    }

    #[test]
    fn sha256_is_sha256() {
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn shared_arrays_are_found_by_name() {
        let source = r"
            //! cuda_std::shared_array! { fn in_a_comment() -> [f64; 1]; }
            cuda_std::shared_array! {
                /// One sum a warp.
                fn warp_sums() -> [f64; 32];
            }
            shared_array! { pub fn flag() -> [u64; 1]; }
            fn other() {}
            shared_array! { fn rest() -> [Vec16]; }
        ";
        let array = |name: &str, dynamic| SharedArray { name: name.to_owned(), dynamic };
        let expected = [array("warp_sums", false), array("flag", false), array("rest", true)];
        assert_eq!(shared_arrays(source), expected);
    }

    #[test]
    fn the_kernels_own_sources_are_found() {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gpu");
        let sources = Sources::read(&kernels).unwrap();
        let paths: Vec<&str> = sources.0.iter().map(|(path, _)| path.as_str()).collect();
        assert!(paths.is_sorted());
        for path in ["Cargo.toml", "src/lib.rs", "cuda_std/src/lib.rs"] {
            assert!(paths.contains(&path), "{path} is not among {paths:?}");
        }
    }
}
