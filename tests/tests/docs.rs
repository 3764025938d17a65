//! The files and tests that the documentation names exist.

use std::fs;
use std::path::Path;

/// The targets of Markdown links, each with the names in backquotes that follow it after a colon.
fn links(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut links = Vec::new();
    for rest in text.split("](").skip(1) {
        let Some((target, behind)) = rest.split_once(')') else { continue };
        let mut names = Vec::new();
        let mut name_and_rest = behind.strip_prefix(": `");
        while let Some((name, rest)) = name_and_rest.and_then(|text| text.split_once('`')) {
            names.push(name);
            name_and_rest = rest.strip_prefix(", `");
        }
        links.push((target, names));
    }
    links
}

#[test]
fn links_lead_to_files_that_hold_what_is_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut wrong = Vec::new();
    for file in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "docs/performance.md",
        "docs/reliability.md",
        "docs/semantics.md",
    ] {
        let path = root.join(file);
        let text = fs::read_to_string(&path).unwrap();
        let all = links(&text);
        for (target, names) in all.iter().filter(|(target, _)| !target.starts_with("https://")) {
            let mut leads_to = path.parent().unwrap().join(target);
            if !leads_to.exists() {
                wrong.push(format!("{file}: {target} is not there"));
                continue;
            }
            if leads_to.join("src").is_dir() {
                leads_to = leads_to.join("src/lib.rs");
            }
            for name in names {
                let word = format!("fn {name}(");
                let found = fs::read_to_string(&leads_to).unwrap();
                // A test that a macro generates appears in the source as its name and a colon.
                if !found.contains(&word) && !found.contains(&format!("{name}:")) {
                    wrong.push(format!("{file}: {target} has no {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_link_is_found_with_the_tests_that_it_names() {
    let text = "[a](a.rs): `b`, `c`; [d](https://d.example), and `e`";
    assert_eq!(links(text), [("a.rs", vec!["b", "c"]), ("https://d.example", vec![])]);
}
