//! Large random tensors, filled by all cores.

use crate::random::uniform;

/// `len` numbers of the sequence `seed`, by as many threads as there are cores.
pub fn uniforms_parallel(seed: u64, len: usize) -> Vec<f32> {
    let mut data = vec![0.0; len];
    let part = part(len);
    std::thread::scope(|scope| {
        for (index, chunk) in data.chunks_mut(part).enumerate() {
            scope.spawn(move || {
                for (k, value) in chunk.iter_mut().enumerate() {
                    *value = uniform(seed, (index * part + k) as u64);
                }
            });
        }
    });
    data
}

/// The sum of `f` over pairs of chunks, by as many threads as there are cores.
pub fn sum_parallel<T: Sync>(x: &[T], t: &[T], f: fn(&[T], &[T]) -> f64) -> f64 {
    let part = part(x.len());
    std::thread::scope(|scope| {
        let sums: Vec<_> =
            x.chunks(part).zip(t.chunks(part)).map(|(x, t)| scope.spawn(move || f(x, t))).collect();
        sums.into_iter().map(|sum| sum.join().unwrap()).sum()
    })
}

fn part(len: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    len.div_ceil(threads).max(1)
}
