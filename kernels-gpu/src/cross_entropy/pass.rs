//! What all passes over rows share: the target's part in a row, what gradients are made of, and
//! what becomes of a row's sums.

use super::label::{
    Label, ask_for_targets, class_weight, label, load_class, load_classes, normaliser,
};
use super::mode;
use super::row_group::RowGroup;
use super::stats::Stats;
use crate::abi::{CACHE_LINE, CrossEntropyArgs, TargetFault, reduction, saved};
use crate::cut::Row;
use crate::element::{Element, Real, unrolled};
use crate::math::{exp_m1_below, quotient};
use crate::reduce::{Normaliser, Workspace};
use core::marker::PhantomData;
use cuda_std::hint::opaque;
use cuda_std::memory::{load, prefetch, store};
use cuda_std::thread::wait_for_launches_before;

/// What a row adds to the sums: its loss, its class's weight, its squared log-sum-exp, one.
pub(crate) const TERMS: usize = 4;

cuda_std::shared_array! {
    /// [`TERMS`] sums over the rows that a block has finished.
    fn block_terms() -> [f64; 4];
}

/// The sums over the rows that a block has finished before its last, each by one thread, of which a
/// barrier stands between any two.
pub(crate) struct BlockTerms;

impl BlockTerms {
    #[inline(always)]
    pub(crate) fn set(terms: [f64; TERMS]) {
        unrolled!(for term in 0..TERMS; {
            // SAFETY: one thread at a time.
            unsafe { block_terms().set(term as u32, terms[term]) };
        });
    }

    /// These and `terms`.
    #[inline(always)]
    pub(crate) fn and(mut terms: [f64; TERMS]) -> [f64; TERMS] {
        unrolled!(for term in 0..TERMS; {
            // SAFETY: as in `set`.
            terms[term] += unsafe { block_terms().get(term as u32) };
        });
        terms
    }
}

/// What the gradients of a row are made of.
pub(crate) struct Factors<R> {
    /// Whether the row counts. If it does not, all its gradients are 0, whatever the class weights
    /// are.
    pub(crate) counts: bool,
    /// An element's probability is exp(x − center) · inverse.
    pub(crate) center: R,
    pub(crate) inverse: R,
    /// The probability times this is the gradient, ...
    pub(crate) factor: R,
    /// ... less this times the class's share of the target, [`Pass::share_of`]; the shares' sum.
    pub(crate) by_share: R,
    pub(crate) weight: R,
    /// What the row's class adds, times its probability less 1, and what z-loss does, times the
    /// probability.
    pub(crate) by_class: R,
    pub(crate) by_z: R,
    /// All other probabilities, where the row's class is the likeliest.
    pub(crate) others: R,
    /// log Σ exp(x − m); for probabilities.
    pub(crate) log_sum: R,
    /// The factor of the gradient of a target's probability.
    pub(crate) by_target: R,
}

impl<R: Real> Factors<R> {
    /// Of a row that does not count.
    pub(crate) const NONE: Self = Factors {
        counts: false,
        center: R::ZERO,
        inverse: R::ZERO,
        factor: R::ZERO,
        by_share: R::ZERO,
        weight: R::ZERO,
        by_class: R::ZERO,
        by_z: R::ZERO,
        others: R::ZERO,
        log_sum: R::ZERO,
        by_target: R::ZERO,
    };
}

/// What the forward pass saves of a row for the gradients.
#[derive(Clone, Copy)]
pub(crate) struct Saved<R> {
    max: R,
    log_sum: R,
    weight: R,
}

/// What a mean is divided by: the sum of the class weights of the rows that count, for the z-loss
/// their number.
#[derive(Clone, Copy)]
pub(crate) enum Total {
    Weights,
    Rows,
}

/// Who knows it.
pub(crate) trait Totals: Copy {
    fn total(self, which: Total) -> f64;
}

