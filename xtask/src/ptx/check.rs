//! What must hold for the PTX, whichever compiler made it. Each check exists because rustc, LLVM or
//! a manual edit can break something without any error elsewhere.
//!
//! A check returns one line for each problem: the entry or module, what is expected, what is found.

use super::{Item, Kind, Program, words};
use crate::sources::SharedArray;
use kernels_gpu::Entry;

/// What a module's text should contain.
pub(crate) struct Expected<'a> {
    pub(crate) version: &'a str,
    pub(crate) arch: &'a str,
    pub(crate) entries: &'a [&'a Entry],
    /// Those that the kernels' source declares.
    pub(crate) shared_arrays: &'a [SharedArray],
}

/// The checks of one module's text.
pub(crate) fn module(program: &Program, expected: &Expected<'_>) -> Vec<String> {
    let mut problems = head(program, expected);
    problems.extend(entries(program, expected.entries));
    problems.extend(extern_functions(program));
    problems.extend(panics(program));
    problems.extend(shared_arrays(program, expected.shared_arrays));
    for entry in expected.entries {
        let Some(item) = program.entries().find(|item| item.name == entry.name) else {
            continue;
        };
        let reached = program.reach([entry.name]);
        problems.extend(argument(item, entry));
        problems.extend(block(item, entry));
        problems.extend(barriers(&reached, entry));
        problems.extend(local_memory(&reached, entry));
    }
    problems
}

/// The requested version and target. A driver that is supported may refuse another version.
fn head(program: &Program, expected: &Expected<'_>) -> Vec<String> {
    [
        (".version", &program.version, expected.version),
        (".target", &program.target, expected.arch),
        (".address_size", &program.address_size, "64"),
    ]
    .into_iter()
    .filter(|(_, found, expected)| found != expected)
    .map(|(directive, found, expected)| format!("{directive} is `{found}`, expected `{expected}`"))
    .collect()
}

/// Exactly these entries, each once: a generic kernel that nothing instantiates disappears without
/// an error.
pub(crate) fn entries(program: &Program, expected: &[&Entry]) -> Vec<String> {
    let mut problems = Vec::new();
    for entry in expected {
        let found = program.entries().filter(|item| item.name == entry.name);
        match found.count() {
            1 => {}
            0 => problems.push(format!("{}: missing", entry.name)),
            count => problems.push(format!("{}: {count} times, expected once", entry.name)),
        }
    }
    for item in program.entries() {
        if !expected.iter().any(|entry| entry.name == item.name) {
            problems.push(format!("{}: the kernel table has no such entry here", item.name));
        }
    }
    problems
}

/// No external function, because there is no linker. Such a function is a panic, or a call that was
/// not inlined because link-time optimisation is off.
pub(crate) fn extern_functions(program: &Program) -> Vec<String> {
    program
        .items
        .iter()
        .filter(|item| item.kind == Kind::Func)
        .filter(|item| item.words().contains(".extern"))
        .map(|item| format!("`.extern .func {}`: nothing defines it", item.name))
        .collect()
}

/// No panic. Nothing on a GPU reports one: its threads would loop for ever.
fn panics(program: &Program) -> Vec<String> {
    program
        .items
        .iter()
        .filter(|item| item.kind == Kind::Func && item.name.contains("panicking"))
        .filter(|item| !item.head_and_body().1.is_empty())
        .map(|item| format!("`.func {}`: a kernel may panic", item.name))
        .collect()
}

/// Shared memory only as the kernels declare it. The host does not know of memory that the compiler
/// adds or of another array of dynamic size.
fn shared_arrays(program: &Program, expected: &[SharedArray]) -> Vec<String> {
    let mut problems = Vec::new();
    for item in &program.items {
        let found: Vec<String> = match item.kind {
            Kind::Variable if item.words().contains(".shared") => vec![item.name.clone()],
            Kind::Variable => Vec::new(),
            Kind::Entry | Kind::Func => declared_in(&item.head_and_body().1, ".shared"),
        };
        for name in found {
            if item.kind != Kind::Variable {
                problems.push(format!(
                    "{}: `.shared {name}` in its body, expected only `shared_array!`s",
                    item.name
                ));
                continue;
            }
            let found = SharedArray { name, dynamic: item.words().contains(".extern") };
            if !expected.contains(&found) {
                let text = |SharedArray { name, dynamic }: &SharedArray| {
                    format!("{}.shared {name}", if *dynamic { ".extern " } else { "" })
                };
                let expected: Vec<String> = expected.iter().map(text).collect();
                problems.push(format!("`{}`: expected only {}", text(&found), expected.join(", ")));
            }
        }
    }
    problems
}

/// The names of the variables that a body declares in a state space.
fn declared_in(body: &str, space: &str) -> Vec<String> {
    body.split(';')
        .filter(|statement| words(statement).any(|word| word == space))
        .filter_map(super::name)
        .collect()
}

