//! The negative log-likelihood of log-probabilities.

use candle_core::{Result, Tensor, bail};

/// The negative log-likelihood: the mean of `-inp[n, target[n]]`, where `inp` has
/// log-probabilities, of shape `[N, C]`, and `target` has classes (`u32`, `i64` or `u8`), of shape
/// `[N]`. A drop-in for `candle_nn::loss::nll`.
///
/// It is made of candle's own operations, on any device: it reads `N` numbers, and there is nothing
/// to fuse. A target that is not a class makes the loss NaN. It does so on CUDA too, where candle's
/// own loss reads memory outside the row. If you have logits, use
/// [`cross_entropy`](crate::cross_entropy()), which needs no separate pass to compute
/// log-probabilities.
///
/// # Errors
/// If shapes do not fit.
pub fn nll(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    let (rows, classes) = match inp.dims() {
        &[rows, classes] => (rows, classes),
        dims => bail!("inp: expected two dimensions, got {dims:?}"),
    };
    if target.dims() != [rows] {
        bail!("target: expected shape [{rows}], got {:?}", target.dims())
    }
    let target = target.to_dtype(candle_core::DType::I64)?;
    let is_class = target.ge(0_i64)?.mul(&target.lt(classes as i64)?)?;
    let target = is_class.where_cond(&target, &target.zeros_like()?)?;
    let likelihoods = inp.gather(&target.unsqueeze(1)?, 1)?.squeeze(1)?;
    let nan = Tensor::full(f32::NAN, rows, inp.device())?.to_dtype(inp.dtype())?;
    is_class.where_cond(&likelihoods, &nan)?.mean_all()?.neg()
}
