//! `cargo xtask mutants`: plants bugs in a copy of the kernels and runs, for each, the test that
//! must find it on the emulator. [`table`] lists the bugs.

mod plant;
mod report;
mod run;
mod table;

use crate::{flags, sanitize};
use anyhow::{Context, Result, bail, ensure};
use plant::Mutant;
use run::{Conditions, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xshell::{Shell, cmd};

/// The copy of the tree, its target directory, and the output of the last test.
const TREE: &str = "target/mutants/tree";
const TARGET: &str = "target/mutants/target";
const LOG: &str = "target/mutants/log.txt";

/// The folder of the kernels' source files.
const KERNELS: &str = "kernels-gpu/src";

pub(crate) fn run(sh: &Shell, flags: &flags::Mutants) -> Result<()> {
    let start = Instant::now();
    let all = table::all();
    let chosen = chosen(&all, &flags.only)?;
    copy_tree(sh, &all)?;
    let tests: BTreeSet<_> = chosen.iter().map(|&number| all[number].test).collect();
    let binaries = build(sh, &tests)?;
    println!("built in {} s", start.elapsed().as_secs());

    let mut tests = Tests { binaries, limits: BTreeMap::new() };
    let mut results = Vec::new();
    for number in chosen {
        let tried = tests.find(all[number], number)?;
        println!("{}", report::line(&tried));
        results.push(tried);
    }
    println!("\n{}", report::table(&results));
    println!("\n{} in {} s", report::counts(&results), start.elapsed().as_secs());
    let wrong = report::wrong(&results);
    ensure!(wrong.is_empty(), "not as the table of mutants says:\n{}", wrong.join("\n"));
    Ok(())
}

/// The outcome of a mutant's test.
struct Tried<'a> {
    mutant: &'a Mutant,
    outcome: Outcome,
    /// The seed of the last order; `None` for the order of indices.
    seed: Option<u64>,
    took: Duration,
}

/// The tests that should find the mutants.
struct Tests {
    /// By their suites.
    binaries: BTreeMap<&'static str, PathBuf>,
    /// How long each may take in each order.
    limits: BTreeMap<(&'static str, Option<u64>), Duration>,
}

impl Tests {
    /// Runs the test of mutant `number` in the order of indices and, if it passes, in drawn orders.
    /// In these, blocks run side by side that rarely do otherwise.
    fn find<'a>(&mut self, mutant: &'a Mutant, number: usize) -> Result<Tried<'a>> {
        let orders = [None, Some(1), Some(2)];
        let mut took = Duration::ZERO;
        for seed in orders {
            let limit = self.limit(mutant.test, seed)?;
            let conditions = Conditions { mutant: Some(number), seed };
            let (outcome, took_here) = self.run(mutant.test, conditions, limit)?;
            took += took_here;
            if outcome != Outcome::Passed {
                return Ok(Tried { mutant, outcome, seed, took });
            }
        }
        Ok(Tried { mutant, outcome: Outcome::Passed, seed: orders[2], took })
    }

    /// How long a test may take with a mutant: much longer than without one. Without one it must
    /// pass.
    fn limit(&mut self, test: &'static str, seed: Option<u64>) -> Result<Duration> {
        if let Some(&limit) = self.limits.get(&(test, seed)) {
            return Ok(limit);
        }
        let conditions = Conditions { mutant: None, seed };
        let (outcome, took) = self.run(test, conditions, Duration::from_secs(600))?;
        ensure!(outcome == Outcome::Passed, "{test} fails without a mutant: {LOG} has its output");
        let limit = 5 * took + Duration::from_secs(10);
        self.limits.insert((test, seed), limit);
        Ok(limit)
    }

    fn run(
        &self,
        test: &'static str,
        conditions: Conditions,
        limit: Duration,
    ) -> Result<(Outcome, Duration)> {
        let (suite, name) = split(test)?;
        run::test(&self.binaries[suite], name, conditions, limit, Path::new(LOG))
    }
}

/// The numbers of the mutants whose name or file contains one of these parts; all mutants if there
/// are no parts.
fn chosen(all: &[&Mutant], only: &[String]) -> Result<Vec<usize>> {
    let matches = |number: &usize, part: &str| {
        let Mutant { name, file, .. } = all[*number];
        name.contains(part) || file.contains(part)
    };
    for part in only {
        let is_there = (0..all.len()).any(|number| matches(&number, part));
        ensure!(is_there, "--only: no mutant has {part} in its name or its file");
    }
    let is_chosen = |number: &usize| only.iter().any(|part| matches(number, part));
    Ok((0..all.len()).filter(|number| only.is_empty() || is_chosen(number)).collect())
}

