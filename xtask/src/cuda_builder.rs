//! Finds a compiler and compiles the kernels to PTX: what Rust-CUDA's `cuda_builder` does.
//!
//! The `cuda_builder` of crates.io (0.3.0) cannot be used: it needs LLVM 7 and the internals of a
//! nightly of 2021. rustc's own nvptx64 target needs neither. It needs two things that a stable
//! toolchain lacks: `core` compiled for the GPU, hence the source of `core`, and unstable features,
//! hence `RUSTC_BOOTSTRAP`.

use crate::in_path;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xshell::{Cmd, Shell, cmd};

/// The architectures to compile for; each has its directory in host/ptx.
pub(crate) const ARCHS: [&str; 1] = ["sm_80"];
/// The version of PTX. Drivers refuse versions newer than themselves.
pub(crate) const PTX_VERSION: &str = "8.0";
/// LLVM's name for it.
const PTX_FEATURE: &str = "+ptx80";

/// The oldest release whose `core` compiles for nvptx64 and whose LLVM knows what the kernels use.
const OLDEST: Release = (1, 96, 0);

const TARGET: &str = "nvptx64-nvidia-cuda";

/// The profile, as environment variables, so that no manifest or configuration changes it.
const PROFILE: [(&str, &str); 8] = [
    ("OPT_LEVEL", "3"),
    // Without it, panics and unlinked calls stay in the PTX.
    ("LTO", "fat"),
    ("CODEGEN_UNITS", "1"),
    ("PANIC", "abort"),
    // ptxas refuses LLVM's debug information.
    ("DEBUG", "false"),
    ("DEBUG_ASSERTIONS", "false"),
    ("OVERFLOW_CHECKS", "false"),
    ("INCREMENTAL", "false"),
];

const INSTALL_DEBIAN: &str =
    "apt-get update && apt-get install -y --no-install-recommends rustc-web rust-web-src";
const INSTALL_RUSTUP: &str = "rustup toolchain install 1.96.0 --component rust-src";

type Release = (u32, u32, u32);

/// A rustc that can compile the kernels.
pub(crate) struct Compiler {
    rustc: PathBuf,
    cargo: OsString,
    sysroot: PathBuf,
    /// What `rustc -vV` says.
    pub(crate) verbose: String,
}

impl Compiler {
    /// The compiler at `rustc`, or what it lacks.
    fn probe(sh: &Shell, rustc: &Path) -> Result<Self> {
        let verbose =
            clean(cmd!(sh, "{rustc} -vV")).ignore_stderr().read().context("it does not run")?;
        let (major, minor, patch) = release(&verbose)?;
        ensure!(
            (major, minor, patch) >= OLDEST,
            "it is {major}.{minor}.{patch}, older than {}.{}.{}",
            OLDEST.0,
            OLDEST.1,
            OLDEST.2
        );
        let sysroot = PathBuf::from(clean(cmd!(sh, "{rustc} --print sysroot")).read()?);
        let core = library(&sysroot).join("core");
        ensure!(
            core.is_dir(),
            "it lacks the source of `core` in {} (with rustup: `rustup component add rust-src`)",
            core.display()
        );
        Ok(Self { rustc: rustc.to_owned(), cargo: cargo(sh, &sysroot, &verbose), sysroot, verbose })
    }

    /// Its path and release, on one line.
    pub(crate) fn describe(&self) -> String {
        let version = self.verbose.lines().next().unwrap_or_default();
        format!("{}, {version}", self.rustc.display())
    }

    /// Compiles the kernels for `arch` and returns a program of PTX for each of these dtypes. They
    /// are compiled side by side, since LLVM compiles a crate in one thread. Runs in the
    /// workspace's directory.
    pub(crate) fn compile(&self, sh: &Shell, arch: &str, dtypes: &[&str]) -> Result<Vec<String>> {
        let mut compilers = Vec::new();
        for dtype in dtypes {
            let target_dir = format!("target/ptx/{arch}/{dtype}");
            // A relative path, because the arguments are part of the crate's identity, which must
            // not depend on the path of the checkout.
            let output = format!("{target_dir}/kernels.s");
            if !sh.path_exists(&output) {
                // Cargo does not track this file and would not write it again.
                sh.remove_path(&target_dir)?;
                sh.create_dir(&target_dir)?;
            }
            let mut command = self.command(sh, arch, dtype, &target_dir, &output);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            compilers.push((dtype, output, command.spawn().context("cannot run cargo")?));
        }
        // Wait for all before reporting a failure.
        let ended = compilers
            .into_iter()
            .map(|(dtype, output, compiler)| Ok((dtype, output, compiler.wait_with_output()?)))
            .collect::<Result<Vec<_>>>()?;
        let mut programs = Vec::new();
        for (dtype, output, result) in ended {
            let said = String::from_utf8_lossy(&result.stderr);
            ensure!(result.status.success(), "the kernels of {dtype} do not compile:\n{said}");
            programs.push(sh.read_file(&output)?);
        }
        Ok(programs)
    }

