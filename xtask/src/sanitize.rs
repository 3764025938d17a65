//! `cargo xtask sanitize`: runs the tests on a GPU under NVIDIA's compute-sanitizer, which checks
//! every access and barrier of the compiled kernels, as the emulator does for their source.

mod report;

use crate::{flags, in_path};
use anyhow::{Context, Result, bail, ensure};
use report::Report;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xshell::{Shell, cmd};

const SANITIZER: &str = "compute-sanitizer";

/// The sanitizer's tools. They find accesses outside of memory; races in shared memory; barriers
/// that not all threads reach; and reads of global memory that nothing has written.
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];

/// The suite of the library's own tests.
pub(crate) const LIBRARY: &str = "fused_loss";

/// The suites that run kernels, by the names of their binaries: the library's own tests, and files
/// in tests/tests.
const SUITES: [&str; 27] = [
    LIBRARY,
    "bce",
    "concurrency",
    "cross_entropy",
    "cudarc",
    "elementwise",
    "errors",
    "face",
    "float64_rows",
    "fuzz",
    "golden",
    "graphs",
    "grids",
    "indexed_rows",
    "kl_div",
    "lane_rows",
    "large",
    "log_prob",
    "log_prob_edges",
    "mse",
    "options",
    "split_rows",
    "staged_targets",
    "stress",
    "tiled_rows",
    "uncounted_rows",
    "warp_rows",
];

pub(crate) fn run(sh: &Shell, flags: &flags::Sanitize) -> Result<()> {
    let tools = chosen("--tool", &TOOLS, &flags.tool)?;
    let suites = chosen("--test", &SUITES, &flags.test)?;
    let sanitizer = find_sanitizer()?;
    ensure!(
        has_gpu(Path::new("/dev")),
        "no GPU: neither /dev/nvidia0 or another of its kind nor /dev/dxg is here, and \
         {SANITIZER} watches kernels on a GPU alone"
    );
    let files = match &flags.binaries {
        Some(folder) => files_of(folder)?,
        None => build(sh, &suites)?,
    };
    let binaries = find_binaries(files, &suites)?;

    let mut results = BTreeMap::new();
    for &tool in &tools {
        for (&suite, binary) in &binaries {
            println!("{tool}: {suite}");
            let report = sanitize(&sanitizer, tool, binary)
                .with_context(|| format!("{tool} of {suite} has no result"))?;
            if let Some(output) = report.failure() {
                println!("{output}");
            }
            results.insert((suite, tool), report);
        }
    }
    println!("\n{}", table(&tools, &suites, &results));
    let failed: Vec<_> = results
        .iter()
        .filter(|(_, report)| report.failure().is_some())
        .map(|((suite, tool), _)| format!("{tool} of {suite}"))
        .collect();
    ensure!(failed.is_empty(), "reports or failed tests: {}", failed.join(", "));
    Ok(())
}

/// The wanted elements of `known`, or all if none is named.
fn chosen(option: &str, known: &[&'static str], wanted: &[String]) -> Result<Vec<&'static str>> {
    for name in wanted {
        let list = known.join(", ");
        ensure!(known.contains(&name.as_str()), "{option}: expected one of {list}, got {name}");
    }
    let is_wanted = |name: &&str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    Ok(known.iter().copied().filter(is_wanted).collect())
}

/// The sanitizer in `PATH`, or else in a CUDA toolkit.
fn find_sanitizer() -> Result<PathBuf> {
    let toolkits =
        [std::env::var_os("CUDA_HOME").map(PathBuf::from), Some("/usr/local/cuda".into())];
    let in_toolkit = |toolkit: PathBuf| toolkit.join("bin").join(SANITIZER);
    in_path(SANITIZER)
        .or_else(|| toolkits.into_iter().flatten().map(in_toolkit).find(|file| file.is_file()))
        .with_context(|| {
            format!(
                "no {SANITIZER} in PATH, CUDA_HOME/bin or /usr/local/cuda/bin; it comes with the \
                 CUDA toolkit"
            )
        })
}

/// Whether the device file of an NVIDIA GPU exists, or the one through which WSL reaches a GPU.
fn has_gpu(devices: &Path) -> bool {
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        name == "dxg" || number.parse::<u32>().is_ok()
    };
    let names = fs::read_dir(devices).into_iter().flatten().flatten();
    names.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_gpu))
}

