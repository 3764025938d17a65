//! `cargo xtask package`: the packages to publish, and a crate outside the workspace that uses
//! them.

use crate::sources::sha256;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The published packages. Each needs the ones before it, all in this version.
const PACKAGES: [&str; 5] = [
    "fused-loss-cuda-std",
    "fused-loss-kernels",
    "fused-loss-emulator",
    "fused-loss-cust",
    "fused-loss",
];
/// A package in a separate workspace. It needs some of [`PACKAGES`], and is published after them.
pub(crate) struct Apart {
    name: &'static str,
    folder: &'static str,
    /// The features that need nothing but Rust to compile.
    features: &'static str,
}
/// Its feature `cuda` needs nvcc.
pub(crate) const CANDLE: Apart =
    Apart { name: "fused-loss-candle", folder: "candle", features: "emulator" };
pub(crate) const BURN: Apart =
    Apart { name: "fused-loss-burn", folder: "burn", features: "cuda,fusion,emulator" };
const APART: [Apart; 2] = [CANDLE, BURN];
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The most bytes that crates.io accepts. The PTX is nearly all of its package.
const MOST_BYTES: u64 = 10 << 20;

/// Tells tests/tests/stranger.rs where the packages are.
pub(crate) const UNPACKED: &str = "FUSED_LOSS_PACKAGES";

pub(crate) fn run(sh: &Shell) -> Result<()> {
    let packages = unpack(sh)?;
    cmd!(sh, "cargo test --locked -p fused-loss-tests --test stranger")
        .env(UNPACKED, packages.path())
        .run()?;
    for apart in &APART {
        apart.compile(sh, packages.path())?;
    }
    for name in all_packages() {
        println!("target/packages/package/{name}-{VERSION}.crate");
    }
    Ok(())
}

/// The names of all packages, in the order of their publication.
fn all_packages() -> impl Iterator<Item = &'static str> {
    PACKAGES.into_iter().chain(APART.iter().map(|apart| apart.name))
}

/// A temporary folder outside the repository, because inside it cargo would find the repository's
/// settings.
pub(crate) struct Unpacked(PathBuf);

