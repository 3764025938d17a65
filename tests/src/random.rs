//! Values from a seed: cheap enough for billions of them, and the same everywhere.

/// Number `index` of the sequence `seed`: uniform in [-1, 1), a multiple of 2⁻²³.
pub fn uniform(seed: u64, index: u64) -> f32 {
    (bits(seed, index) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Bits `index` of the sequence `seed` (SplitMix64).
pub fn bits(seed: u64, index: u64) -> u64 {
    let mut bits = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// The first `len` numbers of the sequence `seed`.
pub fn uniforms(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64).map(|index| uniform(seed, index)).collect()
}
