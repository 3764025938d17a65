//! host/ptx/manifest.txt: the source and the compiler of the committed PTX, and the hash of each
//! module's text.
//!
//! The texts themselves do not contain this. So a change of one kernel changes only the files of
//! the modules that contain it, and one line for each of them here. The hashes are of the texts,
//! because another version of the compressor may change the bytes of the compressed files.

use crate::sources::sha256;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt;

/// The first lines of the file.
const TITLE: &str = "# The PTX beside this file: what it was made from, and the SHA-256 of each text, \
                     decompressed.\n\
                     # Made by: cargo xtask build-ptx; do not edit.\n";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Manifest {
    /// SHA-256 of the kernels' source and the flags.
    pub(crate) source: String,
    /// `kernels_gpu::LAYOUTS`, in hexadecimal: host/build.rs reads it too.
    pub(crate) layouts: String,
    /// What `rustc -vV` says.
    pub(crate) rustc: String,
    /// The flags that the kernels were compiled with, by architecture, e.g. `sm_80`.
    pub(crate) flags: BTreeMap<String, String>,
    /// SHA-256 of each text, by the path of its file without `.zst`, e.g. `sm_80/mse_f32.ptx`.
    pub(crate) files: BTreeMap<String, String>,
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TITLE)?;
        writeln!(f, "source: {}", self.source)?;
        writeln!(f, "layouts: {}", self.layouts)?;
        for line in self.rustc.lines() {
            writeln!(f, "rustc: {line}")?;
        }
        for (arch, flags) in &self.flags {
            writeln!(f, "flags {arch}: {flags}")?;
        }
        for (file, hash) in &self.files {
            writeln!(f, "{file}: {hash}")?;
        }
        Ok(())
    }
}

impl Manifest {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut manifest = Self {
            source: String::new(),
            layouts: String::new(),
            rustc: String::new(),
            flags: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (key, value) =
                line.split_once(": ").with_context(|| format!("`{line}` is not `key: value`"))?;
            match key.split_once(' ') {
                Some(("flags", arch)) => {
                    manifest.flags.insert(arch.to_owned(), value.to_owned());
                }
                _ if key == "source" => manifest.source = value.to_owned(),
                _ if key == "layouts" => manifest.layouts = value.to_owned(),
                _ if key == "rustc" => {
                    let gap = if manifest.rustc.is_empty() { "" } else { "\n" };
                    manifest.rustc += &format!("{gap}{value}");
                }
                _ if key.ends_with(".ptx") => {
                    manifest.files.insert(key.to_owned(), value.to_owned());
                }
                _ => bail!("`{line}` begins with no key that build-ptx writes"),
            }
        }
        // This also refuses a file whose lines are in another order or duplicated.
        if manifest.to_string() != text {
            bail!("it is not as build-ptx writes it");
        }
        Ok(manifest)
    }

    /// What is stale here, compared with what it should be. It ignores the compiler, because
    /// another one may have made the PTX, and the hashes, which [`Self::problem_of`] compares.
    pub(crate) fn problems(&self, expected: &Manifest) -> Vec<String> {
        let mut problems = Vec::new();
        if self.flags != expected.flags {
            let flags = format!("{:?}, expected {:?}", self.flags, expected.flags);
            problems.push(format!("compiled with {flags}"));
        }
        if self.layouts != expected.layouts {
            let (found, expected) = (&self.layouts, &expected.layouts);
            problems
                .push(format!("compiled for the argument layouts {found}, expected {expected}"));
        }
        if self.source != expected.source {
            let (found, expected) = (&self.source, &expected.source);
            problems.push(format!(
                "stale: the source has changed; its sha256 is {expected}, the PTX is of {found}"
            ));
        }
        problems
    }

    /// What is wrong with the file of a module that contains `text`.
    pub(crate) fn problem_of(&self, file: &str, text: &str) -> Option<String> {
        let found = sha256(text.as_bytes());
        match self.files.get(file) {
            None => Some("the manifest does not name it".to_owned()),
            Some(expected) if *expected != found => Some(format!(
                "edited by hand: its text has the sha256 {found}, the manifest has {expected}"
            )),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = ".version 8.0\n\n.visible .entry f() {}\n";
    const FILE: &str = "sm_80/mse_f32.ptx";

    fn manifest() -> Manifest {
        let of = |key: &str, value: String| (key.to_owned(), value);
        Manifest {
            source: "12ab".to_owned(),
            layouts: "90cd".to_owned(),
            rustc: "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0".to_owned(),
            flags: [of("sm_80", "-Ctarget-cpu=sm_80 lto=fat".to_owned())].into(),
            files: [of(FILE, sha256(BODY.as_bytes())), of("sm_80/mse_f64.ptx", "56cd".to_owned())]
                .into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Manifest::parse(&manifest().to_string()).unwrap(), manifest());
        assert_eq!(manifest().problems(&manifest()), [""; 0]);
        assert_eq!(manifest().problem_of(FILE, BODY), None);
    }

    #[test]
    fn a_module_that_changes_changes_one_line() {
        let mut other = manifest();
        other.files.insert(FILE.to_owned(), "78ef".to_owned());
        let (old, new) = (manifest().to_string(), other.to_string());
        let changed = old.lines().zip(new.lines()).filter(|(old, new)| old != new);
        assert_eq!(changed.count(), 1);
        assert_eq!(old.lines().count(), new.lines().count());
    }

    #[test]
    fn a_manifest_that_was_edited_is_refused() {
        let text = manifest().to_string();
        for (text, error) in [
            (String::new(), "not as build-ptx"),
            (text.replace("source: 12ab\n", ""), "not as build-ptx"),
            (text.replace("source: 12ab", "source 12ab"), "is not `key: value`"),
            (text.replace("source", "sauce"), "no key"),
            (text.replace("rustc: release", "# release"), "not as build-ptx"),
            (format!("{text}{FILE}: 78ef\n"), "not as build-ptx"),
        ] {
            let found = Manifest::parse(&text).err().unwrap().to_string();
            assert!(found.contains(error), "`{text}` gives `{found}`");
        }
    }

    #[test]
    fn stale_and_edited_files_are_told() {
        let mut stale = manifest();
        stale.source = "34cd".to_owned();
        let expected = "stale: the source has changed; its sha256 is 12ab, the PTX is of 34cd";
        assert_eq!(stale.problems(&manifest()), [expected]);

        let mut stale = manifest();
        stale.layouts = "34cd".to_owned();
        let expected = "compiled for the argument layouts 34cd, expected 90cd";
        assert_eq!(stale.problems(&manifest()), [expected]);

        let mut other = manifest();
        other.flags.insert("sm_80".to_owned(), "-O".to_owned());
        let [problem] = &other.problems(&manifest())[..] else { panic!("one problem") };
        assert!(problem.starts_with(r#"compiled with {"sm_80": "-O"}, expected "#), "{problem}");

        let edited = manifest().problem_of(FILE, &BODY.replace("8.0", "8.1")).unwrap();
        assert!(edited.starts_with("edited by hand"), "{edited}");
        let unknown = manifest().problem_of("sm_80/huber_f32.ptx", BODY).unwrap();
        assert_eq!(unknown, "the manifest does not name it");
    }
}
