//! Plans the launches of a checked call, and queues them.

use super::call::Arguments;
use super::kernels::Kernels;
use crate::element::Float;
use crate::error::Result;
use crate::launch::{Argument, check_memory, launch, packed_rows, rows_are_alike};
use crate::plan::packed;
use crate::plan::{
    self, Ahead, Launch, Pass, Regime, RowsLaunch, SamplesKernels, SamplesLaunch, Target,
};
use crate::stream::Stream;
use kernels_gpu::abi::{
    CrossEntropyArgs, Dtype, Matrix, ROWS_BLOCK, attempt, has_late_shares, stages_misaligned,
    workspace as layout,
};
use kernels_gpu::{Entry, Family};

/// Queues a call on rows of logits of type `T`, whose arguments are checked.
pub(crate) fn launch_rows<T: Float>(
    pass: Pass,
    arguments: Arguments<'_>,
    stream: &Stream,
) -> Result<()> {
    let Arguments { mut args, reads, writes, faults, .. } = arguments;
    check_memory(stream, &reads, &writes)?;
    if args.rows <= 1 {
        // The stride of a single row has no meaning, and may be larger than any memory.
        let cols = args.cols.into();
        for tensor in [&mut args.input, &mut args.grad_input, &mut args.grad_target] {
            tensor.row_stride = cols;
        }
        args.target_stride = cols;
    }
    let has_classes = args.class_bytes != 0;
    if has_classes {
        let to = [&mut args.fault, &mut args.log_prob.entropy_fault];
        for (to, fault) in to.into_iter().zip(&faults) {
            *to = fault.address;
        }
    }
    Launches::new::<T>(&args, stream, &reads, &writes).queue(pass, &args)?;
    faults.iter().try_for_each(|fault| fault.note_write(stream.queue(), has_classes))
}

/// What all launches of a call have in common.
struct Launches<'a> {
    kernels: &'static Kernels,
    dtype: Dtype,
    element_bytes: usize,
    rows: usize,
    cols: usize,
    /// How rows are laid out.
    layout: packed::Rows,
    /// Whether the rows of all tensors begin and end on 16-byte boundaries.
    whole: bool,
    stream: &'a Stream,
    reads: &'a [Argument<'a>],
    writes: &'a [Argument<'a>],
}

