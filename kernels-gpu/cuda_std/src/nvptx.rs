//! The implementation for the device: every function is a PTX instruction.
//!
//! Barriers and shuffles are LLVM intrinsics and never `asm!`: an optimisation may duplicate an
//! `asm!` block, and a barrier that exists twice in divergent code never completes.

use crate::memory::{Vec16, Word};
use core::arch::{asm, nvptx};
use core::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    safe fn barrier_sync(barrier: i32);
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    safe fn shfl_bfly(members: i32, value: i32, lane_mask: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    safe fn shfl_idx(members: i32, value: i32, lane: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.membar.gl"]
    safe fn membar_gl();
    #[link_name = "llvm.nvvm.rcp.approx.ftz.f"]
    safe fn rcp_approx(x: f32) -> f32;
    #[link_name = "llvm.nvvm.rcp.approx.ftz.d"]
    safe fn rcp_approx_f64(x: f64) -> f64;
    #[link_name = "llvm.nvvm.ex2.approx.ftz.f"]
    safe fn ex2_approx(x: f32) -> f32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    safe fn vote_ballot(members: i32, of: bool) -> i32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    safe fn vote_any(members: i32, of: bool) -> bool;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    safe fn redux_max(value: i32, members: i32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    safe fn redux_add(value: i32, members: i32) -> i32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    safe fn bar_warp_sync(members: i32);
    #[link_name = "llvm.fma.f32"]
    safe fn llvm_fma_f32(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.fma.f64"]
    safe fn llvm_fma_f64(a: f64, b: f64, c: f64) -> f64;
}

#[inline(always)]
pub(crate) fn thread_idx() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

/// Read again wherever it is needed: if the compiler kept it from the start of a kernel to its end,
/// it would occupy a register throughout.
#[inline(always)]
pub(crate) fn block_idx() -> u32 {
    let index;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {0}, %ctaid.x;", out(reg32) index, options(nomem, nostack, preserves_flags))
    };
    index
}

#[inline(always)]
pub(crate) fn block_dim() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_x() as u32 }
}

/// As [`block_idx`].
#[inline(always)]
pub(crate) fn grid_dim() -> u32 {
    let blocks;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {0}, %nctaid.x;", out(reg32) blocks, options(nomem, nostack, preserves_flags))
    };
    blocks
}

/// A mark in the PTX, which the host replaces with an instruction if launches overlap.
#[inline(always)]
pub(crate) fn wait_for_launches_before() {
    // SAFETY: a comment.
    unsafe { asm!("// waits for the launches before", options(nostack, preserves_flags)) };
}

#[inline(always)]
pub(crate) fn sync_threads() {
    barrier_sync(0);
}

#[inline(always)]
pub(crate) fn shuffle_xor(value: u32, lane_mask: u32) -> u32 {
    shfl_bfly(-1, value as i32, lane_mask as i32, 31) as u32
}

#[inline(always)]
pub(crate) fn shuffle(value: u32, lane: u32) -> u32 {
    shfl_idx(-1, value as i32, lane as i32, 31) as u32
}

/// Loads and stores name the state space. Through a plain pointer, which may point anywhere, they
/// would be generic.
macro_rules! access {
    (
        $(#[$doc:meta])* $load:ident, $load_as:literal, $options:tt;
        $($store:ident, $store_as:literal;)?
    ) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) unsafe fn $load<T: Word>(at: *const T) -> T {
            // SAFETY: the caller's conditions; a word has one of these sizes, and any bits are one.
            unsafe {
                match size_of::<T>() {
                    1 => {
                        let value: u16;
                        asm!(
                            concat!($load_as, ".u8 {0}, [{1}];"),
                            out(reg16) value, in(reg64) at,
                            options $options,
                        );
                        core::mem::transmute_copy(&(value as u8))
                    }
                    2 => {
                        let value: u16;
                        asm!(
                            concat!($load_as, ".b16 {0}, [{1}];"),
                            out(reg16) value, in(reg64) at,
                            options $options,
                        );
                        core::mem::transmute_copy(&value)
                    }
                    4 => {
                        let value: u32;
                        asm!(
                            concat!($load_as, ".b32 {0}, [{1}];"),
                            out(reg32) value, in(reg64) at,
                            options $options,
                        );
                        core::mem::transmute_copy(&value)
                    }
                    _ => {
                        let value: u64;
                        asm!(
                            concat!($load_as, ".b64 {0}, [{1}];"),
                            out(reg64) value, in(reg64) at,
                            options $options,
                        );
                        core::mem::transmute_copy(&value)
                    }
                }
            }
        }

        $(
            #[inline(always)]
            pub(crate) unsafe fn $store<T: Word>(at: *mut T, value: T) {
                // SAFETY: the caller's conditions; a word has one of these sizes.
                unsafe {
                    match size_of::<T>() {
                        1 => {
                            let value: u8 = core::mem::transmute_copy(&value);
                            asm!(
                                concat!($store_as, ".b8 [{0}], {1};"),
                                in(reg64) at, in(reg16) u16::from(value),
                                options(nostack, preserves_flags),
                            );
                        }
                        2 => {
                            let value: u16 = core::mem::transmute_copy(&value);
                            asm!(
                                concat!($store_as, ".b16 [{0}], {1};"),
                                in(reg64) at, in(reg16) value,
                                options(nostack, preserves_flags),
                            );
                        }
                        4 => {
                            let value: u32 = core::mem::transmute_copy(&value);
                            asm!(
                                concat!($store_as, ".b32 [{0}], {1};"),
                                in(reg64) at, in(reg32) value,
                                options(nostack, preserves_flags),
                            );
                        }
                        _ => {
                            let value: u64 = core::mem::transmute_copy(&value);
                            asm!(
                                concat!($store_as, ".b64 [{0}], {1};"),
                                in(reg64) at, in(reg64) value,
                                options(nostack, preserves_flags),
                            );
                        }
                    }
                }
            }
        )?
    };
}
access!(load, "ld.global", (pure, readonly, nostack, preserves_flags); store, "st.global";);
access! {
    /// Addresses of shared memory are those of its own state space.
    load_shared, "ld.shared", (pure, readonly, nostack, preserves_flags); store_shared, "st.shared";
}

