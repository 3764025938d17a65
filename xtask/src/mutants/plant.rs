//! Plants mutants in the text of the kernels.
//!
//! All mutants are planted at once, each behind a switch, so that the kernels and the tests, which
//! take two minutes to compile, are compiled only once. A process turns on the mutant whose number
//! is in its environment.

use anyhow::{Context, Result, ensure};
use std::ops::Range;

/// A bug in a kernel.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    /// What the kernel then does wrong.
    pub(super) what: &'static str,
    /// The file, in kernels-gpu/src.
    pub(super) file: &'static str,
    /// The lines to change, without their indentation. They occur once in the file.
    pub(super) lines: &'static str,
    /// The part of them to replace: an expression, or statements that end with a semicolon. It
    /// occurs once in the lines.
    pub(super) from: &'static str,
    /// The replacement.
    pub(super) to: &'static str,
    /// The test that must fail, as `suite::name`. The suite is a file of tests/tests, or fused_loss
    /// for the library's own tests.
    pub(super) test: &'static str,
    pub(super) seen: Seen,
}

/// Which test sees a bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// The mutant's test, on the emulator.
    OnEmulator,
    /// Only this test on a GPU; `why` says why the emulator cannot see the bug.
    OnGpu { test: &'static str, why: &'static str },
    /// No test; says why results are still right, or why nothing shows the bug.
    Nowhere(&'static str),
}

/// The environment variable with the number of the mutant that a process turns on.
pub(super) const CHOSEN: &str = "FUSED_LOSS_MUTANT";

/// The kernels' lib.rs with the switch, and without the warnings that mutants cause.
pub(super) fn with_switch(lib: &str) -> String {
    format!(
        "#![allow(warnings)]
{lib}
mod planted {{
    use std::sync::atomic::{{AtomicUsize, Ordering}};
    static CHOSEN: AtomicUsize = AtomicUsize::new(UNREAD);
    const UNREAD: usize = usize::MAX;
    /// Whether mutant `number` is the one that the environment names.
    #[inline(always)]
    pub(crate) fn is(number: usize) -> bool {{
        let chosen = CHOSEN.load(Ordering::Relaxed);
        (if chosen == UNREAD {{ read() }} else {{ chosen }}) == number
    }}
    #[cold]
    #[inline(never)]
    fn read() -> usize {{
        let named = std::env::var(\"{CHOSEN}\").ok().and_then(|name| name.parse().ok());
        let chosen = named.unwrap_or(UNREAD - 1);
        CHOSEN.store(chosen, Ordering::Relaxed);
        chosen
    }}
}}
"
    )
}

/// The text of a file with these of its mutants, each with its number.
pub(super) fn plant(text: &str, mutants: &[(usize, &Mutant)]) -> Result<String> {
    let mut ranges = Vec::new();
    for (number, mutant) in mutants {
        let range = find(text, mutant).with_context(|| {
            format!("mutant {}: the table does not fit {}", mutant.name, mutant.file)
        })?;
        ranges.push((range, *number, *mutant));
    }
    ranges.sort_by_key(|(range, number, _)| (range.start, *number));
    let (mut planted, mut done) = (String::with_capacity(2 * text.len()), 0);
    // Mutants of the same text share a chain of switches.
    for chain in ranges.chunk_by(|(one, ..), (other, ..)| one == other) {
        let (range, _, first) = &chain[0];
        ensure!(
            range.start >= done,
            "mutant {}: a part of what it replaces is another's",
            first.name
        );
        planted.push_str(&text[done..range.start]);
        let switches: Vec<_> = chain
            .iter()
            .map(|(_, number, mutant)| {
                format!("if crate::planted::is({number}) {{ {} }} else ", mutant.to)
            })
            .collect();
        let chain = format!("{}{{ {} }}", switches.concat(), first.from);
        planted.push_str(&if first.from.ends_with(';') { chain } else { format!("({chain})") });
        done = range.end;
    }
    planted.push_str(&text[done..]);
    Ok(planted)
}

/// The range of the text that a mutant replaces.
fn find(text: &str, mutant: &Mutant) -> Result<Range<usize>> {
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let wanted: Vec<_> = mutant.lines.lines().map(str::trim).collect();
    ensure!(!wanted.is_empty(), "it names no lines");
    let mut found = lines
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, some)| some.iter().zip(&wanted).all(|(line, wanted)| line.trim() == *wanted))
        .map(|(at, _)| at);
    let first = found.next().with_context(|| format!("these lines are not there:\n{wanted:#?}"))?;
    ensure!(found.next().is_none(), "these lines are there more than once:\n{wanted:#?}");
    let start = lines[..first].concat().len();
    let end = start + lines[first..first + wanted.len()].concat().len();
    let mut ranges = text[start..end].match_indices(mutant.from);
    let (at, _) =
        ranges.next().with_context(|| format!("'{}' is not in its lines", mutant.from))?;
    ensure!(ranges.next().is_none(), "'{}' is in its lines more than once", mutant.from);
    Ok(start + at..start + at + mutant.from.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
fn f(x: u32) -> u32 {
    barrier();
    let y = x + 1;
    // Another.
    barrier();
    y + y
}
";

    const MUTANT: Mutant = Mutant {
        name: "one_more",
        what: "",
        file: "f.rs",
        lines: "let y = x + 1;",
        from: "x + 1",
        to: "x + 2",
        test: "",
        seen: Seen::OnEmulator,
    };

    fn planted(mutants: &[Mutant]) -> Result<String, String> {
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        plant(TEXT, &numbered).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn an_expression_is_behind_a_switch() {
        let text = planted(&[MUTANT]).unwrap();
        let line = "    let y = (if crate::planted::is(0) { x + 2 } else { x + 1 });\n";
        assert_eq!(text, TEXT.replace("    let y = x + 1;\n", line));
    }

    #[test]
    fn a_statement_is_left_out_where_the_line_before_names_it() {
        let lines = "// Another.\nbarrier();";
        let text = planted(&[Mutant { lines, from: "barrier();", to: "", ..MUTANT }]).unwrap();
        let line = "    // Another.\n    if crate::planted::is(0) {  } else { barrier(); }\n";
        assert_eq!(text, TEXT.replace("    // Another.\n    barrier();\n", line));
    }

    #[test]
    fn mutants_of_one_text_share_their_switches() {
        let text = planted(&[MUTANT, Mutant { to: "x", ..MUTANT }]).unwrap();
        let line = "if crate::planted::is(0) { x + 2 } else if crate::planted::is(1) { x } else ";
        assert!(text.contains(line), "{text}");
        let error = planted(&[MUTANT, Mutant { from: "+", ..MUTANT }]).unwrap_err();
        assert_eq!(error, "mutant one_more: a part of what it replaces is another's");
    }

    #[test]
    fn lines_that_are_there_twice_or_not_at_all_are_refused() {
        let refused = |mutant| planted(&[mutant]).unwrap_err();
        let error = refused(Mutant { lines: "barrier();", from: "barrier();", ..MUTANT });
        assert!(error.contains("mutant one_more: the table does not fit f.rs"), "{error}");
        assert!(error.contains("these lines are there more than once"), "{error}");
        let error = refused(Mutant { lines: "let y = x + 3;", ..MUTANT });
        assert!(error.contains("these lines are not there"), "{error}");
        let error = refused(Mutant { lines: "y + y", from: "y", ..MUTANT });
        assert!(error.contains("'y' is in its lines more than once"), "{error}");
        let error = refused(Mutant { from: "x - 1", ..MUTANT });
        assert!(error.contains("'x - 1' is not in its lines"), "{error}");
    }
}
