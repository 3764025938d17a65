//! What host and kernels must agree on: dtypes, block sizes, and the arguments of each kernel.
//!
//! A kernel takes one argument, a `repr(C)` structure of this module by value, so that both sides
//! are compiled from the same definition. Addresses are plain `u64`: the host has no pointers into
//! device memory.

/// An element type of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
}

impl Dtype {
    /// The name that entries carry, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
        }
    }
}

/// Threads of a block of the elementwise kernels. 512 threads leave each of them enough registers
/// for eight 16-byte loads in flight at full occupancy of the memory system.
pub const BLOCK: u32 = 512;

/// 16-byte loads of each input that a thread has in flight.
pub const UNROLL: u32 = 4;

/// The most blocks of a grid that reduces: one partial sum each. 16 for each of the 132
/// multiprocessors of a full Hopper, and the same number on every device, so that a sum has the
/// same bits on all of them.
pub const MAX_PARTIALS: u32 = 132 * 16;

/// Bytes of the scratch memory that a reduction needs: the count of finished blocks (zero between
/// launches, in the first 16 bytes), then the partial sums.
pub const WORKSPACE_BYTES: usize = 16 + MAX_PARTIALS as usize * 8;

/// Arguments of the kernels that compare two tensors element by element.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PairwiseArgs {
    /// Input, `len` elements.
    pub input: u64,
    /// Target, `len` elements.
    pub target: u64,
    /// Elements.
    pub len: u64,
    /// What the sum is divided by: 1 for a sum, the number of elements for a mean.
    pub divisor: f64,
    /// The scalar result (f32), written by the forward kernels.
    pub loss: u64,
    /// [`WORKSPACE_BYTES`] of scratch, for the forward kernels.
    pub workspace: u64,
    /// The gradient that arrives at the scalar result (f32); null stands for 1.
    pub upstream: u64,
    /// Gradient of the input, `len` elements, or null where it is not wanted.
    pub grad_input: u64,
    /// Gradient of the target, `len` elements, or null where it is not wanted.
    pub grad_target: u64,
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
