//! The files in host/ptx. Each is the text of one module as one zstd frame, because PTX is large
//! and repetitive. `zstdcat` shows one.

use anyhow::{Context, Result, ensure};
use std::io::Read;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

/// The suffix of the name of a module's file.
pub(crate) const SUFFIX: &str = ".ptx.zst";

/// How hard the compressor looks for a shorter file. Level 22, the highest, saves 0.3 % more, and
/// needs more memory (zstd 1.5.7).
const LEVEL: i32 = 19;

/// The bytes of a module's file, a quarter less than with gzip. The same text gives the same bytes,
/// but another version of the compressor may give other bytes, so only texts are compared.
pub(crate) fn compress(text: &str) -> Result<Vec<u8>> {
    let mut compressor = Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    Ok(compressor.compress(text.as_bytes())?)
}

/// The text in the bytes of a module's file.
pub(crate) fn decompress(file: &[u8]) -> Result<String> {
    let (mut text, mut frame) = (String::new(), zstd::Decoder::with_buffer(file)?.single_frame());
    frame.read_to_string(&mut text).context("not a zstd file of PTX")?;
    // zstdcat would go on after the first frame, where the library stops.
    let rest = frame.finish().len();
    ensure!(rest == 0, "not one frame of zstd: {rest} bytes behind its end");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[test]
    fn what_is_compressed_is_read() {
        let file = compress(TEXT).unwrap();
        assert_eq!(decompress(&file).unwrap(), TEXT);
    }

    /// The library allocates the text's length before it decompresses.
    #[test]
    fn a_file_says_how_long_its_text_is_and_ends_with_a_checksum() {
        let file = compress(TEXT).unwrap();
        let (magic, header) = file.split_at(4);
        assert_eq!(magic, zstd::zstd_safe::MAGICNUMBER.to_le_bytes());
        // One segment, whose length is the next byte; a checksum; no dictionary.
        assert_eq!(header[..2], [1 << 5 | 1 << 2, TEXT.len() as u8]);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let file = compress(TEXT).unwrap();
        let mut flipped = file.clone();
        flipped[file.len() - 1] ^= 1;
        let twice = [&file[..], &file].concat();
        for (bytes, error) in [
            (TEXT.as_bytes(), "not a zstd file of PTX"),
            (&file[..file.len() - 1], "not a zstd file of PTX"),
            (&flipped, "not a zstd file of PTX"),
            (&twice, "bytes behind its end"),
        ] {
            let found = decompress(bytes).unwrap_err().to_string();
            assert!(found.contains(error), "{found}");
        }
    }
}