impl Totals for Normaliser {
    #[inline(always)]
    fn total(self, which: Total) -> f64 {
        self.wait(which as u32)
    }
}

/// Those that the first blocks add up, of which the weights' has been asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) ahead: Normaliser,
    pub(crate) got: u64,
}

impl Asked {
    /// Asks, if there is to be such a total.
    #[inline(always)]
    pub(crate) fn new(args: &CrossEntropyArgs, ahead: Normaliser) -> Self {
        let got = if args.divisor == 0.0 { ahead.ask(Total::Weights as u32) } else { 0 };
        Asked { ahead, got }
    }
}

impl Totals for Asked {
    #[inline(always)]
    fn total(self, which: Total) -> f64 {
        match which {
            Total::Weights => self.ahead.wait_with(which as u32, self.got),
            Total::Rows => self.ahead.total(which),
        }
    }
}

/// The totals that a forward pass has left.
#[derive(Clone, Copy)]
struct SavedNormaliser {
    start: u64,
}

impl Totals for SavedNormaliser {
    #[inline(always)]
    fn total(self, which: Total) -> f64 {
        // SAFETY: by the kernels' condition 1, two of them are there where they are asked for.
        unsafe { load((self.start as *const f64).wrapping_add(which as usize)) }
    }
}

cuda_std::shared_array! {
    /// The scale of the gradients of a block's row, that of those of its z-loss, and the weight of
    /// its class: the first thread writes them before the barrier that stands in each row.
    pub(crate) fn scales_of_row() -> [u64; 3];
}

/// What a pass writes of each row's results.
pub(crate) mod writes {
    /// Nothing, where the pass [is plain](super::Pass::is_plain).
    pub(crate) const NOTHING: u32 = 0;
    /// Its loss, if it is asked for.
    pub(crate) const LOSS: u32 = 1;
    /// The same, and what is to be saved.
    pub(crate) const ALL: u32 = 2;
}

/// A pass over the rows.
pub(crate) struct Pass<'a, E: Element, const MODE: u32> {
    pub(crate) args: &'a CrossEntropyArgs,
    /// Whether arguments that say how a row is finished are asked for only there.
    late: bool,
    element: PhantomData<E>,
}

impl<'a, E: Element, const MODE: u32> Pass<'a, E, MODE> {
    #[inline(always)]
    pub(crate) fn new(args: &'a CrossEntropyArgs) -> Self {
        Pass { args, late: false, element: PhantomData }
    }

    /// One of which the rows begin with what they need: what says how they are finished is asked
    /// for only then.
    #[inline(always)]
    pub(crate) fn finishing_late(args: &'a CrossEntropyArgs) -> Self {
        Pass { args, late: true, element: PhantomData }
    }

    /// The same pass, where targets are known to be classes.
    #[inline(always)]
    pub(crate) fn of_classes(&self) -> Pass<'a, E, { mode::CLASS }> {
        Pass { args: self.args, late: self.late, element: PhantomData }
    }
}

