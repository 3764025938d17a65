//! Losses that compare an input and a target element by element, x and t: forward, backward, both.
//! What the loss is comes from [`Pairwise`].

use crate::abi::{PairwiseArgs, UNROLL};
use crate::element::{Element, MAX_LANES, Real};
use crate::reduce::grid_sum;
use cuda_std::memory::{Vec16, load, load_streaming, store, store_streaming};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};

/// A loss of pairs (x, t).
pub(crate) trait Pairwise: Copy {
    /// The loss as its arguments describe it.
    fn new(args: &PairwiseArgs) -> Self;
    /// What one pair adds to the sum.
    fn term<R: Real>(self, x: R, t: R) -> R;
    /// The gradient of the term by x, times `scale`.
    fn grad_input<R: Real>(self, x: R, t: R, scale: R) -> R;
    /// The gradient of the term by t, times `scale`.
    fn grad_target<R: Real>(self, x: R, t: R, scale: R) -> R;
}

/// A gradient of [`Pairwise`].
type Gradient<L, R> = fn(L, R, R, R) -> R;

/// loss = Σ term ÷ divisor.
///
/// # Safety
/// 1. `input` and `target` point to `len` elements in global memory, aligned for `E`.
/// 2. `loss` points to one `E::Real`; `workspace` satisfies [`grid_sum`]'s conditions.
/// 3. Nothing that is written overlaps anything else that `args` names.
#[inline(always)]
pub(crate) unsafe fn forward<E: Element, L: Pairwise>(args: &PairwiseArgs) {
    // SAFETY: the caller's conditions.
    unsafe {
        let sum = sweep::<E, L, true, false>(args, E::Real::ZERO);
        finish::<E>(args, sum);
    }
}

/// gradient = upstream ÷ divisor × gradient of the term, for each tensor it is wanted of.
///
/// # Safety
/// 1. As [`forward`]'s 1 and 3.
/// 2. `upstream` is null or points to one `E::Real`.
/// 3. `grad_input` and `grad_target` are each null or point to `len` elements, aligned for `E`.
#[inline(always)]
pub(crate) unsafe fn backward<E: Element, L: Pairwise>(args: &PairwiseArgs) {
    // SAFETY: the caller's conditions.
    unsafe {
        let scale = upstream::<E>(args);
        sweep::<E, L, false, true>(args, scale);
    }
}

/// [`forward`] and [`backward`] in one pass over input and target.
///
/// # Safety
/// As both.
#[inline(always)]
pub(crate) unsafe fn forward_backward<E: Element, L: Pairwise>(args: &PairwiseArgs) {
    // SAFETY: the caller's conditions.
    unsafe {
        let scale = upstream::<E>(args);
        let sum = sweep::<E, L, true, true>(args, scale);
        finish::<E>(args, sum);
    }
}

/// The factor of every gradient.
///
/// # Safety
/// [`backward`]'s condition 2.
#[inline(always)]
unsafe fn upstream<E: Element>(args: &PairwiseArgs) -> E::Real {
    let upstream = if args.upstream == 0 {
        1.0
    } else {
        // SAFETY: the caller's condition.
        unsafe { load(args.upstream as *const E::Real) }.to_f64()
    };
    E::Real::from_f64(upstream / args.divisor)
}

/// Sums over the grid and writes the loss.
///
/// # Safety
/// [`forward`]'s condition 2.
#[inline(always)]
unsafe fn finish<E: Element>(args: &PairwiseArgs, sum: E::Real) {
    let (loss, divisor) = (args.loss as *mut E::Real, args.divisor);
    // SAFETY: the caller's condition.
    unsafe {
        grid_sum(sum.to_f64(), args.workspace, |total| {
            store(loss, E::Real::from_f64(total / divisor));
        });
    }
}