    /// The command that compiles the kernels of one dtype to the file `output`.
    fn command(
        &self,
        sh: &Shell,
        arch: &str,
        dtype: &str,
        target_dir: &str,
        output: &str,
    ) -> Command {
        let cargo = &self.cargo;
        let mut build = clean(cmd!(
            sh,
            "{cargo} rustc --locked --manifest-path kernels-gpu/Cargo.toml --release --lib --crate-type cdylib
             -Zbuild-std=core --target {TARGET} --target-dir {target_dir} --
             --cfg one_dtype --cfg {dtype} --emit=asm={output}"
        ))
        .env("RUSTC", &self.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        // Empty values also disable the wrappers of a configuration file.
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "")
        .env("CARGO_BUILD_BUILD_DIR", target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", self.encoded_rustflags(sh, arch))
        // The PTX is the compiler's output; there is nothing to link.
        .env("CARGO_TARGET_NVPTX64_NVIDIA_CUDA_LINKER", "true");
        for (key, value) in PROFILE {
            build = build.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
        }
        build.into()
    }

    /// The flags, and replacements for this machine's paths, in case a panic message names a file.
    fn encoded_rustflags(&self, sh: &Shell, arch: &str) -> OsString {
        let mut flags: Vec<OsString> = rustflags(arch).into_iter().map(Into::into).collect();
        for (path, name) in [(sh.current_dir(), "fused-loss"), (library(&self.sysroot), "library")]
        {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.push(path);
            flag.push("=");
            flag.push(name);
            flags.push(flag);
        }
        flags.join("\x1f".as_ref())
    }
}

/// The flags that change what is compiled, on one line.
pub(crate) fn flags(arch: &str) -> String {
    let mut line = rustflags(arch).join(" ");
    for (key, value) in PROFILE {
        let key = key.to_lowercase().replace('_', "-");
        write!(line, " {key}={value}").expect("a string takes all");
    }
    line
}

fn rustflags(arch: &str) -> [String; 3] {
    [
        format!("-Ctarget-cpu={arch}"),
        format!("-Ctarget-feature={PTX_FEATURE}"),
        // It duplicates barriers: rust-lang/rust#137086.
        "-Zmir-enable-passes=-JumpThreading".to_owned(),
    ]
}

/// The suitable compilers of this machine, best first. The list is empty if there is none and none
/// can be installed, or `install` forbids it. If one is `asked` for, the result is that one or an
/// error.
pub(crate) fn find(sh: &Shell, asked: Option<&Path>, install: bool) -> Result<Vec<Compiler>> {
    if let Some(rustc) = asked {
        // Commands run in the workspace's directory. A bare name is looked for in PATH.
        let rustc = match rustc.components().count() {
            1 if !rustc.exists() => rustc.to_owned(),
            _ => std::path::absolute(rustc)?,
        };
        let compiler = Compiler::probe(sh, &rustc)
            .with_context(|| format!("--rustc {} will not do", rustc.display()))?;
        return Ok(vec![compiler]);
    }
    let found = search(sh);
    if !found.is_empty() || !install {
        return Ok(found);
    }
    if in_path("apt-get").is_none() || cmd!(sh, "id -u").quiet().read().ok().as_deref() != Some("0")
    {
        return Ok(found);
    }
    println!("installing Debian's compiler: {INSTALL_DEBIAN}");
    cmd!(sh, "sh -c {INSTALL_DEBIAN}").env("DEBIAN_FRONTEND", "noninteractive").quiet().run()?;
    Ok(search(sh))
}

/// What to do if [`find`] finds none.
pub(crate) fn how_to_install() -> String {
    format!(
        "a rustc of release {}.{}.{} or newer with the source of its own `core` is needed. Install one:\n  \
         with rustup:  {INSTALL_RUSTUP}\n  \
         on Debian:    {INSTALL_DEBIAN}",
        OLDEST.0, OLDEST.1, OLDEST.2
    )
}

fn search(sh: &Shell) -> Vec<Compiler> {
    let (mut found, mut rejected) = (Vec::<Compiler>::new(), Vec::new());
    for rustc in candidates(sh) {
        match Compiler::probe(sh, &rustc) {
            // rustup's proxy in PATH is one of its toolchains.
            Ok(compiler) if found.iter().any(|one| one.sysroot == compiler.sysroot) => {}
            Ok(compiler) => found.push(compiler),
            Err(why) => rejected.push(format!("{} will not do: {why:#}", rustc.display())),
        }
    }
    if found.is_empty() {
        println!("no compiler for the PTX is here");
        rejected.iter().for_each(|line| println!("{line}"));
    }
    found
}

fn candidates(sh: &Shell) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    if in_path("rustup").is_some() {
        let list = cmd!(sh, "rustup toolchain list").quiet().ignore_stderr();
        for toolchain in toolchains(&list.read().unwrap_or_default()) {
            let which = cmd!(sh, "rustup which --toolchain {toolchain} rustc");
            if let Ok(rustc) = which.quiet().ignore_stderr().read() {
                candidates.push(PathBuf::from(rustc));
            }
        }
    }
    candidates.extend(in_path("rustc"));
    let debian = PathBuf::from("/usr/bin/rustc");
    if debian.is_file() && !candidates.contains(&debian) {
        candidates.push(debian);
    }
    candidates
}