/// Reads what other blocks write. It is not `readonly`, so that each call reads again.
#[inline(always)]
pub(crate) unsafe fn load_relaxed(at: *const u64) -> u64 {
    let value;
    // SAFETY: the caller's conditions.
    unsafe {
        asm!(
            "ld.relaxed.gpu.global.u64 {0}, [{1}];",
            out(reg64) value, in(reg64) at,
            options(nostack, preserves_flags),
        );
    }
    value
}

#[inline(always)]
pub(crate) unsafe fn copy_to_shared<T>(to: *mut T, from: *const T) {
    // SAFETY: the caller's conditions.
    unsafe {
        match size_of::<T>() {
            16 => {
                asm!(
                    "cp.async.cg.shared.global [{0}], [{1}], 16;",
                    in(reg64) to, in(reg64) from,
                    options(nostack, preserves_flags),
                );
            }
            8 => {
                asm!(
                    "cp.async.ca.shared.global [{0}], [{1}], 8;",
                    in(reg64) to, in(reg64) from,
                    options(nostack, preserves_flags),
                );
            }
            _ => {
                asm!(
                    "cp.async.ca.shared.global [{0}], [{1}], 4;",
                    in(reg64) to, in(reg64) from,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn copy_end_to_shared(to: *mut Vec16, from: *const Vec16, _first: u32) {
    // SAFETY: the caller's conditions; the bytes before the first are read, too.
    unsafe { copy_to_shared(to, from) }
}

#[inline(always)]
pub(crate) unsafe fn copy_part_to_shared(
    to: *mut Vec16,
    from: *const Vec16,
    _first: u32,
    _end: u32,
) {
    // SAFETY: the caller's conditions; the bytes before the first and after the last are read, too.
    // `cp.async` could leave out the latter, but compute-sanitizer reports them all the same.
    unsafe { copy_to_shared(to, from) }
}

#[inline(always)]
pub(crate) fn end_copies() {
    // SAFETY: ends a batch.
    unsafe { asm!("cp.async.commit_group;", options(nostack, preserves_flags)) };
}

#[inline(always)]
pub(crate) fn wait_for_copies<const BUT: u32>() {
    // SAFETY: waits.
    unsafe { asm!("cp.async.wait_group {0};", const BUT, options(nostack, preserves_flags)) };
}

#[inline(always)]
pub(crate) fn max_of_warp(value: i32) -> i32 {
    redux_max(value, -1)
}

#[inline(always)]
pub(crate) fn sum_of_warp(value: u32) -> u32 {
    redux_add(value.cast_signed(), -1).cast_unsigned()
}

/// Predicated, without a branch, which would cost more than the store.
#[inline(always)]
pub(crate) unsafe fn store_streaming_if(is: bool, at: *mut Vec16, value: Vec16) {
    let Vec16([a, b, c, d]) = value;
    // SAFETY: the caller's conditions.
    unsafe {
        asm!(
            concat!(
                "{{ .reg .pred %is; setp.ne.u32 %is, {5}, 0; ",
                "@%is st.global.cs.v4.b32 [{4}], {{{0}, {1}, {2}, {3}}}; }}"
            ),
            in(reg32) a,
            in(reg32) b,
            in(reg32) c,
            in(reg32) d,
            in(reg64) at,
            in(reg32) u32::from(is),
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
pub(crate) unsafe fn store_relaxed(at: *mut u64, value: u64) {
    // SAFETY: the caller's conditions.
    unsafe {
        asm!(
            "st.relaxed.gpu.global.u64 [{0}], {1};",
            in(reg64) at, in(reg64) value,
            options(nostack, preserves_flags),
        );
    }
}

/// One access of 16 bytes is one instruction.
macro_rules! access_vec16 {
    ($load:ident, $load_as:literal; $store:ident, $store_as:literal;) => {
        access_vec16!($load, $load_as;);

        #[inline(always)]
        pub(crate) unsafe fn $store(at: *mut Vec16, value: Vec16) {
            let Vec16([a, b, c, d]) = value;
            // SAFETY: the caller's conditions.
            unsafe {
                asm!(
                    concat!($store_as, ".v4.b32 [{4}], {{{0}, {1}, {2}, {3}}};"),
                    in(reg32) a,
                    in(reg32) b,
                    in(reg32) c,
                    in(reg32) d,
                    in(reg64) at,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
    ($load:ident, $load_as:literal;) => {
        #[inline(always)]
        pub(crate) unsafe fn $load(at: *const Vec16) -> Vec16 {
            let (a, b, c, d);
            // SAFETY: the caller's conditions.
            unsafe {
                asm!(
                    concat!($load_as, ".v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];"),
                    out(reg32) a,
                    out(reg32) b,
                    out(reg32) c,
                    out(reg32) d,
                    in(reg64) at,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
            Vec16([a, b, c, d])
        }
    };
}
// Not the read-only path (`.nc`): a gradient may be written over its input.
access_vec16!(load_streaming, "ld.global.L1::no_allocate"; store_streaming, "st.global.cs";);
access_vec16!(load_vec16, "ld.global";);
access_vec16!(load_shared_vec16, "ld.shared"; store_shared_vec16, "st.shared";);

#[inline(always)]
pub(crate) unsafe fn prefetch(at: *const u8) {
    // SAFETY: the caller's condition.
    unsafe { asm!("prefetch.global.L2 [{0}];", in(reg64) at, options(nostack, preserves_flags)) };
}

#[inline(always)]
pub(crate) fn fence() {
    membar_gl();
}

#[inline(always)]
pub(crate) unsafe fn fetch_max(at: *mut u64, value: u64) {
    // SAFETY: the caller's conditions.
    unsafe { AtomicU64::from_ptr(at) }.fetch_max(value, Ordering::Relaxed);
    // LLVM drops the ordering of an atomic read-modify-write for PTX.
    fence();
}

#[inline(always)]
pub(crate) unsafe fn fetch_add(at: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's conditions.
    unsafe { AtomicU64::from_ptr(at) }.fetch_add(value, Ordering::Relaxed)
}

#[inline(always)]
pub(crate) fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    llvm_fma_f32(a, b, c)
}

#[inline(always)]
pub(crate) fn fma_f64(a: f64, b: f64, c: f64) -> f64 {
    llvm_fma_f64(a, b, c)
}

#[inline(always)]
pub(crate) fn f32_from_f16(bits: u16) -> f32 {
    f16::from_bits(bits) as f32
}

#[inline(always)]
pub(crate) fn f16_from_f32(value: f32) -> u16 {
    (value as f16).to_bits()
}

#[inline(always)]
pub(crate) fn bf16_from_f32(value: f32) -> u16 {
    let bits: u16;
    // SAFETY: a conversion between registers.
    unsafe {
        asm!(
            "cvt.rn.bf16.f32 {0}, {1};",
            out(reg16) bits,
            in(reg32) value,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    bits
}

macro_rules! pairs {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        pub(crate) fn $name(a: u32, b: u32) -> u32 {
            let pair: u32;
            // SAFETY: an operation on registers.
            unsafe {
                asm!(
                    concat!($instruction, " {0}, {1}, {2};"),
                    out(reg32) pair,
                    in(reg32) a,
                    in(reg32) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            pair
        }
    };
}
pairs!(max_f16_pairs, "max.f16x2");
pairs!(max_bf16_pairs, "max.bf16x2");
pairs!(min_or_nan_f16_pairs, "min.NaN.f16x2");
pairs!(min_or_nan_bf16_pairs, "min.NaN.bf16x2");
pairs!(max_or_nan_f16_pairs, "max.NaN.f16x2");
pairs!(max_or_nan_bf16_pairs, "max.NaN.bf16x2");

#[inline(always)]
pub(crate) fn max_or_nan_f32_bits(a: u32, b: u32) -> u32 {
    let max;
    // SAFETY: arithmetic in registers.
    unsafe {
        asm!(
            "max.NaN.f32 {0}, {1}, {2};",
            out(reg32) max,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    max
}

#[inline(always)]
pub(crate) fn min_or_nan_f32(a: f32, b: f32) -> f32 {
    let min;
    // SAFETY: arithmetic in registers.
    unsafe {
        asm!(
            "min.NaN.f32 {0}, {1}, {2};",
            out(reg32) min,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    min
}

#[inline(always)]
pub(crate) fn any(of: bool) -> bool {
    vote_any(-1, of)
}

#[inline(always)]
pub(crate) fn ballot(of: bool) -> u32 {
    vote_ballot(-1, of).cast_unsigned()
}

#[inline(always)]
pub(crate) fn spin() {}

/// A shuffle that changes nothing, but whose result ptxas cannot compute again. An address of
/// shared memory has 32 bits.
#[inline(always)]
pub(crate) fn in_register(address: u64) -> u64 {
    u64::from(shuffle_xor(address as u32, 0))
}

#[inline(always)]
pub(crate) fn opaque(mut value: u64) -> u64 {
    // SAFETY: no instruction. Not `pure`: it has to stay where it is, in the loop.
    unsafe { asm!("// {0}", inout(reg64) value, options(nomem, nostack, preserves_flags)) };
    value
}

#[inline(always)]
pub(crate) fn opaque_vec16(value: Vec16) -> Vec16 {
    let Vec16([mut a, mut b, mut c, mut d]) = value;
    // SAFETY: as above.
    unsafe {
        asm!(
            "// {0} {1} {2} {3}",
            inout(reg32) a,
            inout(reg32) b,
            inout(reg32) c,
            inout(reg32) d,
            options(nomem, nostack, preserves_flags),
        );
    }
    Vec16([a, b, c, d])
}

#[inline(always)]
pub(crate) fn divide_plain_f32(a: f32, b: f32) -> f32 {
    let reciprocal = rcp_approx(b);
    let quotient = a * reciprocal;
    // Divide the remainder that the quotient leaves, and add it.
    llvm_fma_f32(llvm_fma_f32(-quotient, b, a), reciprocal, quotient)
}

#[inline(always)]
pub(crate) fn divide_plain_f64(a: f64, b: f64) -> f64 {
    // Newton steps: from some 20 bits to twice as many, and again.
    let closer = |r: f64| llvm_fma_f64(llvm_fma_f64(-b, r, 1.0), r, r);
    a * closer(closer(rcp_approx_f64(b)))
}

#[inline(always)]
pub(crate) fn reciprocal_approx_f32(x: f32) -> f32 {
    rcp_approx(x)
}

#[inline(always)]
pub(crate) fn f64_from_halves(upper: u32, lower: u32) -> f64 {
    let bits: u64;
    // SAFETY: touches no memory.
    unsafe {
        asm!(
            "mov.b64 {}, {{{}, {}}};",
            out(reg64) bits, in(reg32) lower, in(reg32) upper,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    f64::from_bits(bits)
}

#[inline(always)]
pub(crate) fn reciprocal_approx_f64(x: f64) -> f64 {
    rcp_approx_f64(x)
}

#[inline(always)]
pub(crate) fn mask_below(value: u32, limit: u32) -> u32 {
    let mask: u32;
    // SAFETY: touches no memory.
    unsafe {
        asm!(
            "{{",
            ".reg .b32 least;",
            "max.u32 least, {1}, {2};",
            "sub.u32 least, {2}, least;",
            "shr.s32 least, least, 31;",
            "not.b32 {0}, least;",
            "}}",
            out(reg32) mask, in(reg32) value, in(reg32) limit - 1,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    mask
}

/// One instruction converts two numbers.
macro_rules! narrow_two {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        pub(crate) fn $name([low, high]: [f32; 2]) -> u32 {
            let bits: u32;
            // SAFETY: a conversion between registers.
            unsafe {
                asm!(
                    concat!($instruction, " {0}, {1}, {2};"),
                    out(reg32) bits,
                    in(reg32) high,
                    in(reg32) low,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            bits
        }
    };
}
narrow_two!(f16x2_from_f32, "cvt.rn.f16x2.f32");
narrow_two!(bf16x2_from_f32, "cvt.rn.bf16x2.f32");

#[inline(always)]
pub(crate) fn exp2_approx_f32(x: f32) -> f32 {
    ex2_approx(x)
}

#[inline(always)]
pub(crate) fn sync_warp() {
    bar_warp_sync(-1);
}
