//! Access to elements of 16-byte vectors by indices that are known only at run time. It uses
//! selects, because an index into an array of registers would move the array to local memory.

use crate::element::{Element, MAX_LANES, Real, unrolled};
use core::hint::select_unpredictable;
use cuda_std::hint::opaque;
use cuda_std::memory::Vec16;

/// Element `index` of a vector's values.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn get<E: Element>(values: &[E::Real; MAX_LANES], index: u32) -> E::Real {
    let mut value = E::Real::ZERO;
    // `opaque`: otherwise the compiler rewrites the comparisons below in terms of the element of
    // the row, and keeps one such element index in a register for each value.
    let index = opaque(index.into()) as u32;
    unrolled!(for lane in 0..E::LANES as usize; {
        // A select, so that the compiler generates no jump table.
        value = select_unpredictable(lane as u32 == index, values[lane], value);
    });
    value
}

/// Sets element `index` of a vector's values, if there is an index.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn set<E: Element>(
    values: &mut [E::Real; MAX_LANES],
    index: Option<u32>,
    value: E::Real,
) {
    if let Some(index) = index {
        // As in `get`.
        let index = opaque(index.into()) as u32;
        unrolled!(for lane in 0..E::LANES as usize; {
            values[lane] = select_unpredictable(lane as u32 == index, value, values[lane]);
        });
    }
}

/// Vector `k` of N, a power of two: a tree of selects by the bits of k, without a jump.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn select_vector<const N: usize>(mut x: [Vec16; N], k: u32) -> Vec16 {
    const { assert!(N.is_power_of_two() && N <= MAX_LANES) };
    // As in `get`.
    let k = opaque(k.into()) as u32;
    unrolled!(for bit in 0..3; {
        unrolled!(for pair in 0..4; {
            if pair < N >> (bit + 1) {
                unrolled!(for word in 0..4; {
                    let [low, high] = [x[2 * pair].0[word], x[2 * pair + 1].0[word]];
                    x[pair].0[word] = select_unpredictable(k >> bit & 1 == 1, high, low);
                });
            }
        });
    });
    x[0]
}

/// The elements of a vector, widened to the type of the arithmetic.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn widen<E: Element>(x: Vec16) -> [E::Real; MAX_LANES] {
    let mut logits = [E::Real::ZERO; MAX_LANES];
    unrolled!(for lane in 0..E::LANES as usize; {
        logits[lane] = E::extract(x, lane as u32).widen();
    });
    logits
}

/// The sum of a vector's values, added in pairs to shorten the chain of dependent additions.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn sum<E: Element>(values: [E::Real; MAX_LANES]) -> E::Real {
    let mut sum = values[0] + values[1];
    unrolled!(for pair in 1..MAX_LANES / 2; {
        if (pair as u32) < E::LANES / 2 {
            sum = sum + (values[2 * pair] + values[2 * pair + 1]);
        }
    });
    sum
}

/// A vector of which all elements are −∞.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(super) fn neg_infinity<E: Element>() -> Vec16 {
    E::pack([E::LOWEST; MAX_LANES])
}
