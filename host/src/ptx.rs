//! The PTX in the library: one text per module (a loss and dtype) and architecture, compressed
//! until one of its kernels is needed. The driver gets one kernel at a time.

use crate::error::{Error, Result};
use kernels_gpu::LAYOUTS;
use kernels_gpu::overlap::overlapping;
use ruzstd::decoding::StreamingDecoder;
use std::io::{self, Read};
use std::sync::OnceLock;

/// One compiled module.
pub(crate) struct Ptx {
    pub(crate) module: &'static str,
    /// The oldest compute capability it runs on, as ten times major plus minor.
    capability: u32,
    /// The module's text as a zstd file, which is a seventh of its size.
    compressed: &'static [u8],
    /// The text, cached at the first use of one of its kernels. Decompressing it for each kernel
    /// would take 12 ms for the largest module, and 60 ms without optimisation.
    text: OnceLock<Box<str>>,
}

/// The start of each kernel in a module's text.
const ENTRY: &str = ".visible .entry ";

// Defines `ALL`, an array of every module.
include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// The [`LAYOUTS`] that the PTX was compiled for.
const PTX_LAYOUTS: u64 = include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

/// Refuses PTX that takes other arguments than this build of the host passes. Such PTX comes from
/// another version of fused-loss-kernels, or from before a change of the kernels.
pub(crate) fn check_layouts() -> Result<()> {
    same_layouts(PTX_LAYOUTS, LAYOUTS)
}

fn same_layouts(ptx: u64, kernels: u64) -> Result<()> {
    if ptx == kernels { Ok(()) } else { Err(Error::OtherLayouts { ptx, kernels }) }
}

/// The module's newest PTX that a device of `capability` can run.
pub(crate) fn find(module: &str, capability: u32) -> Option<&'static Ptx> {
    ALL.iter()
        .filter(|ptx| ptx.module == module && ptx.capability <= capability)
        .max_by_key(|ptx| ptx.capability)
}

/// The oldest compute capability that any module is compiled for.
pub(crate) fn oldest() -> u32 {
    ALL.iter().map(|ptx| ptx.capability).min().unwrap_or(u32::MAX)
}

impl Ptx {
    const fn new(module: &'static str, capability: u32, compressed: &'static [u8]) -> Self {
        Ptx { module, capability, compressed, text: OnceLock::new() }
    }

    /// The text of the whole module: the header, which declares what the kernels share, and then
    /// the kernels.
    fn whole(&self) -> &str {
        self.text.get_or_init(|| {
            // A test here reads every module, so this can fail only if the program file was
            // damaged.
            let text = decompress(self.compressed).expect("the PTX in the library is a zstd file");
            text.into_boxed_str()
        })
    }

    /// The text of one kernel for the driver, ended by a zero byte; `None` if the module has none
    /// of that name. If the kernel is to overlap the previous one, the text contains a wait for
    /// that one.
    ///
    /// The driver compiles everything in the text. With the whole text, the first call of a loss
    /// would wait for every kernel of the module.
    pub(crate) fn text(&self, name: &str, overlaps: bool) -> Option<String> {
        let whole = self.whole();
        let begin = whole.find(&format!("{ENTRY}{name}("))?;
        let header = &whole[..whole.find(ENTRY)?];
        let behind = begin + ENTRY.len();
        let end = whole[behind..].find(ENTRY).map_or(whole.len(), |next| behind + next);
        let text = [header, &whole[begin..end], "\0"].concat();
        Some(if overlaps { overlapping(&text) } else { text })
    }

    /// The text's `.version` and `.target`.
    pub(crate) fn describe(&self) -> String {
        let line =
            |start| self.whole().lines().find(|line| line.starts_with(start)).unwrap_or(start);
        format!("{}, {}", line(".version"), line(".target"))
    }
}