/// Builds the test binaries of these suites.
fn build(sh: &Shell, suites: &[&str]) -> Result<Vec<PathBuf>> {
    let target = |&suite: &&str| match suite {
        LIBRARY => "--lib".to_owned(),
        file => format!("--test={file}"),
    };
    let mut targets = vec!["-p=fused-loss".to_owned(), "-p=fused-loss-tests".to_owned()];
    targets.extend(suites.iter().map(target));
    let build = cmd!(sh, "cargo test --locked {targets...} --all-features --no-run");
    let messages = build.args(["--message-format", "json"]).read()?;
    Ok(executables(&messages).map(PathBuf::from).collect())
}

/// The executables that cargo's messages name, one JSON object per line.
pub(crate) fn executables(messages: &str) -> impl Iterator<Item = &str> {
    messages.lines().filter_map(|message| {
        let (_, rest) = message.split_once("\"executable\":\"")?;
        Some(rest.split_once('"')?.0)
    })
}

/// The files of a folder of test binaries.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("--binaries {}: expected a folder", folder.display()))?;
    let paths = entries.map(|entry| Ok(std::path::absolute(entry?.path())?));
    paths.filter(|path| path.as_ref().map_or(true, |path| path.is_file())).collect()
}

/// The binary of each suite among the files that cargo has named: the suite, a hyphen and a hash. A
/// file may have been removed meanwhile.
pub(crate) fn find_binaries(
    files: Vec<PathBuf>,
    suites: &[&'static str],
) -> Result<BTreeMap<&'static str, PathBuf>> {
    let is_of = |suite: &str, file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rest = name.strip_prefix(suite);
        let is_hash = |hash: &str| hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit());
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(is_hash))
    };
    let mut binaries = BTreeMap::new();
    for &suite in suites {
        let mut found = files.iter().filter(|file| is_of(suite, file));
        match (found.next(), found.next()) {
            (Some(file), None) => binaries.insert(suite, file.clone()),
            (None, _) => bail!("{suite}: expected a test binary of this name, got none"),
            (Some(one), Some(other)) => bail!(
                "{suite}: expected one test binary, got {} and {}",
                one.display(),
                other.display()
            ),
        };
    }
    Ok(binaries)
}

/// Runs a test binary under one of the tools.
fn sanitize(sanitizer: &Path, tool: &str, binary: &Path) -> Result<Report> {
    let mut command = Command::new(sanitizer);
    command
        .args(["--tool", tool, "--target-processes", "application-only"])
        // Tests provoke calls that the driver refuses.
        .args(["--report-api-errors", "no"])
        .arg(binary)
        // If tests launch kernels at the same time, racecheck may fail to track one.
        .args(["--test-threads", "1"])
        // Tests refuse the emulator with this variable, because the sanitizer would see nothing of
        // it.
        .env("FUSED_LOSS_REQUIRE_GPU", "1")
        // Tests start no new processes with this variable, because the tool would not watch them.
        .env("FUSED_LOSS_TEST_APART", "all");
    if tool == "racecheck" {
        // Tests that launch kernels thousands of times from many threads do so only a few times
        // with this variable.
        command.env("FUSED_LOSS_TEST_BRIEFLY", "1");
    }
    let output = command.output().with_context(|| format!("cannot run {}", sanitizer.display()))?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Report::parse(tool, &text.concat(), output.status.success())
}

