//! The log-probability of a class and the entropy of each row, at sizes of language models.

use crate::losses::{READ, READ_WRITE, check_gradient, copies};
use crate::{Bench, Case, Pattern, Result};
use fused_loss::{LogProb, Loss, Tensor, Upstreams};
use tests::filled::filled;
use tests::number::Number;
use tests::random::uniform;
use tests::reference::log_prob;

/// The gradient is that of the mean over the rows of −log p − [`ENTROPY`] H, a policy loss with an
/// entropy bonus.
const ENTROPY: f64 = 0.01;

/// Rows that are compared with float64.
const COMPARED_ROWS: usize = 64;

impl Bench {
    /// Log-probabilities and entropies, with gradients of their mean.
    pub(crate) fn log_prob<T: Number<Loss = f32>>(
        &mut self,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        let name = format!("log-probability and entropy {rows}×{cols} {}", T::NAME);
        if !self.wants(Case::large::<T>(&name, "log_prob", [rows, cols])) {
            return Ok(());
        }
        let (gpu, stream) = (self.gpu.clone(), self.stream.clone());
        let class =
            |row: usize| ((f64::from(uniform(6, row as u64)) + 1.0) / 2.0 * cols as f64) as usize;
        let logit = |index: usize| T::round(4.0 * f64::from(uniform(5, index as u64)));
        let x = filled(rows * cols, logit);
        let y: Vec<i64> = (0..rows).map(|row| class(row) as i64).collect();

        let bytes = rows * cols * size_of::<T>();
        let copies = copies(bytes);
        let inputs: Vec<_> = (0..copies)
            .map(|_| Tensor::from_slice(&gpu, [rows, cols], &x))
            .collect::<std::result::Result<_, _>>()?;
        let mut gradients: Vec<_> = (0..copies)
            .map(|_| Tensor::<T>::zeros(&gpu, [rows, cols]))
            .collect::<std::result::Result<_, _>>()?;
        let target = Tensor::from_slice(&gpu, [rows], &y)?;
        let scales = [-1.0, -ENTROPY].map(|of| of / rows as f64);
        let scalar = |of: f64| Tensor::from_slice(&gpu, [], &[of as f32]);
        let (a, b) = (scalar(scales[0])?, scalar(scales[1])?);
        let upstreams = Upstreams::both(a.view().expand([rows])?, b.view().expand([rows])?);
        let new = || Loss::<f32>::zeros(&gpu, [rows]);
        let (mut log_probs, mut entropies) = (new()?, new()?);
        let mut workspace = fused_loss::Workspace::new(&gpu)?;
        let loss_of = LogProb::new();

        // Compares the first rows with float64: each of their values, and some of their gradients.
        let compared = COMPARED_ROWS.min(rows);
        let expected: Vec<_> = (0..compared)
            .map(|row| {
                let x: Vec<f64> =
                    x[row * cols..(row + 1) * cols].iter().map(|x| x.wide()).collect();
                log_prob::row(&x, Some(class(row)), 1.0, scales)
            })
            .collect();
        drop(x);
        let (log_prob, entropy, gradient) =
            loss_of.forward_backward(&inputs[0], &target, upstreams, &stream)?;
        let (log_prob, entropy) = (log_prob.to_vec()?, entropy.to_vec()?);
        for (row, expected) in expected.iter().enumerate() {
            for (got, of) in [(log_prob[row], expected.log_prob), (entropy[row], expected.entropy)]
            {
                let off = (f64::from(got) - of).abs();
                assert!(off <= T::LOSS * (1.0 + of.abs()), "{name}: row {row} is off by {off:e}");
            }
        }
        let gradient = gradient.to_vec()?;
        let gradient = Tensor::from_slice(&gpu, [compared, cols], &gradient[..compared * cols])?;
        let of_row = |index: usize| expected[index / cols].gradient[index % cols];
        check_gradient(&name, &gradient, of_row)?;
        drop(gradient);
        let (_, _, saved) = loss_of.forward_saving(&inputs[0], &target, &stream)?;

        let arrays: Vec<_> =
            inputs.iter().zip(&gradients).map(|(x, g)| vec![x.as_raw(), g.as_raw()]).collect();
        let of_rows = (target.as_raw(), rows * size_of::<i64>());
        let (read, read_write) = (Pattern { of_rows, ..READ }, Pattern { of_rows, ..READ_WRITE });
        self.row(format!("{name}, forward"), read, &arrays, bytes, |call| {
            let (input, results) = (&inputs[call % copies], (&mut log_probs, &mut entropies));
            loss_of.forward_into(input, &target, results, &mut workspace, &stream)
        })?;
        self.row(format!("{name}, forward+backward"), read_write, &arrays, bytes, |call| {
            let (input, to) = (&inputs[call % copies], &mut gradients[call % copies]);
            let results = (&mut log_probs, &mut entropies);
            loss_of.forward_backward_into(
                input,
                &target,
                results,
                upstreams,
                to,
                &mut workspace,
                &stream,
            )
        })?;
        self.row(format!("{name}, backward"), read_write, &arrays, bytes, |call| {
            let (input, to) = (&inputs[call % copies], &mut gradients[call % copies]);
            loss_of.backward_into(input, &target, &saved, upstreams, to, &stream)
        })
    }
}
