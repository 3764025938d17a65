//! Makes the arguments of a launch from the tensors of a call.

use super::{Call, Pairwise};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::grads::Grads;
use crate::launch::{Argument, alignment, rows_are_alike};
use crate::memory::Memory;
use crate::plan::{self, tiled};
use crate::reduction::Reduction;
use crate::shape::{Shape, check_shape};
use crate::stream::Workspace;
use kernels_gpu::abi::{
    Broadcast, IndexedArgs, Matrix, PairwiseArgs, RowBytes, Span, TileArgs, TiledArgs,
    UpstreamRows, VECTOR_BYTES, reduction,
};
use std::num::NonZeroU32;

/// What a launch needs in addition to its plan.
pub(super) struct Arguments<'a> {
    pub(super) args: PairwiseArgs,
    pub(super) reads: Vec<Argument<'a>>,
    pub(super) writes: Vec<Argument<'a>>,
    /// Whether all elements may be processed as one row.
    pub(super) dense: bool,
    /// Whether kernels that stage rows can compute the call. They support one weight for all
    /// elements, and at least one sum per row.
    pub(super) can_stage: bool,
    /// Whether the tiled kernels can write the gradients: each row of both has the same offset from
    /// a 16-byte boundary.
    pub(super) has_grads_alike: bool,
}

impl<R: Reduction> Pairwise<'_, R> {
    /// Checks the results of a call whose inputs are checked, and collects its arguments.
    pub(super) fn arguments<'a, T: Float>(
        &'a self,
        call: Call<'a, T, R::Value<T>>,
        workspace: &'a Workspace,
    ) -> Result<Arguments<'a>> {
        let Call { input, target, loss, grads, in_place } = call;
        let of_loss = self.reduction.shape(input.shape);
        let mut arguments = self.inputs::<T>(input, target, in_place, workspace)?;
        let has_loss = loss.is_some();
        // The dense kernels have one sum.
        arguments.dense &= R::KIND != reduction::ROWS || !has_loss;
        if let Some(loss) = loss {
            arguments.add_loss::<R::Value<T>>(loss.memory, of_loss)?;
            arguments.writes.push(("workspace", workspace.memory()));
        }
        if let Some(Grads { input: by_input, target: by_target, upstream }) = grads {
            if by_input.is_none() && by_target.is_none() && !in_place {
                return Err(Error::NoGradient { argument: "grads" });
            }
            if let Some(upstream) = upstream {
                arguments.add_upstream::<R::Value<T>>(upstream.memory, of_loss)?;
            }
            let (by_input, by_target) =
                (by_input.map(|by| by.memory), by_target.map(|by| by.memory));
            arguments.args.grad_input =
                arguments.add_gradient::<T>("grad_input", by_input, input.shape)?;
            arguments.args.grad_target =
                arguments.add_gradient::<T>("grad_target", by_target, input.shape)?;
            if in_place {
                arguments.args.grad_input = arguments.args.input;
                arguments.writes.push(("input", input));
            }
            let PairwiseArgs { grad_input, grad_target, .. } = &arguments.args;
            arguments.has_grads_alike = grad_input.start == 0
                || grad_target.start == 0
                || rows_are_alike(grad_input, grad_target, size_of::<T>());
        }
        let is_read =
            has_loss || arguments.args.grad_target.start != 0 || self.kernels.input_in_its_gradient;
        if !is_read {
            // The kernel loads an input although it does not need one. It loads the target twice,
            // from the cache the second time, so that one tensor is read from memory instead of
            // two.
            arguments.args.input = arguments.args.target;
        }
        Ok(arguments)
    }

    /// The arguments of a call without results.
    fn inputs<'a, T: Float>(
        &'a self,
        input: Memory<'a>,
        target: Memory<'a>,
        in_place: bool,
        workspace: &Workspace,
    ) -> Result<Arguments<'a>> {
        let shape = input.shape;
        let weights = self.broadcast_weights::<T>(shape)?;
        let mut reads = vec![("target", target)];
        reads.extend(self.weights.into_iter().flatten());
        if !in_place {
            reads.push(("input", input));
        }
        let args = PairwiseArgs {
            input: input.matrix(),
            target: target.matrix(),
            rows: shape.rows() as u64,
            cols: shape.cols() as u64,
            divisor: self.reduction.divisor(shape),
            parameter: self.parameter,
            reduction: R::KIND,
            group_threads: NonZeroU32::MIN,
            splits: NonZeroU32::MIN,
            upstream_col_stride: 0,
            tiles: TiledArgs::default(),
            packed: TileArgs::default(),
            indexed: IndexedArgs::default(),
            loss: Matrix::default(),
            workspace: workspace.memory().address,
            upstream: Matrix::default(),
            upstream_rows: UpstreamRows::default(),
            grad_input: Matrix::default(),
            grad_target: Matrix::default(),
            weights,
        };
        let is_one = |weight: &Broadcast| weight.row_stride == 0 && weight.col_stride == 0;
        let one_weight = weights.iter().all(is_one);
        let contiguous = input.is_dense() && target.is_dense();
        let dense = contiguous && one_weight;
        let can_stage = R::KIND != reduction::ELEMENTS && one_weight;
        let writes = Vec::new();
        Ok(Arguments { args, reads, writes, dense, can_stage, has_grads_alike: true })
    }

    /// The weights for an input of `shape`, as the kernels take them.
    pub(super) fn broadcast_weights<T: Float>(&self, shape: Shape) -> Result<[Broadcast; 2]> {
        let mut weights = [Broadcast::default(); 2];
        for (to, weight) in weights.iter_mut().zip(self.weights) {
            if let Some((argument, memory)) = weight {
                *to = broadcast::<T>(argument, memory, shape)?;
            }
        }
        Ok(weights)
    }
}

