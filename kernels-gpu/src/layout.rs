//! A hash of everything that host and kernels must agree on. The hash is stored with compiled PTX,
//! and the host refuses to launch PTX with a different hash.

use crate::abi::{
    self, Broadcast, CeilingArgs, CrossEntropyArgs, IndexedArgs, LogProbArgs, Matrix, PairwiseArgs,
    RowBytes, Span, StreamArgs, TargetFault, TileArgs, TiledArgs, UpstreamRows, WordSteps, saved,
    workspace,
};
use crate::table::Entry;

/// Describes an argument structure, from the list of its fields.
macro_rules! structure {
    ($name:ident { $($field:ident),+ $(,)? }) => {{
        // Fails to compile if a field is missing from the list.
        const _: fn($name) = |$name { $($field: _),+ }| ();
        Structure(
            stringify!($name),
            size_of::<$name>(),
            &[$((
                stringify!($field),
                core::mem::offset_of!($name, $field),
                size_of_field(|of: &$name| &of.$field),
            )),+],
        )
    }};
}

/// A hash of the size of each argument structure and the name, offset and size of each of its
/// fields; of the constants that both sides compute with; and of the name, the size of the
/// argument, the block and the resident blocks of each entry.
pub const LAYOUTS: u64 =
    Hash::new().structures(STRUCTURES).constants(CONSTANTS).entries(crate::KERNELS).0;

const STRUCTURES: &[Structure] = &[
    structure!(Matrix { start, row_stride }),
    structure!(Broadcast { start, row_stride, col_stride }),
    structure!(PairwiseArgs {
        input,
        target,
        rows,
        cols,
        divisor,
        parameter,
        reduction,
        group_threads,
        splits,
        upstream_col_stride,
        tiles,
        packed,
        indexed,
        loss,
        workspace,
        upstream,
        upstream_rows,
        grad_input,
        grad_target,
        weights,
    }),
    structure!(UpstreamRows { reciprocal, cols }),
    structure!(IndexedArgs {
        base,
        row_bytes,
        tiles,
        parts,
        per_part,
        of_row,
        rows_of_tile,
        tile_vectors,
        per_row,
        reach,
        within,
        is_aligned
    }),
    structure!(RowBytes { base, input, target, loss, upstream, grad_input, grad_target }),
    structure!(Span { first, last }),
    structure!(TiledArgs { of_row, of_item, items, warp_items, vectors, padding }),
    structure!(CeilingArgs {
        arrays,
        vectors,
        of_rows,
        of_rows_vectors,
        of_rows_share,
        sink,
        early_bytes,
    }),
    structure!(TileArgs {
        rows,
        count,
        last_rows,
        warp_rows_shift,
        access,
        store_access,
        step,
        store_step,
        load_span,
        store_span,
        copy_shift,
        store_units,
        per_store_unit,
        order_right,
        order_mask,
        order_left,
        bytes,
        stage_bytes,
        saved,
        warp_bytes,
        gradients,
        words,
    }),
    structure!(WordSteps { word, lane, shifted }),
    structure!(StreamArgs { row_tiles, warps, merges_blocks }),
    structure!(CrossEntropyArgs {
        input,
        target,
        rows,
        cols,
        class_bytes,
        normaliser_blocks,
        rows_of_block,
        ignore_index,
        weight,
        saved,
        totals,
        z_loss,
        workspace,
        fault,
        loss,
        reduction,
        group_threads,
        divisor,
        splits,
        upstream_stride,
        upstream,
        grad_input,
        grad_target,
        target_stride,
        keep,
        share,
        staged_vectors,
        ahead,
        ahead_bytes,
        early_blocks,
        early_bytes,
        plain,
        tail_rows,
        tail_at,
        group_shift,
        adder_shift,
        tile,
        unsigned_classes,
        stream,
        part_vectors,
        attempt,
        retried_blocks,
        log_prob,
    }),
    structure!(LogProbArgs {
        scale,
        entropy,
        entropy_fault,
        upstream_entropy,
        upstream_entropy_stride,
    }),
    structure!(TargetFault { row, target, classes }),
];

