//! The public API in one list, data/api.txt, so that a review shows every change to it.
//!
//! The list comes from the source in rustfmt's layout: `pub` items, the members of public traits
//! and enums, and implementations. `FUSED_LOSS_WRITE_API=1 cargo test -p fused-loss-tests --test
//! api` writes it anew.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

/// Adds the items of a file or of all files in a directory, without their tests.
fn read(path: &Path, items: &mut Vec<String>) {
    if path.file_stem().is_some_and(|name| name == "tests") {
        return;
    }
    if path.is_dir() {
        let mut paths: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().for_each(|path| read(path, items));
        return;
    }
    items.extend(public(&fs::read_to_string(path).unwrap()));
}

/// The public items of a source, each after the head of the block that contains it.
fn public(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let code = code.split("#[cfg(all(test, ").next().unwrap();
    let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//")).peekable();
    let (mut items, mut attributes) = (Vec::new(), Vec::new());
    // The heads of the enclosing blocks, and the indentation of each.
    let mut around: Vec<(usize, String)> = Vec::new();
    while let Some(line) = lines.next() {
        let (text, indent) = (line.trim(), line.len() - line.trim_start().len());
        if text.starts_with("#[") {
            let mut last = text;
            while !last.ends_with(']') {
                last = lines.next().expect("an attribute has an end").trim();
            }
            attributes.push(text.to_owned());
            continue;
        }
        let attributes = std::mem::take(&mut attributes);
        if text.is_empty() {
            continue;
        }
        around.retain(|&(of, _)| of < indent);
        let is_public = text.starts_with("pub ");
        let is_impl = text.starts_with("impl") && text[4..].starts_with([' ', '<']);
        let is_of_public = around.last().is_some_and(|(_, head)| {
            head.starts_with("pub trait ")
                || head.starts_with("pub enum ")
                || head.starts_with("variant ")
        }) && !text.starts_with(['}', ')']);
        if !is_public && !is_impl && !is_of_public {
            continue;
        }
        // The whole head of an item: up to its block or to its end.
        let mut head = text.to_owned();
        let is_field = !head.contains(" fn ") && !is_impl && head.ends_with(',');
        while !is_field && !head.ends_with(['{', ';', '}']) {
            let Some(next) = lines.next() else { break };
            head = format!("{head} {}", next.trim());
        }
        let opens = head.ends_with('{');
        let head = head.trim_end_matches(['{', ';', ',']).trim_end();
        let head = head.replace("( ", "(").replace(", )", ")").replace(", >", ">");
        let marks = attributes.iter().filter(|attribute| {
            let kept = ["#[derive", "#[non_exhaustive", "#[must_use", "#[cfg", "#[doc(hidden"];
            kept.iter().any(|kept| attribute.starts_with(kept))
        });
        let marks: String = marks.map(|mark| format!("{mark} ")).collect();
        let path: String = around.iter().map(|(_, head)| format!("{head} :: ")).collect();
        if !is_impl || head.contains(" for ") && !head.contains("Drop for ") {
            items.push(format!("{path}{marks}{head}"));
        }
        if opens {
            let is_variant = is_of_public && !is_public && !head.contains("fn ");
            let name = if is_variant { format!("variant {head}") } else { head };
            around.push((indent, name));
        }
    }
    items
}

#[test]
fn the_public_face_is_as_listed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut items = Vec::new();
    read(&here.join("../host/src"), &mut items);
    items.sort();
    let (now, file) = (items.join("\n") + "\n", here.join("data/api.txt"));
    if env::var_os("FUSED_LOSS_WRITE_API").is_some() {
        fs::write(&file, &now).unwrap();
    }
    let listed = fs::read_to_string(&file).unwrap();
    let (before, after): (BTreeSet<_>, BTreeSet<_>) =
        (listed.lines().collect(), now.lines().collect());
    let gone = before.difference(&after).map(|item| format!("- {item}\n"));
    let new = after.difference(&before).map(|item| format!("+ {item}\n"));
    let changes: String = gone.chain(new).collect();
    assert!(
        changes.is_empty() && listed == now,
        "the public face is not what {} lists; if it should be so, say so in CHANGELOG.md, and \
         write the list anew with FUSED_LOSS_WRITE_API=1:\n{changes}",
        file.display()
    );
}

#[test]
fn what_is_public_is_found() {
    let source = "\
use crate::error::Result;

/// A thing.
#[derive(Clone)]
#[error(
    \"no\"
)]
#[non_exhaustive]
pub struct Thing<T> {
    /// Its size.
    pub size: usize,
    hidden: T,
}

impl<T> Thing<T> {
    pub fn of(
        size: usize,
        value: T,
    ) -> Result<Self> {
        let size = size;
    }

    pub(crate) fn inner(&self) {}
}

pub enum Kind {
    One,
    Other {
        why: String,
    },
}

pub trait Do {
    type Out;
    fn run(&self) -> Self::Out;
}

impl Do for Kind {
    fn run(&self) {}
}

#[cfg(test)]
mod tests {
    pub fn no() {}
}
";
    assert_eq!(
        public(source),
        [
            "#[derive(Clone)] #[non_exhaustive] pub struct Thing<T>",
            "pub struct Thing<T> :: pub size: usize",
            "impl<T> Thing<T> :: pub fn of(size: usize, value: T) -> Result<Self>",
            "pub enum Kind",
            "pub enum Kind :: One",
            "pub enum Kind :: Other",
            "pub enum Kind :: variant Other :: why: String",
            "pub trait Do",
            "pub trait Do :: type Out",
            "pub trait Do :: fn run(&self) -> Self::Out",
            "impl Do for Kind",
        ]
    );
}
