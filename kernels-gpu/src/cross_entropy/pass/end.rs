//! The results of the whole call, from the sums over all rows.

use super::{Pass, TERMS};
use crate::abi::{TargetFault, attempt, reduction};
use crate::cross_entropy::label::normaliser;
use crate::cross_entropy::mode;
use crate::element::{Element, Real};
use crate::math::quotient;
use crate::reduce::{ClassWeights, Normaliser, Workspace};
use cuda_std::hint::opaque;
use cuda_std::memory::store;

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Resets the call's [`TargetFault`] to none, in the thread that `finishes` the grid, and
    /// returns whether the call [is plain](Self::is_plain). Both are done before the sums arrive:
    /// after that, each instruction would lengthen the grid.
    ///
    /// # Safety
    /// 1. The kernels' condition 1.
    /// 2. At most one thread of the grid `finishes`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn begin_finish(&self, finishes: bool) -> bool {
        if finishes && MODE != mode::PROBABILITIES && self.args.fault != 0 {
            // SAFETY: the caller's conditions.
            unsafe {
                store(&raw mut (*self.fault()).classes, 0);
                if let Some(fault) = self.entropy_fault() {
                    store(&raw mut (*fault).classes, 0);
                }
            }
        }
        self.is_plain()
    }

    /// Writes the results of the call from the sums over all rows. `plain` is what
    /// [`begin_finish`](Self::begin_finish) returned.
    ///
    /// # Safety
    /// 1. The kernels' conditions.
    /// 2. This thread has called [`begin_finish`](Self::begin_finish).
    /// 3. Its block has read the sums that all blocks have published.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn finish(
        &self,
        plain: bool,
        [terms, weights, squares, count]: [f64; TERMS],
        workspace: Workspace,
    ) {
        let args = self.args;
        if plain || args.reduction == reduction::SCALAR {
            let by_totals = args.divisor == 0.0;
            let divisor = if by_totals { weights } else { args.divisor };
            let mean = quotient::<E::Real>(terms, divisor);
            let mut loss = if divisor == 0.0 { f64::NAN } else { mean };
            if !plain && self.has_z_loss() {
                let count = if by_totals { count } else { args.divisor };
                loss += quotient::<E::Real>(self.z_loss() * squares, count);
            }
            // SAFETY: the caller's conditions.
            unsafe { store(args.loss as *mut E::Real, E::Real::from_f64(loss)) };
        }
        // A target that is no class makes the sum of the losses NaN.
        if MODE != mode::PROBABILITIES && terms.is_nan() && args.fault != 0 {
            // SAFETY: the caller's conditions; a row that was reported is below `rows`.
            unsafe {
                if let Some(row) = workspace.take_reported_row() {
                    let mut target = self.class(row);
                    if args.unsigned_classes != 0 {
                        target &= i64::from(u32::MAX);
                    }
                    self.store_fault(self.fault(), row, target);
                    if let Some(fault) = self.entropy_fault() {
                        self.store_fault(fault, row, target);
                    }
                }
            }
        }
    }

    /// Where to report a target that is no class.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn fault(&self) -> *mut TargetFault {
        self.args.fault as *mut TargetFault
    }

    /// Reports at `fault` that the `target` of a row is no class.
    ///
    /// # Safety
    /// A [`TargetFault`] is at `fault`, and no other thread accesses it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    unsafe fn store_fault(&self, fault: *mut TargetFault, row: u64, target: i64) {
        // SAFETY: the caller's condition.
        unsafe {
            store(&raw mut (*fault).row, row);
            store(&raw mut (*fault).target, target);
            store(&raw mut (*fault).classes, self.args.cols.into());
        }
    }

    /// Issues the loads of the normaliser, in the block that sums the grid: before the sums arrive,
    /// not after.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) fn load_normaliser(&self, ahead: Normaliser, adds_up: bool) -> [u64; 2] {
        if adds_up && self.args.divisor == 0.0 { ahead.load_both() } else { [0; 2] }
    }

    /// [`finish`](Self::finish) in a grid whose first blocks have summed the normaliser. The rows'
    /// sums are those of the losses and of the squared log-sum-exps; `asked` is what
    /// [`load_normaliser`](Self::load_normaliser) returned.
    ///
    /// # Safety
    /// As [`finish`](Self::finish).
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn finish_with_normaliser(
        &self,
        plain: bool,
        [terms, squares]: [f64; 2],
        asked: [u64; 2],
        workspace: Workspace,
    ) {
        // Opaque, so that the compiler computes it here: computed before the rows, it would occupy
        // two registers throughout.
        let none = f64::from_bits(opaque(0));
        let [mut weights, mut count] = [none; 2];
        if self.args.divisor == 0.0 {
            // SAFETY: condition 2; all blocks have published their sums, so none of them waits for
            // the normaliser any more.
            [weights, count] = unsafe { normaliser(self.args).take(asked) };
        }
        if Self::HAS_LATE_SHARES && MODE == mode::WEIGHTED {
            // SAFETY: condition 2; as above, none of the blocks waits for the total any more.
            unsafe { ClassWeights::new(workspace).clear() };
        }
        if Self::HAS_ATTEMPTS && self.args.attempt != attempt::ONLY {
            // SAFETY: condition 2; all blocks of rows have published their sums. One that adds up
            // sums has nothing to do any more.
            unsafe { workspace.end_attempt(count == self.args.rows as f64) };
        }
        // SAFETY: the caller's conditions.
        unsafe { self.finish(plain, [terms, weights, squares, count], workspace) };
    }
}
