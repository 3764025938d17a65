//! The text as numbers, and batches of it.

use candle_core::{Device, Result, Tensor};
use std::collections::HashMap;

/// The first plays of a collection of Shakespeare's works, which are in the public domain.
const TEXT: &str = include_str!("shakespeare.txt");

/// A text as tokens, numbered in the order of their first occurrence.
pub(crate) struct Text {
    tokens: Vec<u32>,
    /// The number of different tokens.
    pub(crate) kinds: usize,
}

impl Text {
    /// Tokens are words, line ends and each sign between them.
    pub(crate) fn of_words() -> Self {
        let is_in_word = |char: char| char.is_ascii_alphabetic() || char == '\'';
        let mut tokens = Vec::new();
        let mut rest = TEXT;
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|char| !is_in_word(char)).unwrap_or(rest.len());
            let (token, behind) = rest.split_at(word.max(first.len_utf8()));
            if token != " " {
                tokens.push(token);
            }
            rest = behind;
        }
        Self::of(tokens)
    }

    pub(crate) fn of_characters() -> Self {
        Self::of(TEXT.split("").filter(|char| !char.is_empty()).collect())
    }

    fn of(text: Vec<&str>) -> Self {
        let mut numbers = HashMap::new();
        let tokens = text.into_iter().map(|token| {
            let next = numbers.len() as u32;
            *numbers.entry(token).or_insert(next)
        });
        Text { tokens: tokens.collect(), kinds: numbers.len() }
    }

    /// Pieces of the text from random positions, one per row, and the successor of each of their
    /// tokens in the same order.
    pub(crate) fn batch(
        &self,
        rows: usize,
        context: usize,
        random: &mut Random,
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let starts: Vec<_> = (0..rows).map(|_| random.below(self.tokens.len() - context)).collect();
        let pieces = |by: usize| {
            let piece = |&start: &usize| &self.tokens[start + by..][..context];
            starts.iter().flat_map(piece).copied().collect::<Vec<_>>()
        };
        let tokens = Tensor::from_vec(pieces(0), (rows, context), device)?;
        Ok((tokens, Tensor::from_vec(pieces(1), rows * context, device)?))
    }
}

/// Random numbers that are the same in every run: candle's generator cannot be seeded on the CPU.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Random(1)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    /// A number from −1 to 1.
    pub(crate) fn uniform(&mut self) -> f32 {
        self.below(2001) as f32 / 1000.0 - 1.0
    }
}
