//! The PTX in the library: one text a module (a loss and dtype) and architecture.

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

/// What a kernel begins with that is launched while the one before it ends: it waits until all that is before is done and seen, and
/// then lets the one behind it begin as soon as all its own blocks have. In the other order, short kernels take a tenth longer.
const OVERLAPS: &str = "griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;";
/// The oldest compute capability that has these instructions, ten times major plus minor.
pub(crate) const OVERLAPS_FROM: u32 = 90;

impl Ptx {
    pub(crate) const fn new(module: &'static str, capability: u32, text: &'static str) -> Self {
        Ptx { module, capability, text }
    }

    /// The text for the driver, ended by a zero byte; for kernels that wait for what is before them, if they are to overlap it.
    pub(crate) fn text(&self, overlaps: bool) -> Cow<'static, str> {
        if !overlaps {
            return self.text.into();
        }
        let mut text = String::with_capacity(self.text.len() + 8192);
        let mut in_entry = false;
        for line in self.text.split_inclusive('\n') {
            if line.starts_with(".target ") {
                text.push_str(&format!(".target sm_{OVERLAPS_FROM}\n"));
                continue;
            }
            text.push_str(line);
            in_entry |= line.starts_with(".visible .entry ");
            if in_entry && line.starts_with('{') {
                in_entry = false;
                text.push('\t');
                text.push_str(OVERLAPS);
                text.push('\n');
            }
        }
        text.into()
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
    fn a_kernel_that_overlaps_waits_before_all_else() {
        for ptx in ALL {
            let (plain, text) = (ptx.text(false), ptx.text(true));
            let entries = plain.matches(".visible .entry ").count();
            assert!(entries > 0, "{}", ptx.module);
            assert_eq!(text.matches(OVERLAPS).count(), entries, "{}", ptx.module);
            for entry in text.split(".visible .entry ").skip(1) {
                let (_, body) = entry.split_once("\n{\n").expect("an entry has a body");
                assert!(body.trim_start().starts_with(OVERLAPS), "{}", ptx.module);
            }
            assert!(text.contains("\n.target sm_90\n") && text.ends_with('\0'), "{}", ptx.module);
            let without = text.replace(&format!("\t{OVERLAPS}\n"), "");
            let lines = plain.lines().zip(without.lines());
            assert!(lines.filter(|(a, b)| a != b).all(|(a, _)| a.starts_with(".target ")));
        }
    }

    #[test]
    fn an_older_device_gets_nothing() {
        assert!(find("mse_f32", oldest() - 1).is_none());
    }
}