/// One argument, of the size that the host passes.
fn argument(item: &Item, entry: &Entry) -> Option<String> {
    let (head, _) = item.head_and_body();
    let found: Vec<Option<usize>> = head
        .split_once('(')
        .and_then(|(_, list)| list.split_once(')'))
        .map(|(list, _)| list.split(',').filter(|one| !one.trim().is_empty()))
        .into_iter()
        .flatten()
        .map(parameter_size)
        .collect();
    if found == [Some(entry.args_size)] {
        return None;
    }
    let found: Vec<String> = found
        .iter()
        .map(|size| size.map_or_else(|| "?".to_owned(), |size| size.to_string()))
        .collect();
    Some(format!(
        "{}: parameters of [{}] bytes, expected one of {}",
        entry.name,
        found.join(", "),
        entry.args_size
    ))
}

/// Bytes of one parameter: `.param .align 8 .b8 name[72]`, `.param .b64 name`.
fn parameter_size(parameter: &str) -> Option<usize> {
    let bits: usize = words(parameter).find_map(|word| {
        let bits = word.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?;
        bits.parse().ok()
    })?;
    let count = match parameter.split_once('[') {
        Some((_, count)) => count.split_once(']')?.0.trim().parse().ok()?,
        None => 1,
    };
    Some(bits / 8 * count)
}

