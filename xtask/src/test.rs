//! `cargo xtask test`: everything that must pass before a commit.

use crate::build_ptx::Dtypes;
use crate::{build_ptx, deny, flags, orders, package};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Instant;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, flags: &flags::Test) -> Result<()> {
    let start = Instant::now();

    step("format", || Ok(cmd!(sh, "cargo fmt --all --check").run()?))?;
    let dependencies = step("deny", || deny::check(sh, flags))?;
    step("clippy", || {
        Ok(cmd!(
            sh,
            "cargo clippy --locked --workspace --all-targets --all-features -- -D warnings"
        )
        .run()?)
    })?;
    step("doc", || {
        Ok(cmd!(sh, "cargo doc --locked --workspace --no-deps --all-features")
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()?)
    })?;
    step("doc, as published", || {
        // Without default-off features, as a program gets the library.
        Ok(cmd!(sh, "cargo doc --locked -p fused-loss --no-deps")
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()?)
    })?;
    let ptx = step("build-ptx --check", || {
        let dtypes = if flags.full { Dtypes::All } else { Dtypes::Drawn };
        let compared = build_ptx::check(sh, None, None, !flags.no_install, dtypes)?;
        if flags.require_bytes {
            compared.require_bytes()?;
        }
        println!("compared: {compared}");
        Ok(compared)
    })?;
    // The crate of tests/tests/stranger.rs then uses the packages, as in `cargo xtask package`.
    let packages = step("package", || package::unpack(sh))?;
    step("test", || {
        let full: &[&str] = if flags.full { &["--", "--include-ignored"] } else { &[] };
        let mut test = cmd!(sh, "cargo test --locked --workspace --all-features {full...}")
            .env(package::UNPACKED, packages.path());
        if flags.require_gpu {
            // The tests themselves then refuse the emulator.
            test = test.env("FUSED_LOSS_REQUIRE_GPU", "1");
        }
        Ok(test.run()?)
    })?;
    let device = step("device", || device(sh))?;

    step("orders", || if flags.full { orders::run_all(sh) } else { orders::run_quick(sh) })?;
    step("candle", || candle(sh, flags.full))?;
    step("candle, as published", || package::CANDLE.compile(sh, packages.path()))?;
    step("burn", || burn(sh, flags.full))?;
    if flags.full {
        step("burn, as published", || package::BURN.compile(sh, packages.path()))?;
    }

    println!(
        "\nall passed in {} s: format, {dependencies}, clippy, doc, PTX ({ptx}), packages, {} on \
         {device}",
        start.elapsed().as_secs(),
        if flags.full { "all tests" } else { "tests" },
    );
    Ok(())
}

/// The package for candle, a separate workspace. candle's dependencies, and the kernels again for
/// this workspace, take minutes to compile, so its tests are among the slow ones.
fn candle(sh: &Shell, full: bool) -> Result<()> {
    let _dir = sh.push_dir("candle");
    cmd!(sh, "cargo fmt --check").run()?;
    let target = ["--locked", "--target-dir", "../target/candle", "--features", "emulator"];
    cmd!(sh, "cargo clippy {target...} --all-targets -- -D warnings").run()?;
    cmd!(sh, "cargo doc {target...} --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()?;
    if full {
        cmd!(sh, "cargo test {target...}").run()?;
        // Fails if training differs from training with candle_nn's loss.
        cmd!(sh, "cargo run --quiet {target...} --example train").run()?;
        // The error of a build without kernels for any device.
        let target = &target[..3];
        cmd!(sh, "cargo test {target...} --test without_emulator").run()?;
    }
    Ok(())
}

/// The package for burn, a separate workspace. burn's dependencies take so long to compile that
/// everything except the formatting is among the slow tests.
fn burn(sh: &Shell, full: bool) -> Result<()> {
    let _dir = sh.push_dir("burn");
    cmd!(sh, "cargo fmt --check").run()?;
    if !full {
        println!("formatting alone: --full lints, documents and tests the package");
        return Ok(());
    }
    let target = ["--locked", "--target-dir", "../target/burn"];
    cmd!(sh, "cargo clippy {target...} --all-features --all-targets -- -D warnings").run()?;
    cmd!(sh, "cargo doc {target...} --all-features --no-deps")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    // Without a GPU, the tests of the backend `Cuda` say that they test nothing.
    cmd!(sh, "cargo test {target...} --all-features").run()?;
    // With burn's own losses.
    cmd!(sh, "cargo test {target...} --features ndarray --test losses").run()?;
    Ok(())
}

fn step<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n== {name}");
    let start = Instant::now();
    let result = run().with_context(|| format!("step `{name}` failed"))?;
    println!("== {name}: {} s", start.elapsed().as_secs());
    Ok(result)
}

/// The device that the tests ran on, as the library names it. The first line of the first example,
/// which the tests have compiled, prints it. This is a separate process because the library
/// includes the PTX: if this crate depended on the library, it could not build PTX that the library
/// does not compile with yet.
fn device(sh: &Shell) -> Result<String> {
    let example = "01_loss_and_gradient";
    // For all packages, like the tests, so that nothing is compiled for other features.
    let features = ["--workspace", "--all-features"];
    cmd!(sh, "cargo build --locked --quiet {features...} --example {example}").run()?;
    let target = sh.var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let program = target.join("debug/examples").join(example);
    let said = cmd!(sh, "{program}").read()?;
    let device = said.lines().find_map(|line| line.strip_prefix("device: "));
    let device = device.with_context(|| format!("the example says no device: {said}"))?;
    println!("the tests ran on {device}");
    Ok(device.to_owned())
}
