//! The text of PTX: its items, and modules with some of its entries.
//!
//! rustc writes all kernels of a dtype as one PTX program. Every module of the kernel table, which
//! is a loss in one dtype, gets its own text with what its entries refer to and nothing else. The
//! driver compiles everything that it gets. So the host passes it a single entry, after the part of
//! the text that precedes the entries.

pub(crate) mod check;
pub(crate) mod file;
pub(crate) mod manifest;

use anyhow::{Context, Result, bail, ensure};
use kernels_gpu::Entry;
use kernels_gpu::abi::WAITS;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A PTX program as text in pieces.
pub(crate) struct Program {
    pub(crate) version: String,
    pub(crate) target: String,
    pub(crate) address_size: String,
    /// In the order of the text. A declaration and its definition are two items with the same name.
    pub(crate) items: Vec<Item>,
}

/// One declaration or definition at the level of the module.
pub(crate) struct Item {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// From its first directive to its `;` or `}`.
    pub(crate) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A kernel.
    Entry,
    /// A function that kernels call.
    Func,
    /// `.shared`, `.global`, `.const`.
    Variable,
}

impl Program {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let code = code(text)?;
        let mut program = Program {
            version: String::new(),
            target: String::new(),
            address_size: String::new(),
            items: Vec::new(),
        };
        let mut at = 0;
        loop {
            at += code[at..].len() - code[at..].trim_start().len();
            let rest = &code[at..];
            let Some(directive) = words(rest).next() else {
                ensure!(rest.is_empty(), "not PTX: `{}`", first_line(rest));
                break;
            };
            let line = first_line(rest);
            let end = match directive {
                ".version" | ".target" | ".address_size" => {
                    let value = line[directive.len()..].trim().to_owned();
                    match directive {
                        ".version" => program.version = value,
                        ".target" => program.target = value,
                        _ => program.address_size = value,
                    }
                    line.len()
                }
                ".visible" | ".extern" | ".weak" | ".common" | ".entry" | ".func" | ".shared"
                | ".global" | ".const" => {
                    let (kind, end) = extent(rest)
                        .with_context(|| format!("no end of what begins with `{line}`"))?;
                    program.items.push(Item {
                        kind,
                        name: name(&rest[..end]).with_context(|| format!("no name in `{line}`"))?,
                        text: text[at..at + end].to_owned(),
                    });
                    end
                }
                _ => bail!("unknown PTX at the level of the module: `{line}`"),
            };
            at += end;
        }
        Ok(program)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.kind == Kind::Entry)
    }

    /// The items with one of these `names` and all items that they refer to, directly or not, in
    /// the order of the text.
    pub(crate) fn reach<'a>(&'a self, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a Item> {
        let mut open: Vec<&str> = names.into_iter().collect();
        let mut reached = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !reached.insert(name) {
                continue;
            }
            for item in self.items.iter().filter(|item| item.name == name) {
                let refers = item.words();
                let names = self.items.iter().map(|item| item.name.as_str());
                open.extend(names.filter(|name| refers.contains(*name)));
            }
        }
        let reached = |item: &&Item| reached.contains(item.name.as_str());
        self.items.iter().filter(reached).collect()
    }

    /// The text of a module with these entries and only what they refer to.
    pub(crate) fn module(&self, entries: &[&Entry]) -> Result<String> {
        let mut text = format!(
            ".version {}\n.target {}\n.address_size {}\n",
            self.version, self.target, self.address_size
        );
        let mut functions = 0;
        let mut after = None;
        for item in self.reach(entries.iter().map(|entry| entry.name)) {
            // Separates items by a blank line, except variables.
            if after.replace(item.kind) != Some(Kind::Variable) || item.kind != Kind::Variable {
                text.push('\n');
            }
            let item_text = match item.kind {
                Kind::Variable => item.text.clone(),
                Kind::Func => number_labels(&item.text, functions),
                Kind::Entry => {
                    let entry = entries
                        .iter()
                        .find(|entry| entry.name == item.name)
                        .with_context(|| format!("a kernel refers to the entry {}", item.name))?;
                    with_launch_bounds(&number_labels(&item.text, functions), entry)?
                }
            };
            functions += usize::from(item.kind != Kind::Variable);
            for line in item_text.lines().filter(|line| !is_comment(line) || line.trim() == WAITS) {
                writeln!(text, "{line}")?;
            }
        }
        Ok(text)
    }
}

impl Item {
    /// The words of its code.
    pub(crate) fn words(&self) -> BTreeSet<String> {
        self.code_words().collect()
    }

    pub(crate) fn code_words(&self) -> impl Iterator<Item = String> {
        let code = code(&self.text).expect("parsed from text that has a code");
        words(&code).map(str::to_owned).collect::<Vec<_>>().into_iter()
    }