/// The names in `rustup toolchain list`.
fn toolchains(list: &str) -> Vec<&str> {
    list.lines()
        .filter(|line| !line.starts_with("no installed"))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// The release in what `rustc -vV` or `cargo -vV` says.
fn release(verbose: &str) -> Result<Release> {
    let parse = |release: &str| {
        let mut numbers = release.split(['.', '-']).map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??, numbers.next()??))
    };
    match verbose.lines().find_map(|line| line.strip_prefix("release: ")) {
        Some(release) => {
            parse(release.trim()).with_context(|| format!("`{release}` is no release"))
        }
        None => bail!("its `-vV` names no release"),
    }
}

/// The source of the standard library.
fn library(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib/src/rust/library")
}

/// The cargo for the build: the one next to the compiler if it has the same release and so knows
/// the layout of its library, otherwise the one that runs this.
fn cargo(sh: &Shell, sysroot: &Path, rustc: &str) -> OsString {
    let beside = sysroot.join("bin/cargo");
    let same = beside.is_file()
        && clean(cmd!(sh, "{beside} -vV")).read().is_ok_and(|cargo| {
            matches!((release(&cargo), release(rustc)), (Ok(cargo), Ok(rustc)) if cargo == rustc)
        });
    if same { beside.into() } else { env::var_os("CARGO").unwrap_or_else(|| "cargo".into()) }
}

/// A command without environment variables that change how to compile.
fn clean(mut command: Cmd<'_>) -> Cmd<'_> {
    for (key, _) in env::vars_os() {
        if key.to_str().is_some_and(interferes) {
            command = command.env_remove(key);
        }
    }
    // A rustup proxy must not download its toolchain.
    command.env("RUSTUP_AUTO_INSTALL", "0").quiet()
}

fn interferes(key: &str) -> bool {
    const NAMES: [&str; 9] = [
        "RUSTUP_TOOLCHAIN",
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_BOOTSTRAP",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_INCREMENTAL",
        "CARGO_TARGET_DIR",
    ];
    const PREFIXES: [&str; 4] =
        ["CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_UNSTABLE_"];
    NAMES.contains(&key) || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_found_in_what_rustc_says() {
        let debian = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n\
                      binary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.96.0\n\
                      LLVM version: 22.1.8\n";
        assert_eq!(release(debian).unwrap(), (1, 96, 0));
        assert_eq!(release("release: 1.97.2-nightly").unwrap(), (1, 97, 2));
        assert_eq!(release("release: 1.100.0-beta.3").unwrap(), (1, 100, 0));
        assert!(release("rustc 1.96.0").is_err());
        assert!(release("release: new").is_err());
        assert!((1, 100, 0) > OLDEST && (1, 95, 9) < OLDEST);
    }

    #[test]
    fn toolchains_are_found_in_what_rustup_says() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\n1.95.0-x86_64\n";
        assert_eq!(toolchains(list), ["stable-x86_64-unknown-linux-gnu", "1.95.0-x86_64"]);
        assert_eq!(toolchains("no installed toolchains\n"), [""; 0]);
    }

    #[test]
    fn the_environment_does_not_interfere() {
        for key in [
            "RUSTUP_TOOLCHAIN",
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_RUSTFLAGS",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_TARGET_NVPTX64_NVIDIA_CUDA_RUSTFLAGS",
        ] {
            assert!(interferes(key), "{key}");
        }
        for key in ["PATH", "CARGO_HOME", "RUSTUP_HOME", "CARGO_NET_OFFLINE"] {
            assert!(!interferes(key), "{key}");
        }
    }

    #[test]
    fn the_flags_name_all_that_counts() {
        assert_eq!(
            flags("sm_90"),
            "-Ctarget-cpu=sm_90 -Ctarget-feature=+ptx80 -Zmir-enable-passes=-JumpThreading \
             opt-level=3 lto=fat codegen-units=1 panic=abort debug=false debug-assertions=false \
             overflow-checks=false incremental=false"
        );
    }

    #[test]
    fn a_program_that_is_no_compiler_is_refused_with_what_it_lacks() {
        let sh = Shell::new().unwrap();
        let asked = Path::new("/no/such/rustc");
        let why = find(&sh, Some(asked), false).err().unwrap();
        assert_eq!(
            format!("{why:#}").split(": ").next(),
            Some("--rustc /no/such/rustc will not do")
        );
    }
}
