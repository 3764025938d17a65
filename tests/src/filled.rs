//! Large tensors, filled and summed by all cores.

use crate::random::uniform;

/// `len` elements, computed by `element` from their index, with a thread per core.
pub fn filled<T: Clone + Default + Send>(
    len: usize,
    element: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let mut data = vec![T::default(); len];
    let part = part(len);
    std::thread::scope(|scope| {
        for (index, chunk) in data.chunks_mut(part).enumerate() {
            let element = &element;
            scope.spawn(move || {
                for (k, value) in chunk.iter_mut().enumerate() {
                    *value = element(index * part + k);
                }
            });
        }
    });
    data
}

/// `len` numbers of the sequence `seed`.
pub fn uniforms_parallel(seed: u64, len: usize) -> Vec<f32> {
    filled(len, |index| uniform(seed, index as u64))
}

/// The sum of `term` over the indices below `len`, with a thread per core.
pub fn total(len: usize, term: impl Fn(usize) -> f64 + Sync) -> f64 {
    let part = part(len);
    std::thread::scope(|scope| {
        let sums: Vec<_> = (0..len)
            .step_by(part)
            .map(|start| {
                let term = &term;
                scope.spawn(move || {
                    let terms = (start..len.min(start + part)).map(term);
                    terms.sum::<crate::reference::Total>().value()
                })
            })
            .collect();
        sums.into_iter().map(|sum| sum.join().unwrap()).sum()
    })
}

fn part(len: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    len.div_ceil(threads).max(1)
}