fn decompress(file: &[u8]) -> io::Result<String> {
    let mut decoder = StreamingDecoder::new(file).map_err(io::Error::other)?;
    let mut text = String::with_capacity(decoder.decoder.content_size() as usize);
    decoder.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kernels_gpu::abi::WAITS;
    use kernels_gpu::overlap::OVERLAPS;

    /// A module that is not in the library.
    pub(crate) fn of_text(module: &'static str, text: &str) -> Ptx {
        Ptx { module, capability: 80, compressed: &[], text: OnceLock::from(Box::from(text)) }
    }

    /// The kernels of a module, in the order of its text.
    fn names(ptx: &Ptx) -> impl Iterator<Item = &str> {
        let entries = ptx.whole().split(ENTRY).skip(1);
        entries.map(|entry| entry.split_once('(').expect("an entry has a name").0)
    }

    /// The body of the only kernel of a text, and the part before it: the header and the
    /// parameters.
    fn head_and_body(text: &str) -> (&str, &str) {
        assert_eq!(text.matches(ENTRY).count(), 1, "{text}");
        let body = text.find(ENTRY).and_then(|entry| Some(entry + text[entry..].find("\n{\n")?));
        text.split_at(body.expect("a kernel has a body"))
    }

    /// The first top-level item after a kernel that is not a kernel.
    fn other_item(text: &str) -> Option<&str> {
        let mut depth = 0;
        let mut lines = text[text.find(ENTRY)?..].lines();
        lines.find(|line| {
            let is_outside = depth == 0;
            for char in line.chars() {
                depth += i32::from("({".contains(char)) - i32::from(")}".contains(char));
            }
            // The lines between the name of a kernel and its body.
            let is_of_kernel = [ENTRY, "{", ".minnctapersm ", ".maxntid "]
                .iter()
                .any(|start| line.starts_with(start));
            is_outside && !is_of_kernel && !line.is_empty()
        })
    }

    #[test]
    fn every_entry_of_the_table_is_in_its_module() {
        let all = kernels_gpu::all();
        for entry in
            all.filter(|entry| cfg!(feature = "bench") || !entry.module.starts_with("ceiling"))
        {
            let ptx = find(entry.module, 80).expect(entry.module);
            for overlaps in [false, true] {
                let text = ptx.text(entry.name, overlaps).expect(entry.name);
                let (head, _) = head_and_body(&text);
                assert!(head.contains(&format!("{ENTRY}{}(", entry.name)), "{head}");
            }
        }
    }

    /// The name of a shared array, and its bytes, as PTX declares it: `.align 16 .b64 sums[32];`.
    fn name_and_bytes(declared: &str) -> (&str, usize) {
        let (_, array) = declared.split_once(" .b64 ").expect("words of 8 bytes");
        let (name, len) = array.split_once('[').expect("an array has a length");
        let len = len.trim_end_matches("];").parse::<usize>().expect("the length is a number");
        (name, 8 * len)
    }

    /// Whether a kernel has `name` as a word.
    fn uses(kernel: &str, name: &str) -> bool {
        let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
        kernel.split(|c| !is_of_name(c)).any(|word| word == name)
    }

    /// The shared arrays that a module declares before its kernels, and the text of the kernels.
    fn arrays_and_kernels(ptx: &Ptx) -> (Vec<(&str, usize)>, &str) {
        let (header, kernels) = ptx.whole().split_once(ENTRY).expect("a kernel");
        let declared = header.lines().filter_map(|line| line.strip_prefix(".shared "));
        (declared.map(name_and_bytes).collect(), kernels)
    }

    #[test]
    fn arrays_of_elementwise_kernels_leave_the_room_that_the_plan_counts_on() {
        let others = ["cross_entropy", "log_prob", "ceiling"];
        let is_elementwise = |ptx: &&Ptx| !others.iter().any(|name| ptx.module.starts_with(name));
        for ptx in ALL.iter().filter(is_elementwise) {
            let bytes: usize = arrays_and_kernels(ptx).0.into_iter().map(|(_, bytes)| bytes).sum();
            let most = crate::plan::tiled::ARRAYS_BYTES;
            assert!(bytes <= most, "{}: {bytes} bytes, expected at most {most}", ptx.module);
        }
    }

    #[test]
    fn arrays_of_packed_kernels_take_the_room_that_the_plan_counts_on() {
        let is_packed = |name: &str| {
            ["_packed_", "_lane_rows_", "_wide_rows_"].iter().any(|regime| name.contains(regime))
        };
        let mut largest = 0;
        for ptx in &ALL {
            let (arrays, kernels) = arrays_and_kernels(ptx);
            for kernel in kernels.split(ENTRY) {
                let (name, body) = kernel.split_once('(').expect("a kernel has parameters");
                let used = arrays.iter().filter(|(array, _)| uses(body, array));
                let bytes: usize = used.map(|(_, bytes)| bytes).sum();
                if is_packed(name) {
                    largest = largest.max(bytes);
                }
            }
        }
        // Dynamic shared memory begins after them, on a 128-byte boundary.
        assert_eq!(largest.next_multiple_of(128), crate::plan::packed::ARRAYS_BYTES);
    }

    #[test]
    fn the_driver_gets_the_header_and_one_kernel() {
        let text = "\
.version 8.0
.target sm_80
.shared .align 16 .b64 sums[32];
.visible .entry sum_f32(
)
{
\tret;
}

.visible .entry sum(
)
{
\tbar.sync 0;
}

.visible .entry sum_rows(
)
{
\ttrap;
}
";
        let header = ".version 8.0\n.target sm_80\n.shared .align 16 .b64 sums[32];\n";
        let ptx = of_text("sum", text);
        for (name, body) in [
            ("sum", "\tbar.sync 0;\n}\n\n"),
            ("sum_rows", "\ttrap;\n}\n"),
            ("sum_f32", "\tret;\n}\n\n"),
        ] {
            let expected = format!("{header}.visible .entry {name}(\n)\n{{\n{body}\0");
            assert_eq!(ptx.text(name, false).as_deref(), Some(expected.as_str()));
        }
        assert_eq!(ptx.text("sum_f", false), None);
        assert_eq!(ptx.text("rows", false), None);
    }

    /// Everything after the first kernel belongs to a kernel. If there were a function, the driver
    /// would get it only together with the kernel before it.
    #[test]
    fn a_module_declares_all_that_its_kernels_share_before_them() {
        for ptx in &ALL {
            assert_eq!(other_item(ptx.whole()), None, "{}", ptx.module);
            let header = ptx.whole().split(ENTRY).next().unwrap_or_default();
            let kernels: String = names(ptx)
                .map(|name| ptx.text(name, false).expect(name)[header.len()..].replace('\0', ""))
                .collect();
            assert!(*ptx.whole() == [header, &kernels].concat(), "{}: a part is lost", ptx.module);
            // Each loaded module has only one kernel, so another kernel would see its own copy of a
            // global.
            let mut globals = header.lines().filter(|line| line.contains(".global"));
            assert!(globals.all(|line| line.contains(" = {")), "{}: {header}", ptx.module);
        }
        let kernel = ".visible .entry f(\n)\n.maxntid 1, 1, 1\n{\n\t{ ret; }\n}\n";
        assert_eq!(other_item(kernel), None);
        for item in [".func g(", ".shared .b64 sums[1];"] {
            assert_eq!(other_item(&format!("{item}\n{kernel}")), None);
            assert_eq!(other_item(&format!("{kernel}\n{item}\n{kernel}")), Some(item));
        }
    }

    #[test]
    fn a_kernel_that_overlaps_waits_before_it_touches_memory() {
        for ptx in &ALL {
            assert!(names(ptx).count() > 0, "{}", ptx.module);
            for name in names(ptx) {
                let [plain, text] = [false, true].map(|overlaps| ptx.text(name, overlaps).unwrap());
                let ((_, plain), (head, body)) = (head_and_body(&plain), head_and_body(&text));
                let (before, behind) = body.split_once(OVERLAPS).expect(name);
                let touches =
                    ["ld.global", "st.global", "ld.relaxed", "st.relaxed", "atom.", "red.", "cp."];
                assert!(touches.iter().all(|access| !before.contains(access)), "{name}");
                assert!(touches.iter().any(|access| behind.contains(access)), "{name}");
                let without = body.replace(&format!("\t{OVERLAPS}\n"), "");
                let marked = plain.replace(&format!("\t{WAITS}\n"), "");
                assert_eq!(without, marked, "{name}");
                assert!(head.contains("\n.target sm_90\n") && text.ends_with('\0'), "{name}");
            }
        }
    }

    #[test]
    fn cross_entropy_asks_for_its_first_rows_or_targets_before_it_waits() {
        let ptx = find("cross_entropy_f32", 80).expect("there is one");
        for name in names(ptx) {
            let text = ptx.text(name, true).expect(name);
            let (before, _) = text.split_once(OVERLAPS).expect(name);
            let forward = !name.contains("_backward") && !name.contains("_split");
            let with_totals = name.contains("_forward_backward") && !name.contains("_long");
            // Packed kernels load their tiles early without a prefetch.
            let is_packed =
                ["_packed", "_lane_rows", "_wide_rows"].iter().any(|regime| name.contains(regime));
            let asks = (forward || with_totals) && !is_packed;
            assert_eq!(before.contains("prefetch.global.L2"), asks, "{name}");
        }
    }

    #[test]
    fn ptx_of_other_layouts_is_refused() {
        assert!(same_layouts(1, 1).is_ok());
        let error = same_layouts(0x12, 0xab).unwrap_err().to_string();
        assert_eq!(
            error,
            "kernels: expected PTX of the argument layouts 00000000000000ab, which \
             fused-loss-kernels has, got PTX of the layouts 0000000000000012; fused-loss and \
             fused-loss-kernels must be of one version, or the PTX compiled again (cargo xtask \
             build-ptx)"
        );
    }

    #[test]
    fn an_older_device_gets_nothing() {
        assert!(find("mse_f32", oldest() - 1).is_none());
    }
}