/// A test's suite, and its name there.
fn split(test: &'static str) -> Result<(&'static str, &'static str)> {
    test.split_once("::").with_context(|| format!("{test}: expected suite::test"))
}

/// The mutants of each file, with their numbers.
fn by_file<'a>(all: &[&'a Mutant]) -> BTreeMap<String, Vec<(usize, &'a Mutant)>> {
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for (number, &mutant) in all.iter().enumerate() {
        let file = format!("{KERNELS}/{}", mutant.file);
        files.entry(file).or_default().push((number, mutant));
    }
    files
}

/// Copies the tracked files, with all mutants. A file with unchanged text is not written, so that
/// cargo builds only what has changed.
fn copy_tree(sh: &Shell, all: &[&Mutant]) -> Result<()> {
    let mut mutants = by_file(all);
    let (root, tree) = (sh.current_dir(), sh.current_dir().join(TREE));
    let mut copied = BTreeSet::new();
    for file in cmd!(sh, "git ls-files").read()?.lines() {
        let Ok(mut bytes) = fs::read(root.join(file)) else { continue };
        if let Some(mutants) = mutants.remove(file) {
            bytes = plant::plant(&String::from_utf8(bytes)?, &mutants)?.into_bytes();
        }
        if file == format!("{KERNELS}/lib.rs") {
            bytes = plant::with_switch(&String::from_utf8(bytes)?).into_bytes();
        }
        let to = tree.join(file);
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            sh.write_file(&to, bytes)?;
        }
        copied.insert(to);
    }
    if let Some((file, mutants)) = mutants.first_key_value() {
        bail!("mutant {}: there is no file {file}", mutants[0].1.name);
    }
    remove_others(&tree, &copied)
}

/// Removes files that were copied before and are no longer tracked.
fn remove_others(folder: &Path, copied: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, copied)?;
        } else if !copied.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The test binaries, by suite.
fn build(sh: &Shell, tests: &BTreeSet<&'static str>) -> Result<BTreeMap<&'static str, PathBuf>> {
    let suites = tests.iter().map(|&test| Ok(split(test)?.0)).collect::<Result<BTreeSet<_>>>()?;
    let suites: Vec<_> = suites.into_iter().collect();
    let target_of = |&suite: &&str| match suite {
        sanitize::LIBRARY => "--lib".to_owned(),
        file => format!("--test={file}"),
    };
    let targets: Vec<_> = suites.iter().map(target_of).collect();
    let target = sh.current_dir().join(TARGET);
    let _dir = sh.push_dir(TREE);
    let build =
        cmd!(sh, "cargo test --locked -p fused-loss -p fused-loss-tests {targets...} --no-run")
            .args(["--features", "fused-loss/emulator"])
            .args(["--message-format", "json-render-diagnostics"])
            .env("CARGO_TARGET_DIR", target);
    let messages = build.read().context("the kernels do not compile with all mutants")?;
    let files = sanitize::executables(&messages).map(PathBuf::from).collect();
    sanitize::find_binaries(files, &suites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_mutant_each() {
        let all = table::all();
        let names: BTreeSet<_> = all.iter().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), all.len());
    }

    /// If a kernel changes and the table does not, this test fails, not only the next run of all
    /// mutants.
    #[test]
    fn the_table_fits_the_kernels() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (file, mutants) in by_file(&table::all()) {
            plant::plant(&fs::read_to_string(root.join(file)).unwrap(), &mutants).unwrap();
        }
    }

    #[test]
    fn tests_are_named_with_their_suite() {
        for mutant in table::all() {
            split(mutant.test).unwrap();
        }
        assert!(split("mse").is_err());
    }

    #[test]
    fn mutants_are_chosen_by_parts_of_their_names_and_files() {
        let all = table::all();
        let chosen = |part: &str| chosen(&all, &[part.to_owned()]);
        assert_eq!(chosen(all[3].name).unwrap(), [3]);
        let file = "reduce/last_block.rs";
        let of_file = chosen("last_block.rs").unwrap();
        assert!(!of_file.is_empty() && of_file.iter().all(|&one| all[one].file == file));
        let error = chosen("nobody").unwrap_err().to_string();
        assert_eq!(error, "--only: no mutant has nobody in its name or its file");
        assert_eq!(super::chosen(&all, &[]).unwrap().len(), all.len());
    }
}
