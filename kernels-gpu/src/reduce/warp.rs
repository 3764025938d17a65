//! Sums and maxima over a warp, or over row groups of a warp, by shuffles.

use crate::element::{Real, unrolled};
use cuda_std::warp::{WARP_SIZE, WarpShuffleValue, lane_id, max_of_warp, sync_warp};

/// The most values that are summed side by side.
pub(super) const MAX_SUMS: usize = 4;

/// `value` combined over each row group of `threads` lanes, in every lane of the group. `threads`
/// is a power of two up to 32, and all lanes of the warp call this. Unrolled by hand: the compiler
/// would keep a loop, inside the loop over rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn in_warp<T: WarpShuffleValue>(
    mut value: T,
    threads: u32,
    combine: impl Fn(T, T) -> T,
) -> T {
    let with = |value: T, mask: u32| {
        let other = value.shuffle_xor(mask);
        if mask < threads { combine(value, other) } else { value }
    };
    if threads > 8 {
        if threads > 16 {
            value = with(value, 16);
        }
        value = with(value, 8);
    }
    with(with(with(value, 4), 2), 1)
}

/// The sum of each of `values` over a row group of `threads` lanes, in every lane of the group.
/// The lanes reconverge first: shuffles of lanes that have diverged are slow.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn warp_sums<R: Real, const N: usize>(mut values: [R; N], threads: u32) -> [R; N] {
    sync_warp();
    unrolled!(for index in 0..N; {
        values[index] = in_warp(values[index], threads, |a, b| a + b);
    });
    values
}

/// Reduce-scatter over the warp: the lanes form N parts of 32 / N neighbours, and every lane of
/// part `k` gets the warp's sum of `values[k]`. In each step a lane exchanges half of its values
/// for half of another lane's, which takes fewer shuffles than computing all sums in all lanes.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn scatter_sums<R: Real, const N: usize>(mut values: [R; N]) -> R {
    const { assert!(N.is_power_of_two() && N <= MAX_SUMS) };
    sync_warp();
    let (mut remaining, mut mask) = (N, WARP_SIZE);
    unrolled!(for _step in 0..2; {
        if remaining > 1 {
            (remaining, mask) = (remaining / 2, mask / 2);
            let upper = lane_id() & mask != 0;
            unrolled!(for index in 0..2; {
                if index < remaining {
                    let (low, high) = (values[index], values[(remaining + index) % N]);
                    let (keeps, gives) = if upper { (high, low) } else { (low, high) };
                    values[index] = keeps + gives.shuffle_xor(mask);
                }
            });
        }
    });
    in_warp(values[0], mask, |a, b| a + b)
}

/// The sum of each of `values` over the warp, in lane 0 only.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn sums_in_lane<R: Real, const N: usize>(values: [R; N]) -> [R; N] {
    gather_sums(scatter_sums(values))
}

/// The sums that [`scatter_sums`] has scattered over the N parts of the warp, in lane 0 only.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn gather_sums<R: Real, const N: usize>(scattered: R) -> [R; N] {
    let mut sums = [scattered; N];
    unrolled!(for index in 1..MAX_SUMS; {
        if index < N {
            sums[index] = scattered.shuffle_xor(index as u32 * (WARP_SIZE / N as u32));
        }
    });
    sums
}

/// The largest `value` of the warp, in every lane. No value is NaN.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn warp_max<R: Real>(value: R) -> R {
    sync_warp();
    if size_of::<R>() > 4 {
        return in_warp(value, WARP_SIZE, R::max);
    }
    // One integer instruction finds the maximum. Read as integers, the bits of floats are in the
    // order of the floats, except that negative ones are in reverse: flip all bits of these but the
    // sign.
    let flip_negative = |bits: i32| bits ^ (bits >> 31 & i32::MAX);
    let max = flip_negative(max_of_warp(flip_negative(value.to_bits64() as i32)));
    R::from_bits64(u64::from(max.cast_unsigned()))
}

/// The largest `value` of a row group of `threads` lanes, in every lane of the group. No value is
/// NaN.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) fn group_max<R: Real>(value: R, threads: u32) -> R {
    sync_warp();
    in_warp(value, threads, R::max)
}