const CONSTANTS: &[(&str, u64)] = &[
    ("stream depth", abi::STREAM_DEPTH as u64),
    ("tiled block", abi::TILED_BLOCK as u64),
    ("dense flight", abi::DENSE_FLIGHT as u64),
    ("dense f64 block", abi::DENSE_F64_BLOCK as u64),
    ("tile padding", TiledArgs::PADDING as u64),
    ("warp tile bytes", abi::WARP_TILE_BYTES as u64),
    ("max stream blocks", abi::MAX_STREAM_BLOCKS as u64),
    ("max partials", abi::MAX_PARTIALS as u64),
    ("stats parts", abi::STATS_PARTS as u64),
    ("group", abi::GROUP as u64),
    ("lag", abi::LAG as u64),
    ("adder shift", abi::ADDER_SHIFT as u64),
    ("max normaliser blocks", abi::MAX_NORMALISER_BLOCKS as u64),
    ("workspace bytes", abi::WORKSPACE_BYTES as u64),
    ("fault", workspace::FAULT),
    ("totals", workspace::TOTALS),
    ("uncounted", workspace::UNCOUNTED),
    ("partials", workspace::PARTIALS),
    ("saved", workspace::SAVED),
    ("saved arrays", saved::COUNT as u64),
];

/// An argument structure: its name, its size, and the name, offset and size of each field.
struct Structure(&'static str, usize, &'static [(&'static str, usize, usize)]);

const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// FNV-1a of 64 bits, because it is short and can be computed at compile time.
struct Hash(u64);

impl Hash {
    const fn new() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    const fn byte(self, byte: u8) -> Self {
        Hash((self.0 ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    }

    const fn number(mut self, number: u64) -> Self {
        let bytes = number.to_le_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self = self.byte(bytes[at]);
            at += 1;
        }
        self
    }

    /// Hashes a text and its length, so that different lists of texts never hash the same bytes.
    const fn text(mut self, text: &str) -> Self {
        let mut at = 0;
        while at < text.len() {
            self = self.byte(text.as_bytes()[at]);
            at += 1;
        }
        self.number(at as u64)
    }

    const fn structures(mut self, structures: &[Structure]) -> Self {
        let mut at = 0;
        while at < structures.len() {
            let Structure(name, size, fields) = structures[at];
            self = self.text(name).number(size as u64);
            let mut field = 0;
            while field < fields.len() {
                let (name, offset, size) = fields[field];
                self = self.text(name).number(offset as u64).number(size as u64);
                field += 1;
            }
            at += 1;
        }
        self
    }

    const fn constants(mut self, constants: &[(&str, u64)]) -> Self {
        let mut at = 0;
        while at < constants.len() {
            self = self.text(constants[at].0).number(constants[at].1);
            at += 1;
        }
        self
    }

    const fn entries(mut self, losses: &[&[&[Entry]]]) -> Self {
        let mut loss = 0;
        while loss < losses.len() {
            let mut family = 0;
            while family < losses[loss].len() {
                let mut at = 0;
                while at < losses[loss][family].len() {
                    let entry = &losses[loss][family][at];
                    self = self.text(entry.name).number(entry.args_size as u64);
                    self = self.number(entry.block as u64).number(entry.resident as u64);
                    at += 1;
                }
                family += 1;
            }
            loss += 1;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_names_sizes_offsets_and_order() {
        #[allow(dead_code)]
        #[repr(C)]
        struct Args {
            rows: u64,
            cols: u64,
        }
        const ARGS: Structure = structure!(Args { rows, cols });
        let of = |structure: Structure| Hash::new().structures(&[structure]).0;
        let hash = of(ARGS);
        assert_eq!(hash, of(Structure("Args", 16, &[("rows", 0, 8), ("cols", 8, 8)])));
        for other in [
            Structure("Other", 16, &[("rows", 0, 8), ("cols", 8, 8)]),
            Structure("Args", 24, &[("rows", 0, 8), ("cols", 8, 8)]),
            Structure("Args", 16, &[("cols", 0, 8), ("rows", 8, 8)]),
            Structure("Args", 16, &[("rows", 0, 8), ("cols", 8, 4)]),
            Structure("Args", 16, &[("rows", 0, 8)]),
        ] {
            assert_ne!(hash, of(other));
        }
    }

    #[test]
    fn the_hash_sees_entries_and_constants() {
        let all = Hash::new().entries(crate::KERNELS).0;
        assert_ne!(all, Hash::new().entries(&crate::KERNELS[1..]).0);
        let of = |value| Hash::new().constants(&[("group", value)]).0;
        assert_ne!(of(64), of(32));
    }

    #[test]
    fn fnv_1a_is_fnv_1a() {
        assert_eq!(Hash::new().byte(b'a').0, 0xaf63_dc4c_8601_ec8c);
    }
}
