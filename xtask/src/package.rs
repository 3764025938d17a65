//! `cargo xtask package`: what would be published, and a stranger's crate that uses it.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use xshell::{Shell, TempDir, cmd};

/// What is published: each needs the ones before it, all of this version.
const PACKAGES: [&str; 5] = [
    "fused-loss-cuda-std",
    "fused-loss-kernels",
    "fused-loss-emulator",
    "fused-loss-cust",
    "fused-loss",
];
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Tells tests/tests/stranger.rs where the packages are.
pub(crate) const UNPACKED: &str = "FUSED_LOSS_PACKAGES";

pub(crate) fn run(sh: &Shell) -> Result<()> {
    let packages = unpack(sh)?;
    cmd!(sh, "cargo test --locked -p fused-loss-tests --test stranger")
        .env(UNPACKED, packages.path())
        .run()?;
    for name in PACKAGES {
        println!("target/packages/package/{name}-{VERSION}.crate");
    }
    Ok(())
}

/// Packages all, and unpacks them into a folder outside the repository, which goes away with what
/// is returned.
pub(crate) fn unpack(sh: &Shell) -> Result<TempDir> {
    let names = PACKAGES.iter().flat_map(|name| ["-p", name]);
    // The stranger's crate verifies them: what cargo would build lies inside the repository.
    cmd!(sh, "cargo package --locked --offline --no-verify --allow-dirty")
        .args(names)
        .args(["--target-dir", "target/packages"])
        .run()?;
    let unpacked = sh.create_temp_dir()?;
    for name in PACKAGES {
        let file = format!("target/packages/package/{name}-{VERSION}.crate");
        cmd!(sh, "tar -xzf {file} -C").arg(unpacked.path()).quiet().run()?;
        check(sh, &unpacked.path().join(format!("{name}-{VERSION}")))
            .with_context(|| format!("the package {name} will not do"))?;
    }
    Ok(unpacked)
}

/// Fails where an unpacked package lacks a licence, has a README that leads nowhere, or holds what
/// only benchmarks use.
fn check(sh: &Shell, package: &Path) -> Result<()> {
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let text = sh.read_file(package.join(licence))?;
        ensure!(text.len() > 1000, "{licence} is {} bytes", text.len());
    }
    let readme = sh.read_file(package.join("README.md"))?;
    let links = links_inside(&readme);
    ensure!(links.is_empty(), "its README.md leads to {links:?}, which nobody has beside it");
    if package.join("ptx").exists() {
        let mut archs = sh.read_dir(package.join("ptx"))?;
        archs.retain(|path| path.is_dir());
        for arch in archs {
            let files = sh.read_dir(&arch)?;
            ensure!(!files.is_empty(), "{} is empty", arch.display());
            let bench = |file: &&PathBuf| {
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ceiling"))
            };
            if let Some(file) = files.iter().find(bench) {
                bail!("{} is for benchmarks alone", file.display());
            }
        }
    }
    Ok(())
}

/// The targets of links and pictures in Markdown that are no address and no heading of it.
fn links_inside(markdown: &str) -> Vec<&str> {
    markdown
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .filter(|target| !target.starts_with("https://") && !target.starts_with('#'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "[a](https://a.example) [b](#b) [c](docs/c.md) ![d](d.svg)";
        assert_eq!(links_inside(text), ["docs/c.md", "d.svg"]);
    }

    #[test]
    fn every_member_is_published_or_says_that_it_is_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        let members = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
        let mut published = Vec::new();
        for member in members.split('"').skip(1).step_by(2) {
            let manifest = fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
            if !manifest.contains("\npublish = false\n") {
                let name = manifest.split_once("name = \"").unwrap().1.split_once('"').unwrap().0;
                published.push(name.to_owned());
            }
        }
        published.sort();
        let mut expected = PACKAGES;
        expected.sort();
        assert_eq!(published, expected);
    }
}
