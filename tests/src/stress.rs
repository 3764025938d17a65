//! Calls of several losses in shapes that use different kernels, for tests that make them on many
//! streams, threads and devices and compare the bits of the results.

use crate::brief::usually;
use crate::random::uniforms;
use fused_loss::{CrossEntropy, Error, Gpu, KlDiv, LossFunction, Mse, Stream, Tensor, View};

/// A loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    CrossEntropy,
    KlDiv,
    Mse,
}

/// Which results a call computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pass {
    Forward,
    Backward,
    Both,
}

/// A call with its inputs.
pub struct Problem {
    kind: Kind,
    pass: Pass,
    shape: [usize; 2],
    input: Tensor<f32>,
    target: Tensor<f32>,
    classes: Tensor<i64>,
    upstream: Tensor<f32>,
}

/// The memory of a call that is queued. Dropping it before the work is done drops memory in use.
pub struct Queued {
    loss: Option<fused_loss::Loss<f32>>,
    gradient: Option<Tensor<f32>>,
}

/// The bits of a loss and of a gradient.
pub type Bits = Vec<u32>;

impl Problem {
    fn new(gpu: &Gpu, kind: Kind, pass: Pass, shape: [usize; 2]) -> Result<Self, Error> {
        let [rows, cols] = shape;
        let seed = (rows * cols) as u64;
        let positive: Vec<f32> = uniforms(seed, rows * cols).iter().map(|x| x.abs()).collect();
        let classes: Vec<_> = (0..rows).map(|row| (row * 7 % cols) as i64).collect();
        Ok(Problem {
            kind,
            pass,
            shape,
            input: Tensor::from_slice(gpu, shape, &uniforms(seed + 1, rows * cols))?,
            target: Tensor::from_slice(gpu, shape, &positive)?,
            classes: Tensor::from_slice(gpu, [rows], &classes)?,
            upstream: Tensor::from_slice(gpu, [], &[0.5])?,
        })
    }

    /// A name of the call for messages.
    pub fn name(&self) -> String {
        format!("{:?} {:?} of {:?}", self.kind, self.pass, self.shape)
    }

    /// Makes the call.
    pub fn queue(&self, stream: &Stream) -> Result<Queued, Error> {
        let Problem { input, target, classes, upstream, pass, .. } = self;
        match self.kind {
            Kind::CrossEntropy if *pass == Pass::Backward => {
                let mean = CrossEntropy::mean();
                let (loss, saved) = mean.forward_saving(input, classes, stream)?;
                let gradient = mean.backward(input, classes, &saved, upstream, stream)?;
                Ok(Queued { loss: Some(loss), gradient: Some(gradient) })
            }
            Kind::CrossEntropy => {
                let mean = CrossEntropy::mean();
                if *pass == Pass::Forward {
                    let loss = mean.forward(input, classes, stream)?;
                    return Ok(Queued { loss: Some(loss), gradient: None });
                }
                let (loss, gradient) = mean.forward_backward(input, classes, stream)?;
                Ok(Queued { loss: Some(loss), gradient: Some(gradient) })
            }
            Kind::KlDiv if *pass == Pass::Backward => {
                let gradient = KlDiv::new().backward(input, target, upstream, stream)?;
                Ok(Queued { loss: None, gradient: Some(gradient) })
            }
            Kind::Mse if *pass == Pass::Backward => {
                let gradient = Mse::mean().backward(input, target, upstream, stream)?;
                Ok(Queued { loss: None, gradient: Some(gradient) })
            }
            Kind::KlDiv => self.of_elements(&KlDiv::new(), stream),
            Kind::Mse => self.of_elements(&Mse::mean(), stream),
        }
    }

    fn of_elements<L>(&self, function: &L, stream: &Stream) -> Result<Queued, Error>
    where
        L: for<'a> LossFunction<f32, Target<'a> = View<'a, f32>, Value = f32>,
    {
        if self.pass == Pass::Forward {
            let loss = function.forward(&self.input, &self.target, stream)?;
            return Ok(Queued { loss: Some(loss), gradient: None });
        }
        let (loss, gradient) = function.forward_backward(&self.input, &self.target, stream)?;
        Ok(Queued { loss: Some(loss), gradient: Some(gradient) })
    }

    /// Makes the call, and another call on its gradient on another stream; then reads all results.
    pub fn compute(&self, stream: &Stream, other: &Stream) -> Result<Bits, Error> {
        self.read(self.queue(stream)?, other)
    }

    /// The results of a queued call, and of another call on its gradient on another stream.
    pub fn read(&self, queued: Queued, other: &Stream) -> Result<Bits, Error> {
        let mut bits = Vec::new();
        let Queued { loss, gradient } = queued;
        if let Some(gradient) = gradient {
            let norm = Mse::sum().forward(&gradient, &self.target, other)?;
            bits.push(norm.item()?.to_bits());
            bits.extend(gradient.to_vec()?.iter().map(|by| by.to_bits()));
        }
        if let Some(loss) = loss {
            bits.push(loss.item()?.to_bits());
        }
        Ok(bits)
    }
}

/// Calls of all kinds. On a GPU there are many more rows, so that work of several streams overlaps.
pub fn problems(gpu: &Gpu) -> Result<Vec<Problem>, Error> {
    let more = if gpu.is_emulated() { 1 } else { usually(50, 1) };
    let mut problems = Vec::new();
    // Rows of a lane, of tiles, of a warp, of a block, and of several blocks.
    for [rows, cols] in [[70, 3], [40, 40], [9, 700], [4, 5_000], [1, 20_000]] {
        for pass in [Pass::Forward, Pass::Backward, Pass::Both] {
            let rows = if rows == 1 { 1 } else { rows * more };
            problems.push(Problem::new(gpu, Kind::CrossEntropy, pass, [rows, cols])?);
        }
    }
    for [rows, cols] in [[1, 9_001], [90, 33]] {
        for pass in [Pass::Forward, Pass::Backward, Pass::Both] {
            for kind in [Kind::KlDiv, Kind::Mse] {
                problems.push(Problem::new(gpu, kind, pass, [rows * more, cols])?);
            }
        }
    }
    Ok(problems)
}

/// The results of all calls, made in turn by this thread alone.
pub fn alone(gpu: &Gpu, problems: &[Problem]) -> Result<Vec<Bits>, Error> {
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    problems.iter().map(|problem| problem.compute(&stream, &other)).collect()
}

/// One number for all bits (FNV-1a).
pub fn hash(bits: &[Bits]) -> u64 {
    let bytes = bits.iter().flatten().flat_map(|word| word.to_le_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}
