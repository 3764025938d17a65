//! The files in host/ptx: the text of one module each, as gzip has it, since PTX is large and
//! repeats itself. `zcat` shows one.

use anyhow::{Context, Result, ensure};
use flate2::bufread::GzDecoder;
use std::io::Read;
use std::num::NonZeroU64;

/// What the name of a module's file ends with.
pub(crate) const SUFFIX: &str = ".ptx.gz";

/// How often the compressor looks for a shorter file. Ten rounds more save 13 bytes of the 60,301
/// of mse_f32 (zopfli 1.0.3).
const ROUNDS: NonZeroU64 = NonZeroU64::new(5).unwrap();

/// The bytes of a module's file, a tenth less than with gzip. The same text gives the same bytes,
/// without a date or a name; but another version of the compressor may give others, so that only
/// texts are compared.
pub(crate) fn compress(text: &str) -> Result<Vec<u8>> {
    let (mut file, rounds) =
        (Vec::new(), zopfli::Options { iteration_count: ROUNDS, ..Default::default() });
    zopfli::compress(rounds, zopfli::Format::Gzip, text.as_bytes(), &mut file)?;
    Ok(file)
}

/// The text in the bytes of a module's file.
pub(crate) fn decompress(file: &[u8]) -> Result<String> {
    let (mut text, mut decoder) = (String::new(), GzDecoder::new(file));
    decoder.read_to_string(&mut text).context("not a gzip file of PTX")?;
    // zcat would go on where the library stops.
    let rest = decoder.into_inner().len();
    ensure!(rest == 0, "not one gzip file of PTX: {rest} bytes behind its end");
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

    #[test]
    fn a_file_has_no_name_and_no_date() {
        let file = compress(TEXT).unwrap();
        let (header, body) = file.split_at(10);
        // Deflated, no flags, date 0, as small as it gets, of Unix, wherever it was written.
        assert_eq!(header, [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3]);
        assert!(!body.is_empty());
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let file = compress(TEXT).unwrap();
        let mut flipped = file.clone();
        flipped[file.len() - 8] ^= 1;
        let twice = [&file[..], &file].concat();
        for (bytes, error) in [
            (TEXT.as_bytes(), "not a gzip file of PTX"),
            (&file[..file.len() - 1], "not a gzip file of PTX"),
            (&flipped, "not a gzip file of PTX"),
            (&twice, "bytes behind its end"),
        ] {
            let found = decompress(bytes).unwrap_err().to_string();
            assert!(found.contains(error), "{found}");
        }
    }
}
