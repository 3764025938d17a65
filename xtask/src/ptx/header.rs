//! The comment lines at the head of a committed PTX file: what it is and what it was made from.

use crate::sources::sha256;
use anyhow::{Context, Result, bail};
use std::fmt;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The PTX module, e.g. `mse_f32`.
    pub(crate) module: String,
    /// The architecture it was compiled for, e.g. `sm_80`.
    pub(crate) arch: String,
    /// SHA-256 of the kernels' source and the flags.
    pub(crate) source: String,
    /// What `rustc -vV` says.
    pub(crate) rustc: String,
    pub(crate) flags: String,
    /// SHA-256 of what follows the header.
    pub(crate) body: String,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "// fused-loss: the PTX module {}", self.module)?;
        writeln!(f, "// for: {} and newer", self.arch)?;
        writeln!(f, "// made by: cargo xtask build-ptx; do not edit")?;
        writeln!(f, "// source: sha256 {}", self.source)?;
        for line in self.rustc.lines() {
            writeln!(f, "// rustc: {line}")?;
        }
        writeln!(f, "// flags: {}", self.flags)?;
        writeln!(f, "// body: sha256 {}", self.body)?;
        writeln!(f)
    }
}

impl Header {
    /// The header of a file and the rest of it.
    pub(crate) fn parse(file: &str) -> Result<(Self, &str)> {
        let (head, body) = file.split_once("\n\n").context("no header: no empty line ends it")?;
        let field = |key: &str| {
            let of = |line: &str| line.strip_prefix(&format!("// {key}: ")).map(str::to_owned);
            head.lines()
                .find_map(of)
                .with_context(|| format!("no line `// {key}: …` in the header"))
        };
        let strip = |key: &str, before: &str, after: &str| {
            let value = field(key)?;
            let inner = value.strip_prefix(before).and_then(|value| value.strip_suffix(after));
            inner.map(str::to_owned).with_context(|| {
                format!("the header's `// {key}: {value}` is not `{before}…{after}`")
            })
        };
        let rustc: Vec<&str> =
            head.lines().filter_map(|line| line.strip_prefix("// rustc: ")).collect();
        let header = Self {
            module: strip("fused-loss", "the PTX module ", "")?,
            arch: strip("for", "", " and newer")?,
            source: strip("source", "sha256 ", "")?,
            rustc: rustc.join("\n"),
            flags: field("flags")?,
            body: strip("body", "sha256 ", "")?,
        };
        if header.to_string() != format!("{head}\n\n") {
            bail!("the header is not as build-ptx writes it");
        }
        Ok((header, body))
    }

    /// What is stale or edited in a file with this header, against what it should be (of which
    /// `rustc` and `body` are not looked at: another compiler may have made the file, and the hash
    /// must be that of the body it has).
    pub(crate) fn problems(&self, expected: &Header, body: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let body = sha256(body.as_bytes());
        for (what, found, expected) in [
            ("it is the module", &self.module, &expected.module),
            ("it is compiled for", &self.arch, &expected.arch),
            ("it is compiled with", &self.flags, &expected.flags),
            ("stale: the source has changed; its sha256 is", &self.source, &expected.source),
            ("edited by hand: its body's sha256 is", &body, &self.body),
        ] {
            if found != expected {
                problems.push(format!("{what} {found}, expected {expected}"));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = ".version 8.0\n\n.visible .entry f() {}\n";

    fn header() -> Header {
        Header {
            module: "mse_f32".to_owned(),
            arch: "sm_80".to_owned(),
            source: "12ab".to_owned(),
            rustc: "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0".to_owned(),
            flags: "-Ctarget-cpu=sm_80 lto=fat".to_owned(),
            body: sha256(BODY.as_bytes()),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let file = format!("{}{BODY}", header());
        assert_eq!(Header::parse(&file).unwrap(), (header(), BODY));
        assert!(file.lines().take(9).all(|line| line.starts_with("// ")));
        assert!(header().problems(&header(), BODY).is_empty());
    }

    #[test]
    fn a_header_that_lacks_something_is_refused() {
        let head = header().to_string();
        let cut = |line: &str| head.replace(line, "");
        for (head, error) in [
            (String::new(), "no empty line"),
            (cut("// source: sha256 12ab\n"), "no line `// source: …`"),
            (cut("sha256 12ab"), "is not `sha256 …`"),
            (head.replace("// flags", "// a note\n// flags"), "not as build-ptx"),
            (head.replace(" for", " four"), "no line `// for: …`"),
        ] {
            let found = Header::parse(&head).err().unwrap().to_string();
            assert!(found.contains(error), "`{head}` gives `{found}`");
        }
    }

    #[test]
    fn stale_and_edited_files_are_told() {
        type Plant = fn(&mut Header);
        let faults: [(Plant, &str); 4] = [
            (
                |header| header.source = "34cd".to_owned(),
                "stale: the source has changed; its sha256 is 34cd, expected 12ab",
            ),
            (
                |header| header.flags = "-O".to_owned(),
                "it is compiled with -O, expected -Ctarget-cpu=sm_80 lto=fat",
            ),
            (|header| header.arch = "sm_90".to_owned(), "it is compiled for sm_90, expected sm_80"),
            (
                |header| header.module = "mse_f64".to_owned(),
                "it is the module mse_f64, expected mse_f32",
            ),
        ];
        for (plant, problem) in faults {
            let mut found = header();
            plant(&mut found);
            assert_eq!(found.problems(&header(), BODY), [problem]);
        }
        let problems = header().problems(&header(), &BODY.replace("8.0", "8.1"));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("edited by hand"), "{problems:?}");
    }
}