    /// Its code in two parts: the head, and the body, which is empty for a declaration.
    pub(crate) fn head_and_body(&self) -> (String, String) {
        let mut head = code(&self.text).expect("parsed from text that has a code");
        let body = match self.kind {
            Kind::Variable => String::new(),
            _ => head.find('{').map_or_else(String::new, |brace| head.split_off(brace)),
        };
        (head, body)
    }
}

/// The text with comments and quoted strings replaced by as many blanks.
pub(crate) fn code(text: &str) -> Result<String> {
    ensure!(text.is_ascii(), "PTX is ASCII");
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = if rest.starts_with("//") {
            first_line(rest).len()
        } else if rest.starts_with("/*") {
            rest.find("*/").context("a comment without an end")? + 2
        } else if first == '"' {
            rest[1..].find('"').context("a quote without an end")? + 2
        } else {
            code.push(first);
            rest = &rest[1..];
            continue;
        };
        let blanks = rest[..blank].chars();
        code.extend(blanks.map(|char| if char == '\n' { '\n' } else { ' ' }));
        rest = &rest[blank..];
    }
    Ok(code)
}

/// Names, numbers, directives and instructions: `bar.sync`, `.shared`, `%r1`, `warp_sums`.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    let in_word = |char: char| char.is_ascii_alphanumeric() || "_.$%".contains(char);
    code.split(move |char| !in_word(char)).filter(|word| !word.is_empty())
}

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or(text)
}

/// The kind of the item at the beginning of `code`, and its end: at its `;`, or at the `}` of its
/// body.
fn extent(code: &str) -> Option<(Kind, usize)> {
    let statement = &code[..code.find([';', '{'])?];
    let kind = words(statement)
        .find_map(|word| match word {
            ".entry" => Some(Kind::Entry),
            ".func" => Some(Kind::Func),
            _ => None,
        })
        .unwrap_or(Kind::Variable);
    let mut depth = 0;
    for (at, char) in code.char_indices() {
        match char {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            _ => {}
        }
        // The braces of a variable are its initial value; its `;` is still to come.
        if depth == 0 && (char == ';' || (char == '}' && kind != Kind::Variable)) {
            return Some((kind, at + 1));
        }
    }
    None
}

/// The first name in an item's code, which directives, numbers and a function's return value in
/// parentheses may precede.
fn name(code: &str) -> Option<String> {
    let mut depth = 0;
    let outside: String = code
        .chars()
        .map(|char| {
            depth += i32::from(char == '(') - i32::from(char == ')');
            if depth == 0 { char } else { ' ' }
        })
        .collect();
    words(&outside)
        .find(|word| !word.starts_with(|first: char| first == '.' || first.is_ascii_digit()))
        .map(str::to_owned)
}

/// Whether a line carries no information: LLVM marks the beginning and the end of every `asm!`.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// Declares the entry's block size, and for how many such blocks a multiprocessor must have
/// registers, which rustc cannot. ptxas then limits the registers per thread accordingly, and a
/// launch never fails for lack of them.
fn with_launch_bounds(text: &str, entry: &Entry) -> Result<String> {
    let brace = code(text)?.find('{').context("an entry without a body")?;
    let (head, body) = text.split_at(brace);
    let Entry { block, resident, .. } = entry;
    Ok(format!("{}\n.minnctapersm {resident}\n.maxntid {block}, 1, 1\n{body}", head.trim_end()))
}

/// LLVM numbers a function's labels by the function's index in the program. Labels are local to the
/// function, so its index in the module serves as well, and the text of a module no longer changes
/// when kernels are added to others.
fn number_labels(function: &str, place: usize) -> String {
    const LABEL: &str = "$L__BB";
    let mut pieces = function.split(LABEL);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|char: char| char.is_ascii_digit());
        text.push_str(LABEL);
        text.push_str(&place.to_string());
        text.push_str(rest);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kernels_gpu::abi::Dtype;

    pub(crate) fn entry(name: &'static str, module: &'static str, barriers: u32) -> Entry {
        unsafe fn run(_: *const u8) {}
        Entry {
            name,
            module,
            dtype: Dtype::F32,
            block: 256,
            resident: 1,
            barriers,
            args_size: 72,
            run,
        }
    }

    /// As rustc writes it: three entries of two modules, a function, three variables.
    pub(crate) const PROGRAM: &str = r#"//
// Generated by LLVM NVPTX Back-End
//

.version 8.0
.target sm_80
.address_size 64

	// .globl	mse_backward_f32

.shared .align 16 .b64 warp_sums[32];
.shared .align 16 .b64 unused[1];
.extern .shared .align 16 .b8 rest[];
.global .align 4 .b8 digits[4] = {48, 49, 50, 51};
.func  (.param .b64 func_retval0) helper
(
	.param .b64 helper_param_0
)
;