/// The block size of the table. With a smaller one every launch fails; with a larger one the
/// compiler limits registers for threads that do not exist.
fn block(item: &Item, entry: &Entry) -> Option<String> {
    let (head, _) = item.head_and_body();
    let found: Vec<String> = head
        .split(".maxntid")
        .skip(1)
        .map(|sizes| sizes.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = format!("{}, 1, 1", entry.block);
    (found != [expected.as_str()]).then(|| {
        format!("{}: `.maxntid` is [{}], expected `{expected}`", entry.name, found.join("; "))
    })
}

/// As many barriers as the kernel's source has. Jump threading duplicates them
/// (rust-lang/rust#137086); the copies are in divergent code, where they never complete.
fn barriers(reached: &[&Item], entry: &Entry) -> Option<String> {
    let found = reached
        .iter()
        .flat_map(|item| item.code_words())
        .filter(|word| {
            let mut parts = word.split('.').filter(|part| *part != "cta");
            matches!(parts.next(), Some("bar" | "barrier"))
                && matches!(parts.next(), Some("sync" | "red"))
        })
        .count();
    (found != entry.barriers as usize)
        .then(|| format!("{}: {found} `bar.sync`, expected {}", entry.name, entry.barriers))
}

/// No local memory, which would mean that an array is in global memory instead of in registers.
fn local_memory(reached: &[&Item], entry: &Entry) -> Option<String> {
    let found = reached
        .iter()
        .flat_map(|item| item.code_words())
        .find(|word| word.starts_with("__local_depot") || word.split('.').any(|p| p == "local"))?;
    Some(format!("{}: `{found}`, expected no local memory", entry.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::tests::entry;

    const MODULE: &str = r#".version 8.0
.target sm_80
.address_size 64

.shared .align 16 .b64 warp_sums[32];

.visible .entry f(
	.param .align 8 .b8 f_param_0[72]
)
.maxntid 256, 1, 1
{
	.reg .b64 	%rd<2>;

	ld.param.b64 	%rd1, [f_param_0+8];
	mov.u64 	%rd1, warp_sums;
	cvta.shared.u64 %rd1, %rd1;
	// bar.sync 0; .local
	bar.sync 	0;
	bar.warp.sync 	-1;
	ret;
}
"#;

    fn problems(text: &str, barriers: u32) -> Vec<String> {
        let entry = entry("f", "mse_f32", barriers);
        let expected = Expected {
            version: "8.0",
            arch: "sm_80",
            entries: &[&entry],
            shared_arrays: &[
                SharedArray { name: "warp_sums".to_owned(), dynamic: false },
                SharedArray { name: "rest".to_owned(), dynamic: true },
            ],
        };
        module(&Program::parse(text).unwrap(), &expected)
    }

    /// The one problem of the module with `from` replaced by `to`.
    #[track_caller]
    fn planted(from: &str, to: &str, problem: &str) {
        assert!(MODULE.contains(from), "nothing to replace");
        assert_eq!(problems(&MODULE.replacen(from, to, 1), 1), [problem]);
    }

    #[test]
    fn a_sound_module_has_no_problems() {
        assert_eq!(problems(MODULE, 1), [""; 0]);
    }

    #[test]
    fn another_version_target_or_address_size() {
        planted(".version 8.0", ".version 8.7", ".version is `8.7`, expected `8.0`");
        planted(
            ".target sm_80",
            ".target sm_30, debug",
            ".target is `sm_30, debug`, expected `sm_80`",
        );
        planted(".address_size 64", ".address_size 32", ".address_size is `32`, expected `64`");
    }

    #[test]
    fn entries_missing_extra_or_twice() {
        let found = problems(&MODULE.replace("entry f(", "entry g("), 1);
        assert_eq!(found, ["f: missing", "g: the kernel table has no such entry here"]);
        let twice = format!(
            "{MODULE}{}",
            &MODULE[MODULE.find(".visible").unwrap()..].replace("bar.sync", "nop")
        );
        assert_eq!(problems(&twice, 1), ["f: 2 times, expected once"]);
    }

    #[test]
    fn functions_from_elsewhere() {
        let panic = ".extern .func _ZN4core9panicking5panic17h0123E\n(\n\t.param .b64 p\n)\n.noreturn;\n.visible .entry";
        planted(
            ".visible .entry",
            panic,
            "`.extern .func _ZN4core9panicking5panic17h0123E`: nothing defines it",
        );
    }

    #[test]
    fn panics() {
        planted(
            ".visible .entry f(",
            ".func _RNvNtCs_4core9panicking9panic_fmt() { bra 1; }\n.visible .entry f(",
            "`.func _RNvNtCs_4core9panicking9panic_fmt`: a kernel may panic",
        );
    }

    #[test]
    fn shared_memory_of_other_names() {
        planted(
            ".shared .align 16 .b64 warp_sums[32];",
            ".shared .align 16 .b64 warp_sums[32];\n.shared .align 4 .b8 __shared_alloc[512];",
            "`.shared __shared_alloc`: expected only .shared warp_sums, .extern .shared rest",
        );
        planted(
            ".shared .align 16 .b64 warp_sums[32];",
            ".extern .shared .align 16 .b64 warp_sums[];",
            "`.extern .shared warp_sums`: expected only .shared warp_sums, .extern .shared rest",
        );
        let dynamic =
            ".shared .align 16 .b64 warp_sums[32];\n.extern .shared .align 16 .b8 rest[];";
        let found = MODULE.replacen(".shared .align 16 .b64 warp_sums[32];", dynamic, 1);
        assert_eq!(problems(&found, 1), [""; 0]);
        planted(
            ".reg .b64 	%rd<2>;",
            ".shared .align 4 .b8 scratch[4];",
            "f: `.shared scratch` in its body, expected only `shared_array!`s",
        );
    }

    #[test]
    fn arguments_of_another_size_or_number() {
        planted(
            "f_param_0[72]",
            "f_param_0[64]",
            "f: parameters of [64] bytes, expected one of 72",
        );
        planted(
            "f_param_0[72]",
            "f_param_0[72],\n\t.param .u64 .ptr .global .align 4 f_param_1",
            "f: parameters of [72, 8] bytes, expected one of 72",
        );
        planted(
            ".param .align 8 .b8 f_param_0[72]",
            "",
            "f: parameters of [] bytes, expected one of 72",
        );
    }

    #[test]
    fn blocks_of_another_size() {
        planted(".maxntid 256, 1, 1\n", "", "f: `.maxntid` is [], expected `256, 1, 1`");
        planted(
            ".maxntid 256, 1, 1",
            ".maxntid 512, 1, 1",
            "f: `.maxntid` is [512, 1, 1], expected `256, 1, 1`",
        );
    }

    #[test]
    fn barriers_lost_or_doubled() {
        planted("bar.sync 	0;", "", "f: 0 `bar.sync`, expected 1");
        for twin in [
            "@%p1 bar.sync 0;",
            "barrier.sync.aligned 0;",
            "barrier.cta.sync 0;",
            "bar.red.popc.u32 %r1, 0, %p1;",
        ] {
            planted("bar.sync 	0;", &format!("bar.sync 0; {twin}"), "f: 2 `bar.sync`, expected 1");
        }
        assert_eq!(problems(MODULE, 0), ["f: 1 `bar.sync`, expected 0"]);
    }

    #[test]
    fn barriers_in_a_function_that_the_entry_calls() {
        let called = MODULE
            .replace("	ret;", "	call.uni helper;\n	ret;")
            .replace(".visible .entry", ".func helper()\n{\n	bar.sync 0;\n}\n.visible .entry");
        assert_eq!(problems(&called, 1), ["f: 2 `bar.sync`, expected 1"]);
    }

    #[test]
    fn local_memory_of_any_kind() {
        for (code, word) in [
            (".local .align 4 .b8 __local_depot0[128];", ".local"),
            ("mov.b64 %SPL, __local_depot0;", "__local_depot0"),
            ("st.local.b32 [%rd1], %r1;", "st.local.b32"),
            ("cvta.local.u64 %rd1, %rd1;", "cvta.local.u64"),
        ] {
            planted(
                "	ret;",
                &format!("	{code}\n	ret;"),
                &format!("f: `{word}`, expected no local memory"),
            );
        }
    }
}
