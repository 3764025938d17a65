//! What host and kernels must agree on: dtypes, block sizes, and the arguments of each kernel.
//!
//! A kernel takes one argument, a `repr(C)` structure of this module by value, so that both sides
//! are compiled from the same definition. Addresses are plain `u64`: the host has no pointers into
//! device memory.

use core::num::NonZeroU32;

/// An element type of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// The name that entries carry, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// The most threads of a block.
pub const MAX_BLOCK: u32 = 1024;

/// The most threads of a block of the kernels for rows, which need more registers.
pub const ROWS_BLOCK: u32 = 256;

/// The most blocks of a grid that reduces: one partial sum each.
pub const MAX_PARTIALS: u32 = 132 * 256;

/// Bytes of the scratch memory that a reduction needs: the count of finished blocks (zero between
/// launches, in the first 16 bytes), then the partial sums.
pub const WORKSPACE_BYTES: usize = 16 + MAX_PARTIALS as usize * 8;

/// What becomes of the terms of a loss.
pub mod reduction {
    /// One sum.
    pub const SCALAR: u32 = 0;
    /// A sum a row.
    pub const ROWS: u32 = 1;
    /// The terms as they are.
    pub const ELEMENTS: u32 = 2;
}

/// Rows in memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Matrix {
    /// The first element; null where there is no such tensor.
    pub start: u64,
    /// Elements from the start of a row to the start of the next.
    pub row_stride: u64,
}

/// Arguments of the kernels that compare two tensors element by element. Every tensor has `rows` rows of
/// `cols` elements; a dense tensor may come as one row.
///
/// The threads of the grid work in teams, each on one piece of a row at a time: piece `p` is part
/// `p % splits` of row `p / splits`, taken as every `splits`-th tile of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PairwiseArgs {
    /// Input.
    pub input: Matrix,
    /// Target.
    pub target: Matrix,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub cols: u64,
    /// What a sum, or an element's gradient, is divided by: 1 for a sum, the number of terms for a mean.
    pub divisor: f64,
    /// The loss's own parameter: Huber's δ, smooth L1's β.
    pub parameter: f64,
    /// One of [`reduction`].
    pub reduction: u32,
    /// Threads of a team: a power of two up to 32, or the whole block.
    pub team: NonZeroU32,
    /// Parts of a row. With one part for each row of [`reduction::ROWS`] a team ends its row alone;
    /// otherwise `rows * splits` is at most [`MAX_PARTIALS`].
    pub splits: NonZeroU32,
    /// Elements from one upstream gradient of a row to the next: 1, or 0 where one serves all.
    pub upstream_col_stride: u32,
    /// Where the forward kernels write: one value, one a row, or one an element.
    pub loss: Matrix,
    /// [`WORKSPACE_BYTES`] of scratch, for the forward kernels.
    pub workspace: u64,
    /// The gradient that arrives: one value, one a row, or one an element, as `reduction` says; null
    /// stands for ones.
    pub upstream: Matrix,
    /// Gradient of the input, or null where it is not wanted.
    pub grad_input: Matrix,
    /// Gradient of the target, or null where it is not wanted.
    pub grad_target: Matrix,
}

/// Arguments of the kernels that only read and write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CeilingArgs {
    /// The arrays that are read, then those that are written.
    pub arrays: [u64; 4],
    /// Groups of 16 bytes in each; whole tiles of the launch.
    pub groups: u64,
    /// Where a kernel that writes nothing could.
    pub sink: u64,
}