/// How a call is launched.
enum Way {
    /// In one launch.
    One,
    /// In two launches: an optimistic one, and one that computes everything if the first has
    /// stopped; see [`attempt`].
    Optimistic,
    /// In one launch, whose kernel computes loss and gradients with several blocks per row.
    Split(&'static Family<CrossEntropyArgs>, plan::Split),
    /// In two launches: one for the loss and one for the gradients. In both, all blocks share each
    /// row, and the second finds it in the cache.
    Two,
}

/// How one launch of a call is made.
struct Planned {
    plan: SamplesLaunch,
    family: &'static Family<CrossEntropyArgs>,
}

impl<'a> Launches<'a> {
    fn new<T: Float>(
        args: &CrossEntropyArgs,
        stream: &'a Stream,
        reads: &'a [Argument<'a>],
        writes: &'a [Argument<'a>],
    ) -> Self {
        let element_bytes = size_of::<T>();
        let bytes = |elements: u64| elements * element_bytes as u64;
        let [start, stride, len] =
            [args.input.start, bytes(args.input.row_stride), bytes(args.cols.into())];
        let alike = [args.grad_input, args.grad_target, args.probabilities()]
            .iter()
            .all(|rows| rows.start == 0 || rows_are_alike(rows, &args.input, element_bytes));
        let kernels = Kernels::of(args);
        // Some losses have kernels only for gradients.
        let has = |regime| {
            kernels.backward.of(regime).and_then(|family| family.entry(T::DTYPE)).is_some()
        };
        let [has_lane_rows, has_wide_rows] = [Regime::LaneRows, Regime::WideRows].map(has);
        let layout = packed_rows(
            args.cols.into(),
            element_bytes,
            [args.input, args.probabilities()],
            [args.grad_input, args.grad_target],
        );
        let layout = packed::Rows { has_lane_rows, has_wide_rows, ..layout };
        Launches {
            kernels,
            dtype: T::DTYPE,
            element_bytes,
            rows: args.rows as usize,
            cols: args.cols as usize,
            layout,
            whole: alike && (start | stride | len).is_multiple_of(16),
            stream,
            reads,
            writes,
        }
    }

    fn row_bytes(&self) -> usize {
        self.cols * self.element_bytes
    }

    /// Queues the launches of a call: one, or two if the first gradient depends on all rows and one
    /// launch cannot provide that.
    fn queue(&self, pass: Pass, args: &CrossEntropyArgs) -> Result<()> {
        // No other call may use the workspace between the launches, because one leaves results
        // there for the next.
        let _lock = self.stream.lock();
        match self.way(pass, args)? {
            Way::One => self.queue_one(pass, args),
            Way::Optimistic => {
                for attempt in [attempt::OPTIMISTIC, attempt::RETRY] {
                    self.queue_one(pass, &CrossEntropyArgs { attempt, ..*args })?;
                }
                Ok(())
            }
            Way::Split(family, split) => self.queue_split(family, split, args),
            Way::Two => {
                let forward = CrossEntropyArgs {
                    saved: args.workspace + layout::SAVED,
                    totals: args.workspace + layout::TOTALS,
                    ..*args
                };
                // Load the second kernel before the first is queued, so that no call stops halfway.
                if let Some(entry) = self.plan(Pass::Backward, args).family.entry(self.dtype) {
                    self.stream.gpu().function(entry)?;
                }
                self.queue_one(Pass::Forward, &forward)?;
                self.queue_one(Pass::Backward, &forward)
            }
        }
    }

    /// How a call is launched. If it computes loss and gradients, that depends on how many and how
    /// long its rows are.
    fn way(&self, pass: Pass, args: &CrossEntropyArgs) -> Result<Way> {
        if pass != Pass::ForwardBackward {
            return Ok(Way::One);
        }
        let regime = self.plan(pass, args).plan.regime;
        if self.is_optimistic(regime, args) {
            return Ok(Way::Optimistic);
        }
        let is_few = self.is_few(regime, args);
        let tensors = self.staged_tensors(args).unwrap_or(1);
        let is_long = regime == Regime::Long
            && plan::is_split(
                self.row_bytes(),
                self.element_bytes,
                tensors,
                self.kernels.target.is_smoothed(),
            );
        if (is_few || is_long)
            && let Some((family, split)) = self.split(args)?
        {
            return Ok(Way::Split(family, split));
        }
        Ok(if is_few && regime != Regime::Staged { Way::Two } else { Way::One })
    }

    /// Whether a launch that assumes that all rows count saves more time than the second launch
    /// costs. Its gradients may be wrong, so it must not overwrite the logits.
    fn is_optimistic(&self, regime: Regime, args: &CrossEntropyArgs) -> bool {
        let multiprocessors = self.stream.gpu().cache().multiprocessors;
        let has_lane = matches!(regime, Regime::LaneRows | Regime::WideRows);
        let counts_rows = args.divisor == 0.0 && args.weight == 0 && args.class_bytes != 0;
        let is_in_place = args.grad_input.start == args.input.start;
        let bytes = [self.element_bytes, args.class_bytes as usize];
        has_lane
            && counts_rows
            && !is_in_place
            && plan::is_optimistic(self.rows, bytes, multiprocessors)
    }

    /// Whether rows are so few and so long that several blocks should share each. `regime` is the
    /// regime for loss and gradients with at most a block per row.
    fn is_few(&self, regime: Regime, args: &CrossEntropyArgs) -> bool {
        let alone = self.plan(Pass::Forward, args).plan;
        let is_shared = alone.has_few_rows || alone.tail.rows as usize == self.rows;
        // A loss without a forward kernel that has rows in registers streams short rows too, so
        // its forward plan says nothing about rows that fit into registers in one launch.
        let fits_registers =
            self.kernels.forward.of(Regime::Registers).is_none() && regime == Regime::Registers;
        is_shared && !fits_registers && (1..=layout::SAVED_ROWS).contains(&self.rows)
    }

    /// The tensors that kernels stage to compute loss and gradients: the logits and, where they are
    /// the target, also the probabilities. `None` if probabilities cannot be staged or get a
    /// gradient: in f64, exponentials replace the logits from which it would be computed.
    ///
    /// Probabilities that are aligned differently from the logits of each row are staged as
    /// [`stages_misaligned`] says. H200, 2026-11-30, loss and gradients, ceiling ÷ ours with them
    /// read from global memory and staged:
    ///
    /// - f64, 500 columns 0.52 and 0.77, 32,768 columns 0.32 and 0.63
    /// - f32, 1000 columns 0.58 and 0.87, 60,001 columns 0.62 and 0.79; but bf16, 1500 columns 0.48
    ///   and 0.45
    fn staged_tensors(&self, args: &CrossEntropyArgs) -> Option<usize> {
        let can_stage = |rows: Matrix| {
            stages_misaligned(self.element_bytes)
                || rows_are_alike(&rows, &args.input, self.element_bytes)
        };
        if args.class_bytes == 0 {
            let is_of_logits = args.grad_input.start != 0 && args.grad_target.start == 0;
            return (is_of_logits && can_stage(args.probabilities())).then_some(2);
        }
        Some(1)
    }

    /// How many of the first blocks of a grid sum what the others wait for: the normaliser and, if
    /// rows are staged and their shares [late](has_late_shares), all class weights. `room` is how
    /// many blocks can be resident at once.
    fn normaliser_blocks(
        &self,
        is_staged: bool,
        args: &CrossEntropyArgs,
        threads: u32,
        room: usize,
    ) -> u32 {
        let sums_weights = is_staged
            && self.kernels.target == Target::Weighted
            && has_late_shares(self.element_bytes, true);
        if args.divisor != 0.0 && !sums_weights {
            return 0;
        }
        let summands = if sums_weights { self.rows.max(self.cols) } else { self.rows };
        plan::normaliser_blocks(summands, threads, room)
    }

    /// The kernel that computes loss and gradients with several blocks per row, and its launch, if
    /// there is one.
    fn split(
        &self,
        args: &CrossEntropyArgs,
    ) -> Result<Option<(&'static Family<CrossEntropyArgs>, plan::Split)>> {
        let gpu = self.stream.gpu();
        let Some(family) = self.kernels.split else { return Ok(None) };
        let Some(tensors) = self.staged_tensors(args) else { return Ok(None) };
        let Some(entry) = family.entry(self.dtype) else { return Ok(None) };
        let split = plan::split(
            self.rows,
            self.cols,
            self.element_bytes,
            tensors,
            self.layout.alignment,
            (entry.block, gpu.dynamic_shared(entry)?),
            gpu.room_for(entry.resident),
        );
        Ok(split.filter(|split| split.splits.get() > 1).map(|split| (family, split)))
    }

    /// Queues the launch that computes loss and gradients with several blocks per row.
    fn queue_split(
        &self,
        family: &'static Family<CrossEntropyArgs>,
        split: plan::Split,
        args: &CrossEntropyArgs,
    ) -> Result<()> {
        let (shape, args) = (split.launch, self.split_args(split, args));
        // SAFETY: as in `queue_one`. The plan's blocks are resident at the same time: the driver
        // refuses a cooperative launch whose blocks are not.
        unsafe { launch(self.stream, family, self.dtype, shape, &args, self.reads, self.writes) }
    }

    /// The arguments of a launch with several blocks per row, with what its plan says.
    fn split_args(&self, split: plan::Split, args: &CrossEntropyArgs) -> CrossEntropyArgs {
        let plan::Split { launch: shape, splits, part_vectors, rows_of_ticket } = split;
        let rows_of_block = rows_of_ticket;
        let mut args = CrossEntropyArgs { splits, part_vectors, rows_of_block, ..*args };
        if self.staged_tensors(&args) == Some(2) {
            args.staged_vectors = part_vectors;
        }
        args.plain = args.is_plain().into();
        // All of its blocks run at the same time.
        let room = shape.blocks as usize;
        args.normaliser_blocks = self.normaliser_blocks(true, &args, shape.threads, room);
        args
    }

    /// How to launch `pass`.
    fn plan(&self, pass: Pass, args: &CrossEntropyArgs) -> Planned {
        let gpu = self.stream.gpu();
        let kernels = match pass {
            Pass::Forward => &self.kernels.forward,
            Pass::ForwardBackward => &self.kernels.forward_backward,
            Pass::Backward => &self.kernels.backward,
        };
        let entry = |regime| kernels.of(regime).and_then(|family| family.entry(self.dtype));
        let most_threads = |regime| entry(regime).map_or(0, |entry| entry.block);
        let room = |regime| entry(regime).map(|entry| gpu.room_for(entry.resident));
        let rows_of_warp = packed::rows_of_warp(self.rows, gpu.cache().multiprocessors);
        let packed = packed::packed(pass, self.layout, rows_of_warp);
        let tensors = self.staged_tensors(args);
        let can = SamplesKernels {
            per_thread: self.kernels.per_thread,
            vectors_with_gradients: (self.kernels.vectors_with_gradients)(self.element_bytes),
            packed: packed.and_then(|packed| Some((packed, room(packed.regime)?))),
            stream: (pass == Pass::Forward)
                .then(|| room(Regime::Stream))
                .flatten()
                .map(|device| (self.layout, device)),
            staged: entry(Regime::Staged)
                .filter(|_| tensors.is_some())
                .map(|entry| (gpu.room_for(entry.resident), entry.block)),
            alignment: self.layout.alignment,
            tensors: tensors.unwrap_or(1),
            vectors_beside: (self.kernels.vectors_beside)(self.element_bytes),
            multiprocessors: gpu.cache().multiprocessors,
            shared_bytes: gpu.room_for(1).shared_bytes,
            target: self.kernels.target,
            whole: self.whole,
            alike: self.layout.alike,
            collide: self.layout.would_collide(),
            short_peeled_block: most_threads(Regime::ShortPeeled),
            warp_peeled_block: most_threads(Regime::WarpPeeled),
            short_block: most_threads(Regime::ShortWhole).min(ROWS_BLOCK),
            warp_block: most_threads(Regime::WarpWhole),
            max_registers_block: most_threads(Regime::Registers),
            few_block: most_threads(Regime::Few),
            peeled_block: most_threads(Regime::Peeled),
            long_block: most_threads(Regime::Long),
            sums: if args.z_loss == 0.0 && args.totals == 0 { 2 } else { 4 },
        };
        let plan = plan::samples(pass, self.rows, self.cols, self.element_bytes, can);
        let family = kernels.of(plan.regime).expect("the plan chooses among the kernels there are");
        Planned { plan, family }
    }

    /// Queues one launch that computes `pass`.
    fn queue_one(&self, pass: Pass, args: &CrossEntropyArgs) -> Result<()> {
        let Planned { plan, family } = self.plan(pass, args);
        let mut shape = plan.rows.launch;
        let mut args = self.planned_args(pass, &plan, args);
        if let Some(entry) = family.entry(self.dtype) {
            self.ask_for_shared_memory(pass, plan.regime, entry, &mut shape, &mut args)?;
            if pass == Pass::ForwardBackward {
                let room = self.room(entry, shape);
                let is_staged = plan.regime == Regime::Staged;
                args.normaliser_blocks =
                    self.normaliser_blocks(is_staged, &args, shape.threads, room);
                if args.attempt == attempt::RETRY {
                    args.retried_blocks = shape.blocks;
                    let blocks = [args.normaliser_blocks, shape.blocks];
                    [args.normaliser_blocks, shape.blocks] = plan::retry_blocks(blocks, room);
                }
                shape.blocks += args.normaliser_blocks;
            }
        }
        // SAFETY: every address was checked to be of its tensor's shape and strides, not null and
        // aligned; what is written overlaps nothing else but, in place, the input that it is the
        // gradient of; the plan has no more partial sums than the workspace has room for, a row
        // group has registers for its vectors, and a block shared memory for what it stages; the
        // memory stays valid until the work is done, which the views' contract demands and the
        // tensors ensure.
        unsafe { launch(self.stream, family, self.dtype, shape, &args, self.reads, self.writes) }
    }

    /// How many blocks of a launch of this shape can be resident at once.
    fn room(&self, entry: &Entry, shape: Launch) -> usize {
        let blocks = entry.resident * entry.block / shape.threads;
        self.stream.gpu().room_for(blocks).blocks(shape.shared_bytes as usize)
    }

    /// The arguments of a launch, with what its plan says.
    fn planned_args(
        &self,
        pass: Pass,
        plan: &SamplesLaunch,
        args: &CrossEntropyArgs,
    ) -> CrossEntropyArgs {
        let (row_bytes, cache) = (self.row_bytes(), self.stream.gpu().cache());
        let RowsLaunch { group_threads, splits, .. } = plan.rows;
        let Ahead { rows: ahead, bytes: ahead_bytes } =
            plan::ahead(pass, plan, row_bytes, self.element_bytes, cache);
        let rows_of_block = plan.rows_of_block;
        let mut args =
            CrossEntropyArgs { group_threads, splits, rows_of_block, ahead, ahead_bytes, ..*args };
        args.plain = args.is_plain().into();
        args.group_shift = group_threads.trailing_zeros();
        args.adder_shift = plan.adder_shift;
        args.staged_vectors = plan.staged_vectors;
        args.tile = plan.tile;
        args.stream = plan.stream;
        if plan.tail.rows > 0 {
            args.splits = plan.tail.parts;
            (args.tail_rows, args.tail_at) = (plan.tail.rows, plan.tail.at);
        }
        let asks_early = self.stream.gpu().overlaps() && pass == Pass::Forward;
        if asks_early
            && !matches!(plan.regime, Regime::Packed | Regime::LaneRows | Regime::WideRows)
        {
            let early = plan::early(plan, row_bytes, cache);
            (args.early_blocks, args.early_bytes) = (early.blocks, early.bytes);
        }
        args
    }

    /// Tells the driver how much shared memory the blocks of this regime's kernel need.
    fn ask_for_shared_memory(
        &self,
        pass: Pass,
        regime: Regime,
        entry: &'static Entry,
        shape: &mut Launch,
        args: &mut CrossEntropyArgs,
    ) -> Result<()> {
        let gpu = self.stream.gpu();
        match (pass, regime) {
            (Pass::ForwardBackward, Regime::Long) => {
                let in_registers =
                    (self.kernels.vectors_beside)(self.element_bytes) as u32 * shape.threads;
                let room = gpu.dynamic_shared(entry)?;
                args.staged_vectors =
                    plan::staged_vectors(self.cols, self.element_bytes, in_registers, room);
                shape.shared_bytes = args.staged_vectors * 16;
                Ok(())
            }
            (
                Pass::Forward,
                Regime::ShortWhole | Regime::WarpWhole | Regime::ShortPeeled | Regime::WarpPeeled,
            ) => {
                let one_more = plan::wants_shared_of_one_more(self.row_bytes());
                gpu.keep_shared(entry, shape.shared_bytes, one_more)
            }
            // A block gets more than this only on request.
            (
                _,
                Regime::Packed
                | Regime::LaneRows
                | Regime::WideRows
                | Regime::Staged
                | Regime::Stream,
            ) => gpu.dynamic_shared(entry).map(|_| ()),
            _ => Ok(()),
        }
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
