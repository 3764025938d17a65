//! Modules use each other in one direction, so there is an order in which to read them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Adds the modules that a file, or each file in a directory, uses outside its tests.
fn read(path: &Path, uses: &mut BTreeSet<String>) {
    if path.file_stem().is_some_and(|name| name == "tests") {
        return;
    }
    if path.is_dir() {
        for item in fs::read_dir(path).unwrap() {
            read(&item.unwrap().path(), uses);
        }
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let code = code.split("#[cfg(all(test, feature = \"emulator\"))]").next().unwrap();
    assert!(!code.contains("crate::{"), "{}: a line each, to be read here", path.display());
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for used in line.split("crate::").skip(1) {
            let end = used.find(|char: char| !char.is_alphanumeric() && char != '_');
            uses.insert(used[..end.unwrap_or(used.len())].to_owned());
        }
    }
}

/// The modules of a crate, and the modules that each of them uses.
fn graph(package: &str) -> Graph {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(package).join("src");
    let mut graph = Graph::new();
    for item in fs::read_dir(source).unwrap() {
        let path = item.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["lib", "tests"].contains(&&*name) {
            read(&path, graph.entry(name).or_default());
        }
    }
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for (module, uses) in &mut graph {
        uses.retain(|used| used != module && modules.contains(used));
    }
    graph
}

/// The modules in cycles and those that use them: what remains after modules that use no other
/// remaining module are removed one by one.
fn circles(mut graph: Graph) -> Graph {
    while let Some(free) = graph.iter().find(|(_, uses)| uses.is_empty()) {
        let free = free.0.clone();
        graph.remove(&free);
        graph.values_mut().for_each(|uses| _ = uses.remove(&free));
    }
    graph
}

#[test]
fn modules_use_each_other_in_one_direction() {
    for package in ["host", "kernels-gpu", "emulator"] {
        let circles = circles(graph(package));
        assert!(circles.is_empty(), "{package}: modules use each other in a circle: {circles:?}");
    }
}

#[test]
fn a_circle_is_found() {
    let of = |pairs: &[(&str, &[&str])]| -> Graph {
        let uses = |uses: &[&str]| uses.iter().map(|used| (*used).to_owned()).collect();
        pairs.iter().map(|(name, of)| ((*name).to_owned(), uses(of))).collect()
    };
    assert!(circles(of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    assert_eq!(circles(of(&[("a", &["b"]), ("b", &["a"]), ("c", &[])])).len(), 2);
}