impl<'a> Arguments<'a> {
    /// The loss, elements of `V`, which must have the shape `expected`.
    fn add_loss<V: Float>(&mut self, memory: Memory<'a>, expected: Shape) -> Result<()> {
        check_shape("loss", expected, memory.shape)?;
        memory.check::<V>("loss")?;
        if self.args.reduction != reduction::ELEMENTS {
            memory.check_dense("loss")?;
        }
        self.dense &= memory.is_dense();
        self.args.loss = memory.matrix();
        self.writes.push(("loss", memory));
        Ok(())
    }

    /// The gradient of the loss, which has its shape.
    fn add_upstream<V: Float>(&mut self, memory: Memory<'a>, expected: Shape) -> Result<()> {
        check_shape("upstream", expected, memory.shape)?;
        memory.check::<V>("upstream")?;
        self.args.upstream = memory.matrix();
        match self.args.reduction {
            reduction::ELEMENTS => {
                self.args.upstream_col_stride = memory.element_stride as u32;
                let one_for_all = memory.row_stride == 0;
                self.dense &= memory.is_dense() || one_for_all;
            }
            reduction::ROWS => {
                if memory.element_stride == 1 {
                    memory.check_dense("upstream")?;
                }
                self.args.upstream.row_stride = memory.element_stride as u64;
                if memory.element_stride != 0 {
                    self.dense &= self.args.cols < 1 << 31;
                    self.args.upstream_rows = UpstreamRows {
                        reciprocal: u64::MAX / self.args.cols.max(1),
                        cols: self.args.cols as u32,
                    };
                }
            }
            _ => self.args.upstream.row_stride = 0,
        }
        self.reads.push(("upstream", memory));
        Ok(())
    }

    /// A gradient of the input's shape, `expected`, if it is wanted.
    fn add_gradient<T: Float>(
        &mut self,
        argument: &'static str,
        wanted: Option<Memory<'a>>,
        expected: Shape,
    ) -> Result<Matrix> {
        let Some(memory) = wanted else { return Ok(Matrix::default()) };
        check_shape(argument, expected, memory.shape)?;
        memory.check::<T>(argument)?;
        self.dense &= memory.is_dense();
        self.writes.push((argument, memory));
        Ok(memory.matrix())
    }
}

impl Arguments<'_> {
    /// The tensors that have an element for each element of the input.
    fn tensors(&self) -> impl Iterator<Item = &Matrix> {
        let PairwiseArgs { input, target, grad_input, grad_target, .. } = &self.args;
        [input, target, grad_input, grad_target].into_iter().filter(|tensor| tensor.start != 0)
    }

    /// Whether anything is written between rows that are read.
    pub(super) fn writes_between_rows(&self) -> bool {
        let is_between = |(_, written): &Argument<'_>| {
            self.reads.iter().any(|(_, read)| written.lies_between_rows_of(read))
        };
        self.writes.iter().any(is_between)
    }

    /// The rows, as the plan of the tiled kernels asks.
    pub(super) fn rows(&self, shape: Shape, element_bytes: usize) -> tiled::Rows {
        tiled::Rows {
            by_row: self.args.reduction == reduction::ROWS,
            rows: shape.rows(),
            cols: shape.cols(),
            element_bytes,
            alignment: alignment(self.tensors(), element_bytes),
            alike: self
                .tensors()
                .all(|tensor| rows_are_alike(tensor, &self.args.input, element_bytes)),
        }
    }
}