/// A line for each suite, and a column for each tool.
fn table(
    tools: &[&str],
    suites: &[&'static str],
    results: &BTreeMap<(&'static str, &'static str), Report>,
) -> String {
    let cell = |suite, tool| {
        let report: Option<&Report> = results.get(&(suite, tool));
        report.map_or("not run".to_owned(), ToString::to_string)
    };
    let mut rows = vec![[&["suite"], tools].concat().iter().map(ToString::to_string).collect()];
    for &suite in suites {
        let cells = tools.iter().map(|tool| cell(suite, tool));
        rows.push([suite.to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    let widths: Vec<_> = (0..=tools.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Suites of tests/tests that run no kernel on a GPU.
    const WITHOUT_GPU: [&str; 9] = [
        "api",
        "bench_document",
        "bench_landscape",
        "bench_results",
        "docs",
        "emulated",
        "faults",
        "modules",
        "stranger",
    ];

    #[test]
    fn every_suite_is_sanitized_or_runs_no_kernel() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/tests");
        let mut there: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        there.push(LIBRARY.to_owned());
        there.sort();
        let mut listed = [&SUITES[..], &WITHOUT_GPU].concat();
        listed.sort();
        assert_eq!(there, listed);
    }

    #[test]
    fn all_or_what_is_named() {
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            chosen("--tool", &TOOLS, &names)
        };
        assert_eq!(named(&[]).unwrap(), TOOLS);
        assert_eq!(named(&["initcheck", "memcheck"]).unwrap(), ["memcheck", "initcheck"]);
        assert_eq!(
            named(&["leakcheck"]).unwrap_err().to_string(),
            "--tool: expected one of memcheck, racecheck, synccheck, initcheck, got leakcheck"
        );
    }

    #[test]
    fn binaries_are_found_by_cargos_names_or_without_the_hash() {
        let find = |files: &[&str]| {
            let files = files.iter().map(PathBuf::from).collect();
            find_binaries(files, &["mse", "large"]).map_err(|error| error.to_string())
        };
        let found = find(&["/d/mse-0123456789abcdef", "/d/mse-0123456789abcdef.d", "/d/large"]);
        assert_eq!(found.unwrap()["mse"], Path::new("/d/mse-0123456789abcdef"));
        assert_eq!(
            find(&["/d/mse", "/d/larger"]).unwrap_err(),
            "large: expected a test binary of this name, got none"
        );
        assert_eq!(
            find(&["/d/mse", "/d/mse-0123456789abcdef", "/d/large"]).unwrap_err(),
            "mse: expected one test binary, got /d/mse and /d/mse-0123456789abcdef"
        );
    }

    #[test]
    fn cargo_names_the_executables() {
        let messages = "\
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"half\"},\"executable\":null}
{\"reason\":\"compiler-artifact\",\"executable\":\"/d/mse-01\",\"fresh\":true}
{\"reason\":\"build-finished\",\"success\":true}";
        assert_eq!(executables(messages).collect::<Vec<_>>(), ["/d/mse-01"]);
    }

    #[test]
    fn a_gpu_is_known_by_its_device_file() {
        let folder =
            std::env::temp_dir().join(format!("fused-loss-devices-{}", std::process::id()));
        let has_gpu_among = |names: &[&str]| {
            fs::create_dir_all(&folder).unwrap();
            names.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
            let has = has_gpu(&folder);
            fs::remove_dir_all(&folder).unwrap();
            has
        };
        assert!(!has_gpu_among(&["null", "nvidiactl", "nvidia-uvm"]));
        assert!(has_gpu_among(&["null", "nvidia3"]));
        assert!(has_gpu_among(&["dxg"]));
    }

    #[test]
    fn a_line_for_each_suite() {
        let clean = |summary: &str, tool| {
            let output = format!("test result: ok. 12 passed; 0 failed;\n========= {summary}\n");
            Report::parse(tool, &output, true).unwrap()
        };
        let results = BTreeMap::from([
            (("mse", "memcheck"), clean("ERROR SUMMARY: 0 errors", "memcheck")),
            (("mse", "racecheck"), clean("RACECHECK SUMMARY: 3 hazards displayed", "racecheck")),
        ]);
        let expected = "\
suite  memcheck             racecheck
mse    12 tests, 0 reports  12 tests, 3 reports";
        assert_eq!(table(&["memcheck", "racecheck"], &["mse"], &results), expected);
    }
}
