//! What losses that compare input and target element by element share: their methods, checks, plan
//! and launch.

mod arguments;
mod methods;

pub(crate) use methods::methods;

use crate::element::Float;
use crate::error::Result;
use crate::grads::Grads;
use crate::launch::{Argument, check_memory, launch, packed_rows};
use crate::memory::Memory;
use crate::plan::tiled::{self, Tiled};
use crate::plan::{self, Dense, Launch, Pass, packed};
use crate::reduction::Reduction;
use crate::shape::{Shape, check_shape};
use crate::stream::{Stream, Workspace};
use crate::tensor::Loss;
use crate::view::{View, ViewMut};
use arguments::{Arguments, indexed_args};
use kernels_gpu::Family;
use kernels_gpu::abi::{Dtype, Matrix, PairwiseArgs, TileArgs, UpstreamRows, reduction};

/// The kernels of one loss.
pub(crate) struct Kernels {
    pub(crate) dense: Dense,
    /// Whether the gradient of the input depends on the input.
    pub(crate) input_in_its_gradient: bool,
    pub(crate) forward: Forms,
    /// Forward for any tensors, with a sum for each row.
    pub(crate) forward_rows: &'static Family<PairwiseArgs>,
    pub(crate) backward: Forms,
    /// Backward, for dense tensors with an upstream gradient per row.
    pub(crate) backward_by_row: &'static Family<PairwiseArgs>,
    pub(crate) forward_backward: Forms,
}

/// The kernels of one pass.
pub(crate) struct Forms {
    /// For tensors that may be processed as one row, with one sum at most.
    pub(crate) dense: &'static Family<PairwiseArgs>,
    /// For any tensors, with one sum at most.
    pub(crate) indexed: &'static Family<PairwiseArgs>,
    /// For rows that are packed into tiles, with a sum for each row or, with gradients, one for
    /// all. A backward pass has none.
    pub(crate) packed: Option<&'static Family<PairwiseArgs>>,
    /// For rows that are cut into tiles, with a sum for each row or, with gradients, one for all. A
    /// backward pass has none.
    pub(crate) tiled: Option<&'static Family<PairwiseArgs>>,
}

/// The [`Kernels`] of a loss, by its name in the table.
macro_rules! kernels {
    ($loss:ident, $threads:literal threads) => {
        $crate::pairwise::kernels!($loss, $threads threads, heavy: false)
    };
    ($loss:ident, $threads:literal threads, heavy: $heavy:literal) => {
        $crate::pairwise::Kernels {
            dense: $crate::plan::Dense { threads: $threads, heavy: $heavy },
            input_in_its_gradient: true,
            forward: $crate::pairwise::Forms {
                dense: &kernels_gpu::kernels::$loss::FORWARD,
                indexed: &kernels_gpu::kernels::$loss::FORWARD_INDEXED,
                packed: Some(&kernels_gpu::kernels::$loss::FORWARD_PACKED),
                tiled: Some(&kernels_gpu::kernels::$loss::FORWARD_TILED),
            },
            forward_rows: &kernels_gpu::kernels::$loss::FORWARD_ROWS,
            backward: $crate::pairwise::Forms {
                dense: &kernels_gpu::kernels::$loss::BACKWARD,
                indexed: &kernels_gpu::kernels::$loss::BACKWARD_INDEXED,
                packed: None,
                tiled: None,
            },
            backward_by_row: &kernels_gpu::kernels::$loss::BACKWARD_BY_ROW,
            forward_backward: $crate::pairwise::Forms {
                dense: &kernels_gpu::kernels::$loss::FORWARD_BACKWARD,
                indexed: &kernels_gpu::kernels::$loss::FORWARD_BACKWARD_INDEXED,
                packed: Some(&kernels_gpu::kernels::$loss::FORWARD_BACKWARD_PACKED),
                tiled: Some(&kernels_gpu::kernels::$loss::FORWARD_BACKWARD_TILED),
            },
        }
    };
}
pub(crate) use kernels;

/// What a launch needs to know of a loss.
pub(crate) struct Pairwise<'w, R> {
    pub(crate) kernels: &'static Kernels,
    /// 0 for none.
    pub(crate) parameter: f64,
    /// In the order of [`PairwiseArgs::weights`].
    pub(crate) weights: [Option<Argument<'w>>; 2],
    pub(crate) reduction: R,
}

/// The tensors of a call.
pub(crate) struct Call<'a, T, V> {
    pub(crate) input: Memory<'a>,
    pub(crate) target: Memory<'a>,
    pub(crate) loss: Option<ViewMut<'a, V>>,
    pub(crate) grads: Option<Grads<'a, T, V>>,
    /// Whether the gradient of the input overwrites it.
    pub(crate) in_place: bool,
}