/// The tiles of the indexed kernels, for a call whose other arguments are `args`.
pub(super) fn indexed_args<T: Float>(args: &PairwiseArgs) -> IndexedArgs {
    let &PairwiseArgs { input, target, rows, cols, grad_input, grad_target, .. } = args;
    let by_element = args.reduction == reduction::ELEMENTS;
    let (loss, upstream) = if by_element { (args.loss, args.upstream) } else { Default::default() };
    let written = [loss, grad_input, grad_target];
    let base = written.into_iter().find(|tensor| tensor.start != 0).unwrap_or(input);

    let (size, vector) = (size_of::<T>() as u64, u64::from(VECTOR_BYTES));
    let bytes = |of: Matrix| of.row_stride * size;
    let row_bytes = RowBytes {
        base: bytes(base),
        input: bytes(input),
        target: bytes(target),
        loss: bytes(loss),
        upstream: bytes(upstream),
        grad_input: bytes(grad_input),
        grad_target: bytes(grad_target),
    };
    // Bytes of a row's first vector that are before the row.
    let is_same = rows == 1 || row_bytes.base.is_multiple_of(vector);
    let lead = if is_same { base.start % vector } else { vector - size };
    let of_row = (lead + cols * size).div_ceil(vector).max(1);
    let is_alike = |of: &Matrix| rows_are_alike(of, &base, size_of::<T>());
    let is_aligned = is_alike(&input) && is_alike(&target);
    let all = [base, input, target, loss, upstream, grad_input, grad_target];
    let can_join = all.into_iter().all(|of| u32::try_from(bytes(of)).is_ok());
    let tiles = plan::IndexedTiles::new(of_row, is_aligned, can_join);

    // A vector and its neighbours reach at most 32 bytes beyond their row. Rows do not overlap.
    let reach = 32_u64.div_ceil(cols.max(1) * size) as u32;
    let within = |of: Matrix| {
        let end = of.start + (rows.saturating_sub(1) * of.row_stride + cols) * size;
        let last = (end / vector).saturating_sub(1) * vector;
        Span { first: of.start.next_multiple_of(vector), last }
    };
    IndexedArgs {
        base: base.start,
        row_bytes,
        tiles: if cols == 0 { 0 } else { rows.div_ceil(tiles.rows.into()) * tiles.parts },
        parts: tiles.parts,
        per_part: u64::MAX / tiles.parts,
        of_row,
        rows_of_tile: tiles.rows,
        tile_vectors: tiles.vectors,
        per_row: if tiles.rows == 1 { 0 } else { u32::MAX / of_row as u32 },
        reach: [reach, reach + tiles.rows],
        within: [input, target, upstream].map(within),
        is_aligned: u32::from(is_aligned),
    }
}

/// Memory with one number for each element of `shape`, for each row or column, or for all of it.
fn broadcast<T: Float>(
    argument: &'static str,
    memory: Memory<'_>,
    shape: Shape,
) -> Result<Broadcast> {
    memory.check::<T>(argument)?;
    let got = memory.shape;
    let (by_row, by_col) = if got.len() == 1 {
        (false, false)
    } else if got == Shape::row(shape.cols()) {
        (false, true)
    } else if got == shape {
        (true, true)
    } else if got == shape.with_cols(1) {
        (true, false)
    } else {
        let expected = format!(
            "[], [{}], {} or {shape}: one for all, or one for each column, row or element",
            shape.cols(),
            shape.with_cols(1)
        );
        return Err(Error::Shape { argument, expected, got: got.to_string() });
    };
    Ok(Broadcast {
        start: if got.is_empty() { 0 } else { memory.address },
        row_stride: if by_row { memory.row_stride as u64 } else { 0 },
        col_stride: if by_col { memory.element_stride as u64 } else { 0 },
    })
}
