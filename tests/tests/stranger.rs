//! An independent crate that depends on this library and has nothing else in its environment. A
//! program made with it starts without a driver, needs no `libcuda`, and exports no driver function
//! that other libraries in its process could take for the driver's own.

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, Object, ObjectSymbol};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs};

const MANIFEST: &str = r#"
[package]
name = "stranger"
edition = "2024"

[lib]
crate-type = ["cdylib"]

[dependencies]
fused-loss = { path = "HOST" }

[features]
emulator = ["fused-loss/emulator"]

[profile.dev]
debug = false
"#;

/// What the program and the library share: a loss, so that the code that queues it is linked.
const TRAINING: &str = r#"
use fused_loss::{CrossEntropy, Error, Gpu, Tensor};

pub fn train() {
    match run() {
        Ok(loss) => println!("a loss of {loss}"),
        Err(error @ Error::NoDriver { .. }) => println!("{error}"),
        Err(error) => panic!("{error}"),
    }
}

fn run() -> Result<f32, Error> {
    #[cfg(not(feature = "emulator"))]
    let gpu = Gpu::new(0)?;
    #[cfg(feature = "emulator")]
    let gpu = Gpu::emulated(0)?;
    let stream = gpu.stream()?;
    let logits = Tensor::from_slice(&gpu, [1, 2], &[0.5_f32, 1.0])?;
    let classes = Tensor::from_slice(&gpu, [1], &[1_i64])?;
    CrossEntropy::mean().forward(&logits, &classes, &stream)?.item()
}
"#;

const MAIN: &str = r#"
mod training;

fn main() {
    training::train();
}
"#;

const LIB: &str = r#"
mod training;

#[unsafe(no_mangle)]
pub extern "C" fn stranger() {
    training::train();
}
"#;

/// A driver of CUDA 11.4 that has next to nothing.
const OLD_DRIVER: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    unsafe { version.write(11_040) };
    0
}
"#;

/// The directory into which `cargo xtask package` has unpacked the packages that would be
/// published. Without it, the crate uses this repository.
const PACKAGES: &str = "FUSED_LOSS_PACKAGES";

/// The crate, in a directory that is removed with everything in it. There is one at a time, because
/// all builds share a directory.
struct Stranger {
    directory: PathBuf,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Stranger {
    /// Creates the crate outside this repository, because cargo would use the repository's
    /// settings. The path is the same in every run of one target directory, so that cargo does not
    /// keep a build of each run.
    fn new() -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        let _one_at_a_time = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hash = DefaultHasher::new();
        env!("CARGO_TARGET_TMPDIR").hash(&mut hash);
        let path = env::temp_dir().join(format!("fused-loss-stranger-{:016x}", hash.finish()));
        fs::create_dir_all(path.join("src")).unwrap();
        let stranger = Stranger { directory: path, _one_at_a_time };
        stranger.write("Cargo.toml", &manifest());
        stranger.write("src/training.rs", TRAINING);
        stranger.write("src/main.rs", MAIN);
        stranger.write("src/lib.rs", LIB);
        // The versions that this repository uses.
        fs::copy(repository().join("Cargo.lock"), stranger.directory.join("Cargo.lock")).unwrap();
        stranger
    }

    /// Builds the crate and returns the directory with the results.
    #[track_caller]
    fn build(&self, features: &str) -> PathBuf {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stranger");
        printed(
            tool("CARGO", "cargo", self)
                .args(["build", "--offline", "--features", features, "--target-dir"])
                .arg(&target),
        );
        target.join("debug")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).unwrap();
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The manifest, with a path to the library: to a package that names its dependencies by version
/// alone, or to the one in this repository, which names them by path.
fn manifest() -> String {
    let Some(packages) = env::var_os(PACKAGES).map(PathBuf::from) else {
        return MANIFEST.replace("HOST", repository().join("host").to_str().unwrap());
    };
    let path = |name: &str| format!("{}/{name}-{}", packages.display(), env!("CARGO_PKG_VERSION"));
    let mut manifest = MANIFEST.replace("HOST", &path("fused-loss"));
    manifest += "\n[patch.crates-io]\n";
    for name in ["cuda-std", "kernels", "cust", "emulator"] {
        let name = format!("fused-loss-{name}");
        manifest += &format!("{name} = {{ path = {:?} }}\n", path(&name));
    }
    manifest
}

/// A program of the toolchain that runs these tests, with an environment that only locates that
/// toolchain.
fn tool(variable: &str, name: &str, stranger: &Stranger) -> Command {
    let mut tool = Command::new(env::var_os(variable).unwrap_or(name.into()));
    tool.current_dir(&stranger.directory).env_clear();
    for name in ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
        if let Some(value) = env::var_os(name) {
            tool.env(name, value);
        }
    }
    tool
}

/// The output of a command that must succeed.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The libraries that a binary needs when it is loaded.
fn needed(binary: &[u8]) -> Vec<String> {
    let header = FileHeader64::<Endianness>::parse(binary).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, binary).unwrap();
    let (entries, strings) = sections.dynamic(endian, binary).unwrap().expect("a dynamic section");
    let strings = sections.strings(endian, binary, strings).unwrap();
    let needed = entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED));
    needed
        .map(|entry| String::from_utf8_lossy(entry.string(endian, strings).unwrap()).into_owned())
        .collect()
}

/// The functions with names of the driver's that a binary defines or imports.
fn of_the_driver(binary: &[u8]) -> Vec<String> {
    let file = object::File::parse(binary).unwrap();
    assert!(file.symbols().count() > 0, "the binary has its symbols");
    file.symbols()
        .chain(file.dynamic_symbols())
        .map(|symbol| symbol.name().unwrap().to_owned())
        .filter(|name| {
            name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase))
        })
        .collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_strangers_crate_needs_nothing_of_cuda() {
    let stranger = Stranger::new();
    let built = stranger.build("");
    let program = built.join("stranger");
    for path in [&program, &built.join("libstranger.so")] {
        let binary = fs::read(path).unwrap();
        let (needed, functions) = (needed(&binary), of_the_driver(&binary));
        assert!(needed.iter().any(|library| library.starts_with("libc.so")), "{needed:?}");
        assert!(!needed.iter().any(|library| library.contains("cuda")), "{path:?}: {needed:?}");
        assert_eq!(functions, [""; 0], "{path:?}");
    }

    let said = printed(Command::new(&program).env_clear());
    assert!(said.starts_with("a loss of ") || said.starts_with("no NVIDIA driver: "), "{said}");

    // A program finds the driver by name when it runs.
    stranger.write("driver.rs", OLD_DRIVER);
    printed(tool("RUSTC", "rustc", &stranger).args([
        "--crate-type=cdylib",
        "--edition=2024",
        "-o",
        "libcuda.so.1",
        "driver.rs",
    ]));
    let mut functions = of_the_driver(&fs::read(stranger.directory.join("libcuda.so.1")).unwrap());
    functions.sort();
    functions.dedup();
    assert_eq!(functions, ["cuDriverGetVersion", "cuInit"], "the check finds what is there");
    let said =
        printed(Command::new(&program).env_clear().env("LD_LIBRARY_PATH", &stranger.directory));
    let old = "no NVIDIA driver: the driver (CUDA 11.4) is too old: it has no ";
    assert!(said.starts_with(old), "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_strangers_crate_runs_on_the_emulator() {
    let program = Stranger::new().build("emulator").join("stranger");
    // ln(1 + exp(0.5 - 1)).
    let said = printed(Command::new(&program).env_clear());
    assert!(said.starts_with("a loss of 0.47407"), "{said}");
}