impl Unpacked {
    /// The same in every run of one checkout, because cargo would store a build for each other
    /// folder.
    fn new(sh: &Shell) -> Result<Self> {
        let checkout = sha256(sh.current_dir().as_os_str().as_encoded_bytes());
        let path = std::env::temp_dir().join(format!("fused-loss-packages-{}", &checkout[..16]));
        sh.remove_path(&path)?;
        sh.create_dir(&path)?;
        Ok(Unpacked(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Packages all, and unpacks them into a folder outside the repository.
pub(crate) fn unpack(sh: &Shell) -> Result<Unpacked> {
    // The registry does not have these packages yet. To package without it, cargo needs everything
    // that the lock file names.
    cmd!(sh, "cargo fetch --locked").run()?;
    let names = PACKAGES.iter().flat_map(|name| ["-p", name]);
    // The crate outside the workspace verifies them; cargo itself would build them inside the
    // repository.
    cmd!(sh, "cargo package --locked --offline --no-verify --allow-dirty")
        .args(names)
        .args(["--target-dir", "target/packages"])
        .run()?;
    for Apart { folder, .. } in &APART {
        // Without its lock file, which would name packages that the registry does not have yet. So
        // nothing is resolved, and its dependencies need not exist.
        cmd!(sh, "cargo package --locked --offline --no-verify --allow-dirty --exclude-lockfile")
            .arg("--manifest-path")
            .arg(format!("{folder}/Cargo.toml"))
            .args(["--target-dir", "target/packages"])
            .run()?;
    }
    let unpacked = Unpacked::new(sh)?;
    for name in all_packages() {
        let file = format!("target/packages/package/{name}-{VERSION}.crate");
        let bytes = fs::metadata(sh.current_dir().join(&file))?.len();
        ensure!(bytes <= MOST_BYTES, "{file} is {bytes} bytes, expected at most {MOST_BYTES}");
        // Set the files' times to now: all files of a package have the same fixed date, so cargo
        // would not see that they have changed.
        cmd!(sh, "tar -xzmf {file} -C").arg(unpacked.path()).quiet().run()?;
        check(sh, &unpacked.path().join(format!("{name}-{VERSION}")))
            .with_context(|| format!("the package {name} will not do"))?;
    }
    Ok(unpacked)
}

impl Apart {
    /// Compiles the package with the other packages, as it would be published. Not its tests.
    pub(crate) fn compile(&self, sh: &Shell, packages: &Path) -> Result<()> {
        let Apart { name, folder, features } = self;
        let package = packages.join(format!("{name}-{VERSION}"));
        // Use the versions that are already downloaded.
        sh.copy_file(format!("{folder}/Cargo.lock"), package.join("Cargo.lock"))?;
        let manifest = package.join("Cargo.toml");
        let target = sh.current_dir().join("target").join(folder);
        let mut check = cmd!(sh, "cargo check --manifest-path {manifest} --target-dir {target}");
        for name in PACKAGES {
            let path = packages.join(format!("{name}-{VERSION}"));
            check = check.arg("--config").arg(format!("patch.crates-io.{name}.path={path:?}"));
        }
        check.args(["--features", features]).run()?;
        Ok(())
    }
}

/// Fails if an unpacked package lacks a licence or a field that crates.io requires, has a README
/// with broken links, names a path outside of it, allows another version of our packages than its
/// own, or contains files that only benchmarks use.
fn check(sh: &Shell, package: &Path) -> Result<()> {
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let text = sh.read_file(package.join(licence))?;
        ensure!(text.len() > 1000, "{licence} is {} bytes", text.len());
    }
    let readme = sh.read_file(package.join("README.md"))?;
    let links = links_inside(&readme);
    ensure!(links.is_empty(), "its README.md leads to {links:?}, which nobody has beside it");
    let manifest = sh.read_file(package.join("Cargo.toml"))?;
    for field in ["description", "license", "readme"] {
        ensure!(manifest.contains(&format!("\n{field} = ")), "its Cargo.toml has no {field}");
    }
    let outside = paths_outside(&manifest);
    ensure!(outside.is_empty(), "its Cargo.toml names {outside:?}, which nobody has beside it");
    let loose = loose_requirements(&manifest);
    ensure!(loose.is_empty(), "it requires other versions than ={VERSION}: {loose:?}");
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

/// The tables of a packaged manifest that require one of our packages, under its name or another,
/// but allow other versions.
fn loose_requirements(manifest: &str) -> Vec<&str> {
    let exact = format!("\nversion = \"={VERSION}\"\n");
    let is_ours = |table: &&str| {
        table.contains("\npackage = \"fused-loss") || table.starts_with("dependencies.fused-loss")
    };
    manifest.split("\n[").filter(|table| is_ours(table) && !table.contains(&exact)).collect()
}

/// The paths of a packaged manifest that leave the package.
fn paths_outside(manifest: &str) -> Vec<&str> {
    manifest
        .split("path = \"")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('"')?.0))
        .filter(|path| path.starts_with('/') || path.split('/').any(|part| part == ".."))
        .collect()
}

/// The targets of links and images in Markdown that are neither an address nor a heading of the
/// file.
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

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "[a](https://a.example) [b](#b) [c](docs/c.md) ![d](d.svg)";
        assert_eq!(links_inside(text), ["docs/c.md", "d.svg"]);
    }

    #[test]
    fn paths_that_leave_the_package_are_found() {
        let text = "[lib]\npath = \"src/lib.rs\"\n[[test]]\npath = \"../tests/a.rs\"\n\
                    [dependencies.a]\npath = \"/a\"\n";
        assert_eq!(paths_outside(text), ["../tests/a.rs", "/a"]);
    }

    #[test]
    fn a_requirement_that_admits_other_versions_is_found() {
        let table = |version: &str| {
            format!("[dependencies.cust]\nversion = \"{version}\"\npackage = \"fused-loss-cust\"\n")
        };
        assert_eq!(loose_requirements(&table(&format!("={VERSION}"))), [""; 0]);
        assert_eq!(loose_requirements(&table(VERSION)), [table(VERSION)]);
        let named = |version: &str| {
            format!("[package]\n[dependencies.fused-loss]\nversion = \"{version}\"\n")
        };
        assert_eq!(loose_requirements(&named(&format!("={VERSION}"))), [""; 0]);
        assert_eq!(loose_requirements(&named(VERSION)), [&named(VERSION)[11..]]);
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

    #[test]
    fn every_workspace_apart_is_packaged() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = Vec::new();
        for folder in fs::read_dir(root).unwrap() {
            let manifest = fs::read_to_string(folder.unwrap().path().join("Cargo.toml"));
            if let Ok(manifest) = manifest
                && manifest.contains("\n[workspace]\n")
            {
                let name = manifest.split_once("name = \"").unwrap().1.split_once('"').unwrap().0;
                found.push(name.to_owned());
            }
        }
        found.sort();
        let mut expected = APART.map(|apart| apart.name);
        expected.sort();
        assert_eq!(found, expected);
    }
}