impl<R> Pairwise<'_, R> {
    /// A loss without a parameter and weights.
    pub(crate) fn new(kernels: &'static Kernels, reduction: R) -> Self {
        Pairwise { kernels, parameter: 0.0, weights: [None; 2], reduction }
    }
}

/// The rows, as the plans of kernels that stage rows need them.
struct StagedRows {
    /// Whether gaps between rows may be read.
    reads_gaps: bool,
    tiled: tiled::Rows,
}

impl<R: Reduction> Pairwise<'_, R> {
    /// Memory for a loss of `input`.
    pub(crate) fn new_loss<T: Float>(
        &self,
        input: Shape,
        stream: &Stream,
    ) -> Result<Loss<R::Value<T>>> {
        Loss::uninitialised(stream.gpu(), self.reduction.shape(input))
    }

    /// Refuses inputs that do not fit, before memory for results is allocated.
    pub(crate) fn check_inputs<T: Float>(
        &self,
        input: &View<'_, T>,
        target: &View<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, target) = (input.memory, target.memory);
        input.check::<T>("input")?;
        input.check_elements("input")?;
        check_shape("target", input.shape, target.shape)?;
        target.check::<T>("target")?;
        target.check_elements("target")?;
        self.broadcast_weights::<T>(input.shape)?;
        let weights = self.weights.into_iter().flatten();
        let reads: Vec<_> =
            [("input", input), ("target", target)].into_iter().chain(weights).collect();
        check_memory(stream, &reads, &[])
    }

    /// Checks all of a call and queues its launch: forward if it writes a loss, backward if it
    /// writes gradients. If each row has a loss and no kernel stages the rows, gradients take a
    /// second launch.
    pub(crate) fn queue<T: Float>(
        &self,
        call: Call<'_, T, R::Value<T>>,
        workspace: &Workspace,
        stream: &Stream,
    ) -> Result<()> {
        self.check_inputs::<T>(&View::of(call.input), &View::of(call.target), stream)?;
        let shape = call.input.shape;
        let (forms, pass) = match (&call.loss, &call.grads) {
            (Some(_), Some(_)) => (&self.kernels.forward_backward, Pass::ForwardBackward),
            (Some(_), None) => (&self.kernels.forward, Pass::Forward),
            (None, _) => (&self.kernels.backward, Pass::Backward),
        };
        let fault = call.loss.as_ref().and_then(|loss| loss.fault);
        let arguments = self.arguments(call, workspace)?;
        let rows = StagedRows {
            reads_gaps: !arguments.writes_between_rows(),
            tiled: arguments.rows(shape, size_of::<T>()),
        };
        let Arguments { mut args, reads, writes, dense, can_stage, has_grads_alike } = arguments;
        check_memory(stream, &reads, &writes)?;

        if dense {
            // Rows without gaps are processed as one row.
            (args.rows, args.cols) = (1, shape.len() as u64);
        }
        let by_row = R::KIND == reduction::ROWS;
        let staged = if can_stage && !dense && (by_row || pass == Pass::ForwardBackward) {
            plan_staged::<T>(forms, pass, &rows, has_grads_alike, &mut args, stream)?
        } else {
            None
        };
        // The arguments for gradients that take a second launch.
        let mut apart = None;
        let (family, launch_shape) = if dense && args.upstream_rows != UpstreamRows::default() {
            (self.kernels.backward_by_row, plan::backward_by_row(shape.len(), size_of::<T>()))
        } else if dense && R::KIND != reduction::ELEMENTS {
            (forms.dense, plan::elementwise(pass, shape.len(), size_of::<T>(), self.kernels.dense))
        } else if let Some(staged) = staged {
            staged
        } else if by_row && pass != Pass::Backward {
            if pass == Pass::ForwardBackward {
                apart = Some(PairwiseArgs { loss: Matrix::default(), ..args });
                (args.grad_input, args.grad_target) = Default::default();
            }
            self.forward_by_row::<T>(&rows, can_stage, &mut args, stream)?
        } else {
            indexed::<T>(forms.indexed, pass, &mut args, stream)
        };
        // SAFETY: every address was checked to be of its tensor's shape and strides, not null and
        // aligned; what is written overlaps nothing else but, in place, the input that it is the
        // gradient of; the plans have no more partial sums than the workspace has room for; the
        // memory stays valid until the work is done, which the views' contract demands and the
        // tensors ensure.
        unsafe {
            launch(stream, family, T::DTYPE, launch_shape, &args, &reads, &writes)?;
            if let Some(mut args) = apart {
                let backward = self.kernels.backward.indexed;
                let (family, launch_shape) =
                    indexed::<T>(backward, Pass::Backward, &mut args, stream);
                launch(stream, family, T::DTYPE, launch_shape, &args, &reads, &writes)?;
            }
        }
        if let Some(fault) = fault {
            // These losses report no targets.
            fault.note_write(stream.queue(), false)?;
        }
        Ok(())
    }

    /// The launch of a forward pass with a loss for each row.
    fn forward_by_row<T: Float>(
        &self,
        rows: &StagedRows,
        can_stage: bool,
        args: &mut PairwiseArgs,
        stream: &Stream,
    ) -> Result<(&'static Family<PairwiseArgs>, Launch)> {
        if can_stage
            && let Some(staged) =
                plan_staged::<T>(&self.kernels.forward, Pass::Forward, rows, true, args, stream)?
        {
            return Ok(staged);
        }
        // Only losses with weights have kernels that split rows.
        let has_parts = self.weights.iter().any(Option::is_some);
        let rows = plan::rows(args.rows as usize, args.cols as usize, size_of::<T>(), has_parts);
        (args.group_threads, args.splits) = (rows.group_threads, rows.splits);
        Ok((self.kernels.forward_rows, rows.launch))
    }
}