/// One pass of the grid over all pairs. Returns the sum of this thread's terms (with `TERMS`) and
/// writes the gradients (with `GRADS`).
///
/// Where all tensors lie alike to 16 bytes, everything but the ends moves in groups of 16 bytes,
/// [`UNROLL`] of each input in flight in each thread; the ends, and tensors that lie unlike, element
/// by element.
///
/// # Safety
/// [`forward`]'s condition 1, and with `GRADS` [`backward`]'s condition 3.
#[inline(always)]
unsafe fn sweep<E: Element, L: Pairwise, const TERMS: bool, const GRADS: bool>(
    args: &PairwiseArgs,
    scale: E::Real,
) -> E::Real {
    let loss = L::new(args);
    let lanes = u64::from(E::LANES);
    let threads = u64::from(block_dim_x());
    let mut sums = [E::Real::ZERO; MAX_LANES];

    let mut unlike = args.input ^ args.target;
    if GRADS && args.grad_input != 0 {
        unlike |= args.input ^ args.grad_input;
    }
    if GRADS && args.grad_target != 0 {
        unlike |= args.input ^ args.grad_target;
    }
    let to_boundary = args.input.wrapping_neg() % 16 / size_of::<E>() as u64;
    let head =
        if unlike.is_multiple_of(16) && to_boundary < args.len { to_boundary } else { args.len };
    let groups = (args.len - head) / lanes;

    let at = |tensor: u64, group: u64| {
        (tensor + head * size_of::<E>() as u64 + group * 16) as *mut Vec16
    };
    let mut group_of_pairs = |group: u64, x: Vec16, t: Vec16| {
        if TERMS {
            for lane in 0..E::LANES {
                let (x, t) = (E::extract(x, lane).widen(), E::extract(t, lane).widen());
                sums[lane as usize] = sums[lane as usize] + loss.term(x, t);
            }
        }
        if GRADS {
            let grad = |of: Gradient<L, E::Real>| {
                E::pack(|lane| {
                    let (x, t) = (E::extract(x, lane).widen(), E::extract(t, lane).widen());
                    E::narrow(of(loss, x, t, scale))
                })
            };
            // SAFETY: condition 3; `group` lies within `len`, on a 16-byte boundary.
            unsafe {
                if args.grad_input != 0 {
                    store_streaming(at(args.grad_input, group), grad(L::grad_input));
                }
                if args.grad_target != 0 {
                    store_streaming(at(args.grad_target, group), grad(L::grad_target));
                }
            }
        }
    };

    // Tiles of UNROLL groups a thread, in turn to the blocks; the last one may be cut short.
    let tile = threads * u64::from(UNROLL);
    let mut start = u64::from(block_idx_x()) * tile;
    while start < groups {
        let first = start + u64::from(thread_idx_x());
        if start + tile <= groups {
            let mut x = [Vec16::default(); UNROLL as usize];
            let mut t = [Vec16::default(); UNROLL as usize];
            for k in 0..UNROLL as usize {
                let group = first + k as u64 * threads;
                // SAFETY: condition 1; the group lies within `len`, on a 16-byte boundary.
                unsafe {
                    x[k] = load_streaming(at(args.input, group));
                    t[k] = load_streaming(at(args.target, group));
                }
            }
            for k in 0..UNROLL as usize {
                group_of_pairs(first + k as u64 * threads, x[k], t[k]);
            }
        } else {
            let mut group = first;
            while group < groups {
                // SAFETY: as above.
                let (x, t) = unsafe {
                    (load_streaming(at(args.input, group)), load_streaming(at(args.target, group)))
                };
                group_of_pairs(group, x, t);
                group += threads;
            }
        }
        start += tile * u64::from(grid_dim_x());
    }

    // What the groups leave over, at both ends.
    let grouped = groups * lanes;
    let mut single = u64::from(block_idx_x()) * threads + u64::from(thread_idx_x());
    while single < args.len - grouped {
        let index = if single < head { single } else { single + grouped };
        let at = |tensor: u64| (tensor + index * size_of::<E>() as u64) as *mut E;
        // SAFETY: conditions 1 and 3; `index` lies within `len`.
        unsafe {
            let (x, t) = (load(at(args.input)).widen(), load(at(args.target)).widen());
            if TERMS {
                sums[0] = sums[0] + loss.term(x, t);
            }
            if GRADS && args.grad_input != 0 {
                store(at(args.grad_input), E::narrow(loss.grad_input(x, t, scale)));
            }
            if GRADS && args.grad_target != 0 {
                store(at(args.grad_target), E::narrow(loss.grad_target(x, t, scale)));
            }
        }
        single += threads * u64::from(grid_dim_x());
    }

    let mut sum = sums[0];
    for lane in &sums[1..E::LANES as usize] {
        sum = sum + *lane;
    }
    sum
}
