//! The PTX in the library: one text a module (a loss and dtype) and architecture.

/// One compiled module.
pub(crate) struct Ptx {
    pub(crate) module: &'static str,
    /// The oldest compute capability it runs on, ten times major plus minor.
    pub(crate) capability: u32,
    /// The text, ended by a zero byte.
    pub(crate) text: &'static str,
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

impl Ptx {
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
    fn an_older_device_gets_nothing() {
        assert!(find("mse_f32", oldest() - 1).is_none());
    }
}