impl<E: Element, const MODE: u32> Pass<'_, E, MODE> {
    /// Whether the target has a share for every class.
    pub(crate) const DENSE: bool = MODE != mode::CLASS;

    /// A class's share of the target: its weight by the [`unit`](Self::unit) of weights, or q, of
    /// which `t` is the probability.
    ///
    /// # Safety
    /// The kernels' condition 1; `class` is one.
    #[inline(always)]
    pub(crate) unsafe fn share_of(&self, class: u32, t: E::Real) -> E::Real {
        // SAFETY: the caller's condition.
        let weight = unsafe { class_weight::<E>(self.args.weight, class) };
        self.share_by_weight(weight, t)
    }

    /// The same of a class with this weight.
    #[inline(always)]
    pub(super) fn share_by_weight(&self, weight: E::Real, t: E::Real) -> E::Real {
        if MODE != mode::PROBABILITIES {
            return weight * self.unit();
        }
        let share = E::Real::from_f64(self.args.share);
        weight * self.stage().fma(t, share)
    }

    /// What smoothing multiplies class weights by: the power of two next below 1/C. The sum over
    /// all classes of x − m by their weights is then in the range of x − m, and multiplying by it
    /// rounds nothing.
    #[inline(always)]
    pub(super) fn unit(&self) -> E::Real {
        let power = u64::from(u32::BITS - self.args.cols.leading_zeros());
        let bits =
            if size_of::<E::Real>() == 4 { (127 - power) << 23 } else { (1023 - power) << 52 };
        E::Real::from_bits64(bits)
    }

    /// ε/C by which smoothing multiplies what is [in units](Self::unit), or 1 for probabilities,
    /// whose shares have it already.
    #[inline(always)]
    fn by_unit(&self) -> E::Real {
        if MODE == mode::PROBABILITIES {
            return E::Real::ONE;
        }
        E::Real::from_f64(self.args.share) * E::Real::ONE.over_plain(self.unit())
    }

    /// An argument that says how a row is finished.
    #[inline(always)]
    fn of_end(&self, value: u64) -> u64 {
        if self.late { opaque(value) } else { value }
    }

    /// Whether λ is not 0; as a whole number, which takes no registers of float64.
    #[inline(always)]
    fn has_z_loss(&self) -> bool {
        self.of_end(self.args.z_loss.to_bits()) << 1 != 0
    }

    /// Whether of the sums over rows only those of the losses and of the class weights are needed:
    /// of a small call, the sums are the most.
    #[inline(always)]
    pub(crate) fn has_two_sums(&self) -> bool {
        !self.has_z_loss() && self.of_end(self.args.totals) == 0
    }

    /// λ, made where it is needed: before the rows, it would take registers through all of them.
    #[inline(always)]
    fn z_loss(&self) -> f64 {
        f64::from_bits(opaque(self.args.z_loss.to_bits()))
    }

    /// The part of the target that smoothing leaves; of a class without smoothing known to be all.
    #[inline(always)]
    fn stage(&self) -> E::Real {
        if MODE == mode::CLASS { E::Real::ONE } else { E::Real::from_f64(self.args.keep) }
    }

    /// The class of a row; of a row of probabilities one to be ignored.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is one of `rows`.
    #[inline(always)]
    pub(crate) unsafe fn class(&self, row: u64) -> i64 {
        if MODE == mode::PROBABILITIES {
            return self.args.ignore_index;
        }
        // SAFETY: the caller's condition.
        unsafe {
            if self.late {
                // As one of several rows, of which there may be none: the compiler stages less in
                // registers.
                let [class] = load_classes(self.args, row, 0);
                class
            } else {
                load_class(self.args, row)
            }
        }
    }

    /// What the class of a row says.
    ///
    /// # Safety
    /// The kernels' condition 1.
    #[inline(always)]
    pub(crate) unsafe fn label(&self, class: i64) -> Label<E::Real> {
        // SAFETY: the caller's condition.
        unsafe { self.label_with(self.args.weight, class) }
    }

    /// The same, where the pass [is plain](Self::is_plain).
    ///
    /// # Safety
    /// As [`label`](Self::label).
    #[inline(always)]
    pub(crate) unsafe fn plain_label(&self, class: i64) -> Label<E::Real> {
        // SAFETY: the caller's condition.
        unsafe { self.label_with(0, class) }
    }

    /// The same, with class weights at `weights` unless it is null.
    ///
    /// # Safety
    /// As [`label`](Self::label); `weights` is the weights' address, or null.
    #[inline(always)]
    unsafe fn label_with(&self, weights: u64, class: i64) -> Label<E::Real> {
        if MODE == mode::PROBABILITIES {
            return Label { weight: E::Real::ONE, counts: true, ..Label::NONE };
        }
        // SAFETY: the caller's conditions.
        unsafe { label::<E>(self.args, weights, class) }
    }

    /// Whether the call is [plain](CrossEntropyArgs::is_plain).
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.of_end(self.args.plain.into()) != 0
    }

    /// Asks for the row that is `ahead` of this one: where blocks compute and write, what they have
    /// registers for is too little under way.
    ///
    /// # Safety
    /// The kernels' condition 1; all threads of the row group call it.
    #[inline(always)]
    pub(crate) unsafe fn prefetch(&self, row: u64, group: RowGroup) {
        // SAFETY: the caller's conditions.
        unsafe { self.prefetch_ahead(row, group, |bytes| (0, bytes)) };
    }

    /// Asks for part `part` of that row, `held` vectors of 16 bytes a thread.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch).
    #[inline(always)]
    pub(crate) unsafe fn prefetch_part(&self, row: u64, part: u32, held: usize, group: RowGroup) {
        let of_part = group.threads * held as u32 * 16;
        let part = |bytes: u32| (part * of_part, bytes.min((part + 1) * of_part));
        // SAFETY: the caller's conditions.
        unsafe { self.prefetch_ahead(row, group, part) };
    }

    /// Asks for bytes of the row that is `ahead`, of those that are to be asked for.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch); they are some of those.
    #[inline(always)]
    unsafe fn prefetch_ahead(&self, row: u64, group: RowGroup, which: impl Fn(u32) -> (u32, u32)) {
        let (args, row) = (self.args, row + u64::from(self.args.ahead));
        if args.ahead != 0 && row < args.rows {
            let (from, to) = which(args.ahead_bytes);
            // SAFETY: the caller's conditions.
            unsafe { self.prefetch_bytes(Row::<E>::address(args.input, row), from, to, group) };
        }
    }

    /// Asks for bytes `from` to `to` of the row that begins at `start`.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch); the row has as many.
    #[inline(always)]
    unsafe fn prefetch_bytes(&self, start: u64, from: u32, to: u32, group: RowGroup) {
        let mut at = from + group.lane * CACHE_LINE;
        while at < to {
            // SAFETY: the caller's condition; the bytes are the row's.
            unsafe { prefetch((start + u64::from(at)) as *const u8) };
            at += group.threads * CACHE_LINE;
        }
    }

    /// Waits for the launches before this one; the first blocks ask for their rows before. While a
    /// launch ends, memory has little to do; and what it still writes of them is in the
    /// second-level cache as anywhere. Where gradients are written, memory has enough to do until
    /// the end.
    ///
    /// # Safety
    /// As [`prefetch`](Self::prefetch), of `row`, if it is one of `rows`.
    #[inline(always)]
    pub(crate) unsafe fn begin(&self, block: u32, row: u64, group: RowGroup) {
        let is_row = row < self.args.rows;
        let start = is_row.then(|| Row::<E>::address(self.args.input, row));
        // SAFETY: the caller's conditions.
        unsafe { self.begin_at(block, start, group) };
    }

    /// The same, of the row that begins at `start`, if there is one.
    ///
    /// # Safety
    /// As [`begin`](Self::begin).
    #[inline(always)]
    pub(crate) unsafe fn begin_at(&self, block: u32, start: Option<u64>, group: RowGroup) {
        if block < self.args.early_blocks
            && let Some(start) = start
        {
            // SAFETY: the caller's conditions.
            unsafe { self.prefetch_bytes(start, 0, self.args.early_bytes, group) };
        }
        wait_for_launches_before();
    }

    /// Waits likewise, in a grid whose first blocks add up totals: these ask for their targets.
    ///
    /// # Safety
    /// As [`begin`](Self::begin).
    #[inline(always)]
    pub(crate) unsafe fn begin_with_normaliser(&self) {
        // SAFETY: the caller's conditions.
        unsafe { ask_for_targets(self.args) };
        wait_for_launches_before();
    }

    /// The logit of the row's class; 0 for what is none.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is one of `rows`.
    #[inline(always)]
    pub(crate) unsafe fn logit(&self, row: u64, class: i64) -> E::Real {
        // A negative one is beyond every row.
        if MODE == mode::PROBABILITIES || class.cast_unsigned() >= u64::from(self.args.cols) {
            return E::Real::ZERO;
        }
        let input = Row::<E>::at_cut(Row::<E>::address(self.args.input, row));
        // SAFETY: the caller's condition.
        unsafe { input.load(class as u32).widen() }
    }

    /// The upstream gradient of a row, divided by what the mean is: of its loss, or of its z-loss.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is one of `rows`.
    #[inline(always)]
    pub(crate) unsafe fn scale(&self, row: u64, totals: impl Totals, which: Total) -> E::Real {
        let args = self.args;
        let mut upstream = E::Real::ONE;
        if args.upstream != 0 {
            let index = row * u64::from(args.upstream_stride);
            // SAFETY: the caller's condition.
            upstream =
                unsafe { load((args.upstream as *const E::Real).wrapping_add(index as usize)) };
        }
        if args.divisor != 0.0 {
            return upstream / E::Real::from_f64(args.divisor);
        }
        let total = totals.total(which);
        if total == 0.0 { E::Real::NAN } else { upstream / E::Real::from_f64(total) }
    }

    /// The factors of a row from its stats and its [`scale`](Self::scale), and that of its z-loss
    /// if there is one.
    #[inline(always)]
    pub(crate) fn factors(
        &self,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        scale: E::Real,
        z_scale: impl FnOnce() -> E::Real,
    ) -> Factors<E::Real> {
        if !label.counts {
            return Factors::NONE;
        }
        let inverse = E::Real::ONE.over_plain(stats.ties + stats.rest);
        let weight = stats.weight;
        let mut factors =
            Factors { counts: true, center: stats.max, inverse, weight, ..Factors::NONE };
        factors.others = stats.others() * inverse;
        if MODE == mode::PROBABILITIES || self.args.z_loss != 0.0 {
            factors.log_sum = stats.log_sum();
        }
        self.scale_factors(label, scale, z_scale, &mut factors);
        factors
    }

    /// The gradient of the class's logit.
    #[inline(always)]
    pub(crate) fn at_class(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        logit: E::Real,
    ) -> E::Real {
        let apart = logit - factors.center;
        let p = apart.exp_below() * factors.inverse;
        self.at_class_of(label, factors, p, apart == E::Real::ZERO)
    }

    /// The same, from its probability, and whether it is the likeliest.
    #[inline(always)]
    pub(crate) fn at_class_of(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        p: E::Real,
        likeliest: bool,
    ) -> E::Real {
        // Of the likeliest class, what it lacks of 1.
        let less_one = if likeliest { -factors.others } else { p - E::Real::ONE };
        let of_shares = factors.by_share * (p * factors.weight - label.weight * self.unit());
        factors.by_class.fma(less_one, factors.by_z.fma(p, of_shares))
    }

    /// Writes the gradient of the class's logit over what was written of it as of any other.
    ///
    /// # Safety
    /// The label has a class, `to` is where the gradients of its row go, and nobody else accesses
    /// that of the class.
    #[inline(always)]
    pub(crate) unsafe fn store_at_class(
        &self,
        label: &Label<E::Real>,
        factors: &Factors<E::Real>,
        logit: E::Real,
        to: Row<E>,
    ) {
        // SAFETY: the caller's conditions.
        unsafe { to.store(label.class, E::narrow(self.at_class(label, factors, logit))) };
    }

    /// What the forward pass has saved of a row.
    ///
    /// # Safety
    /// As [`scale`](Self::scale), and what is saved is of the same rows.
    #[inline(always)]
    pub(crate) unsafe fn saved_of(&self, row: u64) -> Saved<E::Real> {
        // SAFETY: the caller's condition.
        let of = |which| unsafe { load(self.saved(row, which)) };
        Saved { max: of(saved::MAX), log_sum: of(saved::LOG_SUM), weight: of(saved::WEIGHT) }
    }

    /// The [scale](Self::scale) of a row's gradients, by the totals that the forward pass has left.
    ///
    /// # Safety
    /// As `scale`.
    #[inline(always)]
    pub(crate) unsafe fn scale_of_saved(&self, row: u64, which: Total) -> E::Real {
        let totals = SavedNormaliser { start: self.args.totals };
        // SAFETY: the caller's condition.
        unsafe { self.scale(row, totals, which) }
    }

    /// The factors of a row from what is saved of it, and its `scale`s.
    #[inline(always)]
    pub(crate) fn factors_of_saved(
        &self,
        label: &Label<E::Real>,
        Saved { max, log_sum, weight }: Saved<E::Real>,
        scale: impl Fn(Total) -> E::Real,
    ) -> Factors<E::Real> {
        if !label.counts {
            return Factors::NONE;
        }
        let mut factors = Factors {
            counts: true,
            center: max,
            inverse: (-log_sum).exp_below(),
            others: -exp_m1_below(-log_sum),
            log_sum,
            weight,
            ..Factors::NONE
        };
        self.scale_factors(label, scale(Total::Weights), || scale(Total::Rows), &mut factors);
        factors
    }

    #[inline(always)]
    fn saved(&self, row: u64, which: u64) -> *mut E::Real {
        let start = self.of_end(self.args.saved) as *mut E::Real;
        start.wrapping_add((which * self.args.rows + row) as usize)
    }

    /// The factors with their scale, and with that of the z-loss.
    #[inline(always)]
    fn scale_factors(
        &self,
        label: &Label<E::Real>,
        scale: E::Real,
        z_scale: impl FnOnce() -> E::Real,
        factors: &mut Factors<E::Real>,
    ) {
        let args = self.args;
        let stage = self.stage();
        if args.z_loss != 0.0 {
            let twice = E::Real::from_f64(self.z_loss() + self.z_loss());
            let log_sum_exp = factors.center + factors.log_sum;
            factors.by_z = twice * log_sum_exp * z_scale();
        }
        if MODE != mode::PROBABILITIES {
            factors.by_class = stage * label.weight * scale;
            if Self::DENSE {
                factors.by_share = self.by_unit() * scale;
            }
        } else {
            factors.by_share = scale;
            factors.by_target = stage * scale;
        }
        let all = factors.by_class + factors.by_share * factors.weight + factors.by_z;
        factors.factor = all * factors.inverse;
    }

    /// Writes of a row's results what [`WRITES`](writes) says, and returns what it adds to the
    /// sums.
    ///
    /// # Safety
    /// The kernels' condition 1; `row` is one of `rows`, and this is its row group's first thread.
    #[inline(always)]
    pub(crate) unsafe fn finish_row<const WRITES: u32>(
        &self,
        row: u64,
        label: &Label<E::Real>,
        stats: Stats<E::Real>,
        logit: E::Real,
        workspace: Workspace,
    ) -> [f64; TERMS] {
        let args = self.args;
        if label.fault && self.of_end(args.fault) != 0 {
            workspace.report_row(row);
        }
        let log_sum = stats.log_sum();
        let log_sum_exp = stats.max + log_sum;
        if WRITES == writes::ALL && self.of_end(args.saved) != 0 {
            // SAFETY: the caller's conditions.
            unsafe {
                store(self.saved(row, saved::MAX), stats.max);
                store(self.saved(row, saved::LOG_SUM), log_sum);
                store(self.saved(row, saved::WEIGHT), stats.weight);
                store(self.saved(row, saved::LOG_SUM_EXP), log_sum_exp);
            }
        }
        let mut term = E::Real::ZERO;
        if label.counts {
            if MODE != mode::PROBABILITIES {
                term = self.stage() * label.weight * (log_sum - (logit - stats.max));
            }
            if Self::DENSE {
                term = term + self.by_unit() * (stats.weight * log_sum - stats.dot);
            }
            if label.fault {
                term = E::Real::NAN;
            }
        }
        let square = if label.counts { log_sum_exp * log_sum_exp } else { E::Real::ZERO };
        if WRITES != writes::NOTHING && self.of_end(args.reduction.into()) == reduction::ROWS.into()
        {
            let mut loss = term;
            if self.has_z_loss() {
                loss = E::Real::from_f64(self.z_loss()).fma(square, loss);
            }
            // SAFETY: the caller's conditions.
            unsafe { store((args.loss as *mut E::Real).wrapping_add(row as usize), loss) };
        }
        let count = if label.counts { 1.0 } else { 0.0 };
        [term.to_f64(), label.weight.to_f64(), square.to_f64(), count]
    }

    /// Writes that no target is faulty, in the block that [finishes](Self::finish), and says
    /// whether the pass [is plain](Self::is_plain): before the sums, not behind them, where each
    /// instruction lengthens the grid.
    ///
    /// # Safety
    /// The kernels' condition 1; one thread of the grid `finishes`.
    #[inline(always)]
    pub(crate) unsafe fn begin_finish(&self, finishes: bool) -> bool {
        if finishes && MODE != mode::PROBABILITIES && self.args.fault != 0 {
            // SAFETY: the caller's conditions.
            unsafe { store(&raw mut (*self.fault()).classes, 0) };
        }
        self.is_plain()
    }

    /// Writes the results of all rows from their sums; `plain` is what
    /// [`begin_finish`](Self::begin_finish) has said.
    ///
    /// # Safety
    /// The kernels' conditions; this is the thread that has [begun](Self::begin_finish) it, and its
    /// block has taken what all blocks have left.
    #[inline(always)]
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
        // If a target is no class, the sum of the terms is NaN.
        if MODE != mode::PROBABILITIES && terms.is_nan() && args.fault != 0 {
            // SAFETY: the caller's conditions; a row that was reported is one of `rows`.
            unsafe {
                if let Some(row) = workspace.take_reported_row() {
                    let mut target = self.class(row);
                    if args.unsigned_classes != 0 {
                        target &= i64::from(u32::MAX);
                    }
                    store(&raw mut (*self.fault()).row, row);
                    store(&raw mut (*self.fault()).target, target);
                    store(&raw mut (*self.fault()).classes, self.args.cols.into());
                }
            }
        }
    }

    /// Where to write which target is no class.
    #[inline(always)]
    fn fault(&self) -> *mut TargetFault {
        self.args.fault as *mut TargetFault
    }

    /// Asks for the totals, in the block that adds up: before the sums, not behind them.
    #[inline(always)]
    pub(crate) fn load_normaliser(&self, ahead: Normaliser, adds_up: bool) -> [u64; 2] {
        if adds_up && self.args.divisor == 0.0 { ahead.ask_for_both() } else { [0; 2] }
    }

    /// As [`finish`](Self::finish), where the totals were known before, and
    /// [asked](Self::load_normaliser) for: from the sums of losses and of squared log-sum-exps.
    ///
    /// # Safety
    /// As `finish`.
    #[inline(always)]
    pub(crate) unsafe fn finish_with_normaliser(
        &self,
        plain: bool,
        [terms, squares]: [f64; 2],
        asked: [u64; 2],
        workspace: Workspace,
    ) {
        // Made here, not before the rows, through which it would take two registers.
        let none = f64::from_bits(opaque(0));
        let [mut weights, mut count] = [none; 2];
        if self.args.divisor == 0.0 {
            // SAFETY: condition 2; all blocks have left their sums, and wait for totals no more.
            [weights, count] = unsafe { normaliser(self.args).take(asked) };
        }
        // SAFETY: the caller's conditions.
        unsafe { self.finish(plain, [terms, weights, squares, count], workspace) };
    }
}
