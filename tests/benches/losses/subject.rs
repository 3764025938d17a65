//! A shape on the device: makes its calls and checks their results.

use crate::Result;
use crate::arena::Arena;
use crate::data::{Data, Part, SMOOTHING, Z_LOSS};
use crate::layout::Layout;
use crate::shapes::{Extra, Loss, Pass, Shape};
use fused_loss::reduction::{DivergenceReduction, ElementwiseReduction};
use fused_loss::{
    CrossEntropy, Grads, KlDiv, Mean, Mse, RowMean, RowSum, Saved, Stream, Targets, Tensor, View,
    ViewMut, Workspace,
};
use tests::number::Number;

/// Allowed errors, as a multiple of those in the library's tests, which are for other shapes.
const SLACK: f64 = 4.0;

/// The rows at each end of a loss, and the columns at each end of a row, that are compared.
const COMPARED_ROWS: usize = 1 << 16;
const COMPARED_COLS: usize = 2048;

/// The views and the options of a shape's calls.
pub(crate) struct Subject<'a, T: Number<Loss: Number>> {
    arena: &'a Arena,
    shape: &'a Shape,
    layout: Layout,
    /// The offset of the single loss and its upstream gradient, after all copies.
    scalars: usize,
    weights: Option<Tensor<T>>,
    /// One per copy, if the backward pass needs it.
    saved: Vec<Saved<T::Loss>>,
}

/// Bytes that a subject needs after the copies.
pub(crate) const SCALARS: usize = 512;

impl<'a, T: Number<Loss: Number>> Subject<'a, T> {
    /// Fills the arena.
    pub(crate) fn new(
        arena: &'a Arena,
        shape: &'a Shape,
        layout: Layout,
        data: &Data<T>,
    ) -> Result<Self> {
        let upload = |values: &[T]| Tensor::from_slice(&arena.gpu, [values.len()], values);
        let input = upload(&data.input.elements)?;
        let of_rows = |copy: usize| copy * layout.slot + layout.of_rows;
        for copy in 0..layout.copies {
            arena.tile(copy * layout.slot, layout.matrix, &input)?;
        }
        if shape.target_is_a_matrix() {
            let target = upload(&data.target.elements)?;
            for copy in 0..layout.copies {
                arena.tile(copy * layout.slot + layout.target, layout.matrix, &target)?;
            }
        } else {
            let classes = Tensor::from_slice(&arena.gpu, [data.classes.len()], &data.classes)?;
            for copy in 0..layout.copies {
                arena.tile(of_rows(copy), shape.rows * size_of::<i64>(), &classes)?;
            }
        }
        let len = data.upstream.len();
        let upstream = Tensor::from_slice(&arena.gpu, [len], &data.upstream)?;
        if shape.has(Extra::Rows) && shape.pass == Pass::Backward {
            for copy in 0..layout.copies {
                arena.tile(of_rows(copy), shape.rows * size_of::<T::Loss>(), &upstream)?;
            }
        }
        let scalars = layout.bytes();
        arena.tile(scalars + SCALARS / 2, size_of::<T::Loss>(), &upstream)?;
        let weights = match data.weights.as_slice() {
            [] => None,
            weights => Some(upload(weights)?),
        };
        let mut subject = Subject { arena, shape, layout, scalars, weights, saved: Vec::new() };
        if shape.loss == Loss::Ce && shape.pass == Pass::Backward {
            for copy in 0..layout.copies {
                let (input, target) = (subject.input(copy)?, subject.targets(copy)?);
                let loss_of = subject.cross_entropy();
                let (loss, saved) = loss_of.forward_saving(input, target, &arena.stream)?;
                loss.check()?;
                subject.saved.push(saved);
            }
        }
        Ok(subject)
    }