.visible .entry mse_backward_f32(
	.param .align 8 .b8 mse_backward_f32_param_0[72]
)
{
	.reg .b32 	%r<2>;
	.pragma "nounroll; } bar.sync";
$L__BB0_2:
	@%p1 bra 	$L__BB0_2;
	ret;

}
	// .globl	mse_forward_f32
.visible .entry mse_forward_f32(
	.param .align 8 .b8 mse_forward_f32_param_0[72]
)
{
	// begin inline asm
	mov.u64 %rd87, warp_sums;
cvta.shared.u64 %rd87, %rd87;
	// end inline asm } bar.sync 0;
	bar.sync 	0;
	call.uni (retval0), helper, (param0);
$L__BB1_10:
	bra.uni 	$L__BB1_10;
	ret;
}
.func  (.param .b64 func_retval0) helper(
	.param .b64 helper_param_0
)
{
	mov.u64 %rd1, digits;
	mov.u64 %rd2, rest;
$L__BB2_1:
	ret;
}
.visible .entry mse_backward_f64(
	.param .align 8 .b8 mse_backward_f64_param_0[72]
)
{
	ret;
}
"#;

    fn names<'a>(items: impl IntoIterator<Item = &'a Item>) -> Vec<(Kind, &'a str)> {
        let of = |item: &'a Item| (item.kind, item.name.as_str());
        items.into_iter().map(of).collect()
    }

    #[test]
    fn a_program_is_parsed_into_its_items() {
        let program = Program::parse(PROGRAM).unwrap();
        assert_eq!(program.version, "8.0");
        assert_eq!(program.target, "sm_80");
        assert_eq!(program.address_size, "64");
        assert_eq!(
            names(&program.items),
            [
                (Kind::Variable, "warp_sums"),
                (Kind::Variable, "unused"),
                (Kind::Variable, "rest"),
                (Kind::Variable, "digits"),
                (Kind::Func, "helper"),
                (Kind::Entry, "mse_backward_f32"),
                (Kind::Entry, "mse_forward_f32"),
                (Kind::Func, "helper"),
                (Kind::Entry, "mse_backward_f64"),
            ]
        );
        assert_eq!(program.items[2].text, ".extern .shared .align 16 .b8 rest[];");
        let digits = &program.items[3].text;
        assert_eq!(digits, ".global .align 4 .b8 digits[4] = {48, 49, 50, 51};");
        assert!(program.items[5].text.ends_with("ret;\n\n}"));
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        for (text, error) in [
            (".version 8.0\nhello", "unknown PTX"),
            (".file 1 \"a.rs\"", "unknown PTX"),
            (".visible .entry f() { ret;", "no end"),
            ("/* for ever", "a comment without an end"),
            (".shared .b8 é;", "PTX is ASCII"),
        ] {
            let found = Program::parse(text).err().unwrap().to_string();
            assert!(found.contains(error), "`{text}` gives `{found}`");
        }
    }

    #[test]
    fn a_module_holds_what_its_entries_reach() {
        let program = Program::parse(PROGRAM).unwrap();
        let reach = |name| names(program.reach([name]));
        assert_eq!(reach("mse_backward_f64"), [(Kind::Entry, "mse_backward_f64")]);
        assert_eq!(
            reach("mse_forward_f32"),
            [
                (Kind::Variable, "warp_sums"),
                (Kind::Variable, "rest"), // through `helper`
                (Kind::Variable, "digits"),
                (Kind::Func, "helper"),
                (Kind::Entry, "mse_forward_f32"),
                (Kind::Func, "helper"),
            ]
        );
    }

    #[test]
    fn a_module_declares_its_blocks_and_numbers_its_own_labels() {
        let program = Program::parse(PROGRAM).unwrap();
        let (forward, f64) =
            (entry("mse_forward_f32", "mse_f32", 1), entry("mse_backward_f64", "mse_f64", 0));
        assert_eq!(
            program.module(&[&f64]).unwrap(),
            ".version 8.0\n.target sm_80\n.address_size 64\n\n\
             .visible .entry mse_backward_f64(\n\
             \t.param .align 8 .b8 mse_backward_f64_param_0[72]\n)\n\
             .minnctapersm 1\n.maxntid 256, 1, 1\n{\n\tret;\n}\n"
        );
        let module = program.module(&[&forward]).unwrap();
        assert!(
            module.contains("[32];\n.extern .shared .align 16 .b8 rest[];\n.global"),
            "{module}"
        );
        assert!(module.contains("};\n\n.func"), "{module}");
        assert!(module.contains("bra.uni \t$L__BB1_10;"), "{module}");
        assert!(module.contains("$L__BB2_1:"), "{module}");
        // A program that has been split already stays as it is.
        let again = Program::parse(&module).unwrap();
        assert_eq!(again.items.len(), 6);
    }

    #[test]
    fn labels_follow_the_place_in_the_module() {
        assert_eq!(number_labels("$L__BB12_3: bra $L__BB12_34;", 0), "$L__BB0_3: bra $L__BB0_34;");
    }
}
