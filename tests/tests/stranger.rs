//! A stranger's crate: it has this library as a dependency and nothing in its environment. What is
//! made with it starts without a driver, needs no `libcuda`, and has no function of the driver's
//! that other libraries of its process could take for the driver's own.

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, Object, ObjectSymbol};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

const MANIFEST: &str = r#"
[package]
name = "stranger"
edition = "2024"

[lib]
crate-type = ["cdylib"]

[dependencies]
fused-loss = { path = "HOST" }

[profile.dev]
debug = false
"#;

/// What both have: a loss, so that what queues it is linked.
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
    let gpu = Gpu::new(0)?;
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

/// A directory that is removed with all that is in it.
struct Directory(PathBuf);

impl Directory {
    /// Outside this repository, whose settings cargo would find. The same in every run of one
    /// target directory: cargo would keep what it builds of each.
    fn new() -> Self {
        let mut hash = DefaultHasher::new();
        env!("CARGO_TARGET_TMPDIR").hash(&mut hash);
        let path = env::temp_dir().join(format!("fused-loss-stranger-{:016x}", hash.finish()));
        fs::create_dir_all(path.join("src")).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program of the toolchain that runs these tests, with nothing in its environment but what finds
/// that toolchain.
fn tool(variable: &str, name: &str, directory: &Directory) -> Command {
    let mut tool = Command::new(env::var_os(variable).unwrap_or(name.into()));
    tool.current_dir(&directory.0).env_clear();
    for name in ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
        if let Some(value) = env::var_os(name) {
            tool.env(name, value);
        }
    }
    tool
}

/// What a command that must succeed has printed.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The libraries that a binary needs to be loaded.
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

/// The functions named as the driver's are that a binary has or wants, exported or not.
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
    let directory = Directory::new();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let host = repository.join("host");
    directory.write("Cargo.toml", &MANIFEST.replace("HOST", host.to_str().unwrap()));
    directory.write("src/training.rs", TRAINING);
    directory.write("src/main.rs", MAIN);
    directory.write("src/lib.rs", LIB);
    // The versions that are there already.
    fs::copy(repository.join("Cargo.lock"), directory.0.join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stranger");
    printed(tool("CARGO", "cargo", &directory).arg("build").arg("--target-dir").arg(&target));

    let program = target.join("debug/stranger");
    for path in [&program, &target.join("debug/libstranger.so")] {
        let binary = fs::read(path).unwrap();
        let (needed, functions) = (needed(&binary), of_the_driver(&binary));
        assert!(needed.iter().any(|library| library.starts_with("libc.so")), "{needed:?}");
        assert!(!needed.iter().any(|library| library.contains("cuda")), "{path:?}: {needed:?}");
        assert_eq!(functions, [""; 0], "{path:?}");
    }

    let said = printed(Command::new(&program).env_clear());
    assert!(said.starts_with("a loss of ") || said.starts_with("no NVIDIA driver: "), "{said}");

    // The driver is looked for by its name, when the program runs.
    directory.write("driver.rs", OLD_DRIVER);
    printed(tool("RUSTC", "rustc", &directory).args([
        "--crate-type=cdylib",
        "--edition=2024",
        "-o",
        "libcuda.so.1",
        "driver.rs",
    ]));
    let mut functions = of_the_driver(&fs::read(directory.0.join("libcuda.so.1")).unwrap());
    functions.sort();
    functions.dedup();
    assert_eq!(functions, ["cuDriverGetVersion", "cuInit"], "the check finds what is there");
    let said = printed(Command::new(&program).env_clear().env("LD_LIBRARY_PATH", &directory.0));
    let old = "no NVIDIA driver: the driver (CUDA 11.4) is too old: it has no ";
    assert!(said.starts_with(old), "{said}");
}