/// The launch of the indexed kernel of a family; writes its tiles to `args`.
fn indexed<T: Float>(
    family: &'static Family<PairwiseArgs>,
    pass: Pass,
    args: &mut PairwiseArgs,
    stream: &Stream,
) -> (&'static Family<PairwiseArgs>, Launch) {
    args.indexed = indexed_args::<T>(args);
    let resident = family.entry(T::DTYPE).map_or(1, |entry| entry.resident);
    let device = stream.gpu().room_for(resident);
    (family, plan::indexed(pass, &args.indexed, device))
}

/// The launch of a kernel that stages these rows in shared memory, if there is one. Writes the
/// kernel's tiles to `args`.
fn plan_staged<T: Float>(
    forms: &Forms,
    pass: Pass,
    rows: &StagedRows,
    has_grads_alike: bool,
    args: &mut PairwiseArgs,
    stream: &Stream,
) -> Result<Option<(&'static Family<PairwiseArgs>, Launch)>> {
    if let Some(family) = forms.packed
        && let Some((launch, tiles)) = plan_packed::<T>(family, pass, rows, args, stream)?
    {
        args.packed = tiles;
        return Ok(Some((family, launch)));
    }
    let Some(family) = forms.tiled.filter(|_| has_grads_alike) else { return Ok(None) };
    let Some(plan) = plan_tiles(family, T::DTYPE, &rows.tiled, stream)? else { return Ok(None) };
    args.tiles = plan.args;
    (args.group_threads, args.splits) = (plan.rows.group_threads, plan.rows.splits);
    Ok(Some((family, plan.rows.launch)))
}

/// The launch of the packed kernel of a family, if rows are short enough.
fn plan_packed<T: Float>(
    family: &'static Family<PairwiseArgs>,
    pass: Pass,
    rows: &StagedRows,
    args: &PairwiseArgs,
    stream: &Stream,
) -> Result<Option<(Launch, TileArgs)>> {
    let Some(entry) = family.entry(T::DTYPE) else { return Ok(None) };
    let gpu = stream.gpu();
    let (reads, writes) = ([args.input, args.target], [args.grad_input, args.grad_target]);
    let layout = packed_rows(args.cols, size_of::<T>(), reads, writes);
    let layout = packed::Rows { is_elementwise: true, reads_gaps: rows.reads_gaps, ..layout };
    let count = args.rows as usize;
    let device = gpu.room_for(entry.resident);
    let rows_of_warp = packed::rows_of_warp(count, device.multiprocessors);
    if count == 0 || layout.cols == 0 || u32::try_from(count).is_err() {
        return Ok(None);
    }
    let Some(plan) = packed::packed(pass, layout, rows_of_warp) else { return Ok(None) };
    let launch = plan.launch(plan.blocks(pass, count, device));
    let room = gpu.dynamic_shared(entry)?;
    Ok((launch.shared_bytes <= room).then(|| (launch, plan.args_of(count))))
}

/// The launch of the tiled kernel of a family over `rows`, if that kernel should take them.
fn plan_tiles(
    family: &'static Family<PairwiseArgs>,
    dtype: Dtype,
    rows: &tiled::Rows,
    stream: &Stream,
) -> Result<Option<Tiled>> {
    let Some(entry) = family.entry(dtype) else { return Ok(None) };
    let gpu = stream.gpu();
    let Some(plan) = tiled::tiled(rows, gpu.room_for(entry.resident)) else {
        return Ok(None);
    };
    // A block gets more than this only on request.
    let room = gpu.dynamic_shared(entry)?;
    Ok((plan.rows.launch.shared_bytes <= room).then_some(plan))
}
