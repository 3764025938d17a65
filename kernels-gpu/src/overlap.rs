//! Programmatic dependent launch: a kernel is launched while the launch before it ends. This module
//! generates the PTX of such kernels from the portable PTX. The driver compiles the result, and the
//! PTX checks read it.

use crate::abi::WAITS;

/// The instructions at the beginning of such a kernel or, if it has the mark [`WAITS`], in place of
/// the mark. The kernel waits until the launches before it have ended and their writes are visible;
/// then it lets the launch after it start, as soon as all its own blocks have started. In the
/// opposite order, short kernels take a tenth longer.
pub const OVERLAPS: &str = "griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;";

/// The oldest compute capability with these instructions: ten times the major number, plus the
/// minor number.
pub const OVERLAPS_FROM: u32 = 90;

/// The text of a PTX module, with the [instructions](OVERLAPS) in each of its kernels.
pub fn overlapping(text: &str) -> String {
    const ENTRY: &str = ".visible .entry ";
    let mut entries = text.split(ENTRY);
    let head = entries.next().unwrap_or_default();
    let mut overlapping = String::with_capacity(text.len() + 8192);
    for line in head.split_inclusive('\n') {
        if line.starts_with(".target ") {
            overlapping.push_str(&format!(".target sm_{OVERLAPS_FROM}\n"));
        } else {
            overlapping.push_str(line);
        }
    }
    for entry in entries {
        overlapping.push_str(ENTRY);
        overlapping.push_str(&if entry.contains(WAITS) {
            entry.replace(WAITS, OVERLAPS)
        } else {
            entry.replacen("\n{\n", &format!("\n{{\n\t{OVERLAPS}\n"), 1)
        });
    }
    overlapping
}