    fn cross_entropy(&self) -> CrossEntropy<'_, T> {
        let has = |extra, value| if self.shape.has(extra) { value } else { 0.0 };
        let mut loss = CrossEntropy::mean()
            .label_smoothing(has(Extra::Smoothing, SMOOTHING))
            .z_loss(has(Extra::ZLoss, Z_LOSS));
        loss.weight = self.weights.as_ref().map(Tensor::view);
        loss
    }

    /// The address of a matrix's first row, `offset` bytes after the start of a copy.
    fn matrix(&self, copy: usize, offset: usize, of_ce: bool) -> u64 {
        let moved = self.shape.has(Extra::Offset) && of_ce == (self.shape.loss == Loss::Ce);
        let start = self.arena.at(copy * self.layout.slot + offset, self.layout.matrix);
        start + (usize::from(moved) * size_of::<T>()) as u64
    }

    fn view(&self, address: u64) -> fused_loss::Result<View<'a, T>> {
        let (shape, stride) = ([self.shape.rows, self.shape.cols], self.shape.stride());
        // SAFETY: the layout has this many bytes there, in the arena, which is waited for before it
        // is reused.
        unsafe { View::from_raw_strided(&self.arena.gpu, address, shape, stride) }
    }

    fn input(&self, copy: usize) -> fused_loss::Result<View<'a, T>> {
        self.view(self.matrix(copy, 0, true))
    }

    fn target(&self, copy: usize) -> fused_loss::Result<View<'a, T>> {
        self.view(self.matrix(copy, self.layout.target, false))
    }

    fn targets(&self, copy: usize) -> fused_loss::Result<Targets<'a, T>> {
        if self.shape.target_is_a_matrix() {
            return Ok(self.target(copy)?.into());
        }
        let bytes = self.shape.rows * size_of::<i64>();
        let address = self.arena.at(copy * self.layout.slot + self.layout.of_rows, bytes);
        // SAFETY: as in `view`; the classes are written by `new`.
        let view = unsafe { View::<i64>::from_raw(&self.arena.gpu, address, [self.shape.rows])? };
        Ok(view.into())
    }

    fn gradient(&self, copy: usize) -> fused_loss::Result<ViewMut<'a, T>> {
        let address = self.matrix(copy, self.layout.gradient, true);
        let (shape, stride) = ([self.shape.rows, self.shape.cols], self.shape.stride());
        // SAFETY: as in `view`; nothing else of a call overlaps it.
        unsafe { ViewMut::from_raw_strided(&self.arena.gpu, address, shape, stride) }
    }

    /// Where the loss of a copy is written, its bytes and its dimensions.
    fn place(&self, copy: usize) -> (usize, usize, Vec<usize>) {
        if self.shape.has(Extra::Rows) {
            let bytes = self.shape.rows * size_of::<T::Loss>();
            (copy * self.layout.slot + self.layout.of_rows, bytes, vec![self.shape.rows])
        } else {
            (self.scalars, size_of::<T::Loss>(), Vec::new())
        }
    }

    fn loss(&self, copy: usize) -> fused_loss::Result<ViewMut<'a, T::Loss>> {
        let (offset, bytes, dims) = self.place(copy);
        // SAFETY: as in `gradient`.
        unsafe { ViewMut::from_raw(&self.arena.gpu, self.arena.at(offset, bytes), dims) }
    }

    fn upstream(&self, copy: usize) -> fused_loss::Result<View<'a, T::Loss>> {
        let (mut offset, bytes, dims) = self.place(copy);
        if !self.shape.has(Extra::Rows) {
            offset += SCALARS / 2;
        }
        // SAFETY: as in `view`; written by `new`.
        unsafe { View::from_raw(&self.arena.gpu, self.arena.at(offset, bytes), dims) }
    }

    /// Queues the call of a copy.
    pub(crate) fn call(&self, copy: usize, workspace: &mut Workspace) -> fused_loss::Result<()> {
        let log_input = self.shape.has(Extra::Log);
        match self.shape.loss {
            Loss::Ce => self.call_cross_entropy(copy, workspace),
            Loss::Kl if self.shape.has(Extra::Rows) => {
                self.compare(&KlDiv::new().log_input(log_input).reduction(RowSum), copy, workspace)
            }
            Loss::Kl if self.shape.has(Extra::Mean) => {
                self.compare(&KlDiv::new().log_input(log_input).reduction(Mean), copy, workspace)
            }
            Loss::Kl => self.compare(&KlDiv::new().log_input(log_input), copy, workspace),
            Loss::Mse if self.shape.has(Extra::Rows) => {
                self.compare(&Mse::new().reduction(RowMean), copy, workspace)
            }
            Loss::Mse => self.compare(&Mse::mean(), copy, workspace),
        }
    }

    fn call_cross_entropy(&self, copy: usize, workspace: &mut Workspace) -> fused_loss::Result<()> {
        let (loss_of, stream) = (self.cross_entropy(), &self.arena.stream);
        let (input, target) = (self.input(copy)?, self.targets(copy)?);
        match self.shape.pass {
            Pass::Forward => {
                loss_of.forward_into(input, target, self.loss(copy)?, workspace, stream)
            }
            Pass::Both => {
                let (loss, gradient) = (self.loss(copy)?, self.gradient(copy)?);
                loss_of.forward_backward_into(input, target, loss, gradient, workspace, stream)
            }
            Pass::Backward => {
                let (saved, upstream) = (&self.saved[copy], self.upstream(copy)?);
                loss_of.backward_into(input, target, saved, upstream, self.gradient(copy)?, stream)
            }
        }
    }

    fn compare(
        &self,
        loss_of: &impl Compares<T>,
        copy: usize,
        workspace: &mut Workspace,
    ) -> fused_loss::Result<()> {
        let stream = &self.arena.stream;
        let (input, target) = (self.input(copy)?, self.target(copy)?);
        match self.shape.pass {
            Pass::Forward => loss_of.forward(input, target, self.loss(copy)?, workspace, stream),
            Pass::Both => {
                let (loss, gradient) = (self.loss(copy)?, self.gradient(copy)?.into());
                loss_of.both(input, target, loss, gradient, workspace, stream)
            }
            Pass::Backward => {
                let (upstream, gradient) = (self.upstream(copy)?, self.gradient(copy)?.into());
                loss_of.backward(input, target, upstream, gradient, stream)
            }
        }
    }

    /// Makes the first copy's call on results filled with NaN, and compares them with float64. It
    /// compares the loss of all rows, or the first and the last of per-row losses, and the
    /// gradients at both ends of some rows.
    pub(crate) fn check(&self, data: &Data<T>, workspace: &mut Workspace) -> Result<()> {
        let (offset, bytes, _) = self.place(0);
        if self.shape.pass != Pass::Backward {
            self.arena.spoil(offset, bytes)?;
        }
        if self.layout.writes > 0 {
            self.arena.spoil(self.layout.gradient, self.layout.matrix)?;
        }
        self.call(0, workspace)?;
        self.arena.stream.synchronize()?;
        let parts = data.parts();
        let all = data.all(&parts);
        if self.shape.pass != Pass::Backward {
            self.check_loss(&parts, all, offset)?;
        }
        if self.layout.writes > 0 {
            self.check_gradient(data, &parts, all)?;
        }
        Ok(())
    }

    /// The divisors of losses and z-losses and of their gradients.
    fn divisors(&self, all: Part) -> (f64, f64) {
        let (rows, cols) = (self.shape.rows as f64, self.shape.cols as f64);
        let divisor = match self.shape.loss {
            Loss::Ce => all.weight,
            Loss::Kl if self.shape.has(Extra::Rows) => 1.0,
            Loss::Kl if self.shape.has(Extra::Mean) => rows * cols,
            Loss::Kl => rows,
            Loss::Mse if self.shape.has(Extra::Rows) => cols,
            Loss::Mse => rows * cols,
        };
        (divisor, rows)
    }

    fn check_loss(&self, parts: &[Part], all: Part, offset: usize) -> Result<()> {
        let (divisor, rows) = self.divisors(all);
        let is = |row: &str, got: f64, part: Part| -> Result<()> {
            let expected = part.loss / divisor + part.z / rows;
            let size = part.size / divisor + part.z / rows;
            let off = (got - expected).abs();
            // Written so that NaN fails.
            if off <= SLACK * T::LOSS * size.max(f64::MIN_POSITIVE) {
                return Ok(());
            }
            Err(format!("wrong: the loss{row} is {got:e}, expected {expected:e}").into())
        };
        if !self.shape.has(Extra::Rows) {
            return is("", self.arena.read::<T::Loss>(offset, 1)?[0].wide(), all);
        }
        let len = self.shape.rows.min(COMPARED_ROWS);
        for start in [0, self.shape.rows - len] {
            let bytes = start * size_of::<T::Loss>();
            let got = self.arena.read::<T::Loss>(offset + bytes, len)?;
            for (row, got) in (start..).zip(got) {
                is(&format!(" of row {row}"), got.wide(), parts[row % parts.len()])?;
            }
        }
        Ok(())
    }

    fn check_gradient(&self, data: &Data<T>, parts: &[Part], all: Part) -> Result<()> {
        let (rows, cols) = (self.shape.rows, self.shape.cols);
        let (divisor, divisor_of_z) = self.divisors(all);
        let first = (self.matrix(0, self.layout.gradient, true) - self.arena.at(0, 0)) as usize;
        let mut some =
            [0, 1, 2, rows / 3, rows / 2, 2 * rows / 3, rows.saturating_sub(2), rows - 1];
        some.iter_mut().for_each(|row| *row = (*row).min(rows - 1));
        for row in some {
            let upstream = match self.shape.pass {
                Pass::Backward if self.shape.has(Extra::Rows) => data.upstream[row % data.rows],
                Pass::Backward => data.upstream[0],
                _ => T::Loss::round(1.0),
            };
            let (scale, z_scale) = (upstream.wide() / divisor, upstream.wide() / divisor_of_z);
            let len = cols.min(COMPARED_COLS);
            let class = data.classes.get(row % data.rows).map(|&class| class as usize);
            let ends = [Some(0), Some(cols - len), class.map(|class| class.min(cols - len))];
            for start in ends.into_iter().flatten() {
                let at = first + (row * self.shape.stride() + start) * size_of::<T>();
                let got = self.arena.read::<T>(at, len)?;
                let gradients: Vec<_> =
                    (start..start + len).map(|col| data.gradient(parts, row, col)).collect();
                let size = |largest: f64, each: &crate::data::Gradient| largest.max(each.terms);
                let largest = gradients.iter().fold(0.0, size) * scale.abs();
                for (k, (got, each)) in got.into_iter().zip(gradients).enumerate() {
                    let expected = each.of_loss * scale + each.of_z * z_scale;
                    let off = (got.wide() - expected).abs();
                    if off <= SLACK * T::allowed(expected, largest, largest) {
                        continue;
                    }
                    let (col, got) = (start + k, got.wide());
                    return Err(format!(
                        "wrong: the gradient of row {row}, column {col} is {got:e}, \
                         expected {expected:e}"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}

/// A loss that compares element by element.
trait Compares<T: Number> {
    fn forward(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        loss: ViewMut<'_, T::Loss>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> fused_loss::Result<()>;

    fn both(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        loss: ViewMut<'_, T::Loss>,
        gradient: Grads<'_, T, T::Loss>,
        workspace: &mut Workspace,
        stream: &Stream,
    ) -> fused_loss::Result<()>;

    fn backward(
        &self,
        input: View<'_, T>,
        target: View<'_, T>,
        upstream: View<'_, T::Loss>,
        gradient: Grads<'_, T, T::Loss>,
        stream: &Stream,
    ) -> fused_loss::Result<()>;
}

macro_rules! compares {
    ($($loss:ident of $reduction:ident;)+) => {$(
        impl<T: Number, R: $reduction<Value<T> = T::Loss>> Compares<T> for $loss<R> {
            fn forward(
                &self,
                input: View<'_, T>,
                target: View<'_, T>,
                loss: ViewMut<'_, T::Loss>,
                workspace: &mut Workspace,
                stream: &Stream,
            ) -> fused_loss::Result<()> {
                self.forward_into(input, target, loss, workspace, stream)
            }

            fn both(
                &self,
                input: View<'_, T>,
                target: View<'_, T>,
                loss: ViewMut<'_, T::Loss>,
                gradient: Grads<'_, T, T::Loss>,
                workspace: &mut Workspace,
                stream: &Stream,
            ) -> fused_loss::Result<()> {
                self.forward_backward_into(input, target, loss, gradient, workspace, stream)
            }

            fn backward(
                &self,
                input: View<'_, T>,
                target: View<'_, T>,
                upstream: View<'_, T::Loss>,
                gradient: Grads<'_, T, T::Loss>,
                stream: &Stream,
            ) -> fused_loss::Result<()> {
                self.backward_into(input, target, upstream, gradient, stream)
            }
        }
    )+};
}
compares! {
    KlDiv of DivergenceReduction;
    Mse of ElementwiseReduction;
}
