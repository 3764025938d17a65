//! The PTX in the library: one text a module (a loss and dtype) and architecture.

use crate::error::{Error, Result};
use kernels_gpu::LAYOUTS;
use kernels_gpu::overlap::overlapping;
use std::borrow::Cow;

/// One compiled module.
pub(crate) struct Ptx {
    pub(crate) module: &'static str,
    /// The oldest compute capability it runs on, ten times major plus minor.
    capability: u32,
    /// The text, ended by a zero byte.
    text: &'static str,
}

static ALL: &[Ptx] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// The [`LAYOUTS`] that the PTX was compiled for.
const PTX_LAYOUTS: u64 = include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

/// Refuses PTX that takes other arguments than this build of the host passes: that of another
/// version of fused-loss-kernels, or of kernels that have changed since.
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
    pub(crate) const fn new(module: &'static str, capability: u32, text: &'static str) -> Self {
        Ptx { module, capability, text }
    }

    /// The text for the driver, ended by a zero byte; for kernels that wait for what is before
    /// them, if they are to overlap it.
    pub(crate) fn text(&self, overlaps: bool) -> Cow<'static, str> {
        if overlaps { overlapping(self.text).into() } else { self.text.into() }
    }

    /// What the text says of itself: `.version` and `.target`.
    pub(crate) fn describe(&self) -> String {
        let line = |start| self.text.lines().find(|line| line.starts_with(start)).unwrap_or(start);
        format!("{}, {}", line(".version"), line(".target"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::WAITS;
    use kernels_gpu::overlap::OVERLAPS;

    #[test]
    fn every_entry_of_the_table_is_in_its_module() {
        let all = kernels_gpu::all();
        for entry in
            all.filter(|entry| cfg!(feature = "bench") || !entry.module.starts_with("ceiling"))
        {
            let ptx = find(entry.module, 80).expect(entry.module);
            assert!(
                ptx.text.contains(&format!(".visible .entry {}(", entry.name)),
                "{}",
                entry.name
            );
        }
    }

    #[test]
    fn a_kernel_that_overlaps_waits_before_it_touches_memory() {
        for ptx in ALL {
            let (plain, text) = (ptx.text(false), ptx.text(true));
            let bodies = || plain.split(".visible .entry ").skip(1);
            let overlapping = text.split(".visible .entry ").skip(1);
            assert!(bodies().count() > 0, "{}", ptx.module);
            for (entry, overlapping) in bodies().zip(overlapping) {
                let (name, _) = entry.split_once('(').expect("an entry has a name");
                let (before, behind) = overlapping.split_once(OVERLAPS).expect(name);
                let touches =
                    ["ld.global", "st.global", "ld.relaxed", "st.relaxed", "atom.", "red.", "cp."];
                assert!(touches.iter().all(|access| !before.contains(access)), "{name}");
                assert!(touches.iter().any(|access| behind.contains(access)), "{name}");
                let without = overlapping.replace(&format!("\t{OVERLAPS}\n"), "");
                let marked = entry.replace(&format!("\t{WAITS}\n"), "");
                assert_eq!(without, marked, "{name}");
            }
            assert!(text.contains("\n.target sm_90\n") && text.ends_with('\0'), "{}", ptx.module);
        }
    }

    #[test]
    fn cross_entropy_asks_for_its_first_rows_or_targets_before_it_waits() {
        let ptx = find("cross_entropy_f32", 80).expect("there is one");
        for entry in ptx.text(true).split(".visible .entry ").skip(1) {
            let (name, _) = entry.split_once('(').expect("an entry has a name");
            let (before, _) = entry.split_once(OVERLAPS).expect(name);
            let forward = !name.contains("_backward") && !name.contains("_split");
            let with_totals = name.contains("_forward_backward") && !name.contains("_long");
            // Tiles of packed rows are under way at once as it is.
            let is_packed = name.contains("_packed") || name.contains("_lane_rows");
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
