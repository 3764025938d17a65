//! A transformer like GPT, of candle's operations that have a gradient.

use crate::text::Random;
use candle_core::{D, Device, Result, Tensor, Var};
use candle_nn::ops::{layer_norm_slow, softmax};

#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) batch: usize,
    pub(crate) context: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
}

pub(crate) struct Model {
    size: Size,
    embedding: Var,
    positions: Var,
    layers: Vec<Layer>,
    norm: Norm,
    out: Var,
    /// −∞ where a token would see a later one.
    mask: Tensor,
}

struct Layer {
    attention_norm: Norm,
    /// The projections to queries, keys and values, and of the output of all heads.
    attention: [Var; 4],
    mlp_norm: Norm,
    mlp: [Var; 2],
}

struct Norm {
    scale: Var,
    shift: Var,
}

impl Model {
    pub(crate) fn new(
        size: Size,
        kinds: usize,
        random: &mut Random,
        device: &Device,
    ) -> Result<Self> {
        let Size { context, width, layers, .. } = size;
        let mut matrix = |rows: usize, cols: usize| {
            let scale = (3.0 / width as f32).sqrt() / 2.0;
            let numbers = (0..rows * cols).map(|_| scale * random.uniform());
            Var::from_vec(numbers.collect::<Vec<_>>(), (rows, cols), device)
        };
        let embedding = matrix(kinds, width)?;
        let positions = matrix(context, width)?;
        let mut layer = || {
            Ok(Layer {
                attention_norm: Norm::new(width, device)?,
                attention: [
                    matrix(width, width)?,
                    matrix(width, width)?,
                    matrix(width, width)?,
                    matrix(width, width)?,
                ],
                mlp_norm: Norm::new(width, device)?,
                mlp: [matrix(width, 4 * width)?, matrix(4 * width, width)?],
            })
        };
        let layers = (0..layers).map(|_| layer()).collect::<Result<_>>()?;
        let is_behind = |at: usize| at % context > at / context;
        let mask = (0..context * context)
            .map(|at| if is_behind(at) { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        Ok(Model {
            size,
            embedding,
            positions,
            layers,
            norm: Norm::new(width, device)?,
            out: matrix(width, kinds)?,
            mask: Tensor::from_vec(mask, (context, context), device)?,
        })
    }

    pub(crate) fn variables(&self) -> Vec<Var> {
        let own = [&self.embedding, &self.positions, &self.out, &self.norm.scale, &self.norm.shift];
        let of_layers = self.layers.iter().flat_map(|layer| {
            let norms = [&layer.attention_norm, &layer.mlp_norm];
            let norms = norms.into_iter().flat_map(|norm| [&norm.scale, &norm.shift]);
            norms.chain(&layer.attention).chain(&layer.mlp)
        });
        own.into_iter().chain(of_layers).cloned().collect()
    }

    /// The logits of each token's successor, one row each.
    pub(crate) fn logits(&self, tokens: &Tensor) -> Result<Tensor> {
        let Size { batch, context, width, .. } = self.size;
        let x = self.embedding.index_select(&tokens.flatten_all()?, 0)?;
        let x = x.reshape((batch, context, width))?.broadcast_add(&self.positions)?;
        let x = x.reshape((batch * context, width))?;
        let x = self.layers.iter().try_fold(x, |x, layer| {
            let x = (&x + self.attention(layer, &layer.attention_norm.of(&x)?)?)?;
            let [up, down] = &layer.mlp;
            let mlp = layer.mlp_norm.of(&x)?.matmul(up)?.gelu()?.matmul(down)?;
            x + mlp
        })?;
        self.norm.of(&x)?.matmul(&self.out)
    }

    fn attention(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let Size { batch, context, width, heads, .. } = self.size;
        let [queries, keys, values, out] = &layer.attention;
        let by_head = |weight: &Var| {
            let x = x.matmul(weight)?.reshape((batch, context, heads, width / heads))?;
            x.transpose(1, 2)?.contiguous()
        };
        let scores = by_head(queries)?.matmul(&by_head(keys)?.t()?)?;
        let scores = (scores / ((width / heads) as f64).sqrt())?.broadcast_add(&self.mask)?;
        let x = softmax(&scores, D::Minus1)?.matmul(&by_head(values)?)?;
        x.transpose(1, 2)?.reshape((batch * context, width))?.matmul(out)
    }
}

impl Norm {
    fn new(width: usize, device: &Device) -> Result<Self> {
        let of = |value: f32| Var::from_vec(vec![value; width], width, device);
        Ok(Norm { scale: of(1.0)?, shift: of(0.0)? })
    }

    fn of(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm_slow(x, &self.scale, &self.shift, 1e-5)
    }
}
