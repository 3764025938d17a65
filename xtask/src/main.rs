//! The project's tasks. `cargo xtask --help` lists them; each is a module.

mod bench;
mod build_ptx;
mod cuda_builder;
mod demo;
mod deny;
mod flags;
mod fuzz;
mod mutants;
mod orders;
mod package;
mod ptx;
mod ptxas;
mod sanitize;
mod sources;
mod test;

use flags::XtaskCmd;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xshell::Shell;

fn main() -> ExitCode {
    let flags = flags::Xtask::from_env_or_exit();
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        // Printed here, because as `main`'s result it would print a backtrace of this crate if
        // `RUST_BACKTRACE` is set.
        Err(why) => {
            let chain: Vec<String> = why.chain().map(ToString::to_string).collect();
            eprintln!("error: {}", chain.join(":\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(flags: flags::Xtask) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(project_root());
    match flags.subcommand {
        XtaskCmd::BuildPtx(flags) => build_ptx::run(&sh, &flags),
        XtaskCmd::Test(flags) => test::run(&sh, &flags),
        XtaskCmd::Bench(flags) => bench::run(&sh, &flags),
        XtaskCmd::Package(_) => package::run(&sh),
        XtaskCmd::Sanitize(flags) => sanitize::run(&sh, &flags),
        XtaskCmd::Fuzz(flags) => fuzz::run(&sh, &flags),
        XtaskCmd::Mutants(flags) => mutants::run(&sh, &flags),
        XtaskCmd::Orders(flags) => orders::run(&sh, &flags),
        XtaskCmd::Demo(flags) => demo::run(&sh, &flags),
    }
}

/// A number that differs from call to call.
fn new_seed() -> u64 {
    // The keys of the hasher are random.
    RandomState::new().hash_one("seed")
}

/// The workspace's directory. Cargo's variable takes precedence: a copied checkout may share its
/// target directory with the original, whose directory would then be compiled in.
fn project_root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map(Path::to_owned).unwrap_or(xtask)
}

/// The first program of this name in `PATH`.
fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
