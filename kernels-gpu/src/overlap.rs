//! The PTX of kernels that are launched while the launch before them ends, from the PTX of any
//! device: the driver gets it so, and so it is checked.

use crate::abi::WAITS;

/// What a kernel begins with, unless it says [where](WAITS), that is launched while the one before
/// it ends: it waits until all that is before is done and seen, and then lets the one behind it
/// begin as soon as all its own blocks have. In the other order, short kernels take a tenth longer.
pub const OVERLAPS: &str = "griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;";

/// The oldest compute capability that has these instructions, ten times major plus minor.
pub const OVERLAPS_FROM: u32 = 90;

/// The text of a module, of kernels that wait for what is before them.
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
