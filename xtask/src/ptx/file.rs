//! The files in host/ptx: the text of one module each, as gzip has it, since PTX is large and
//! repeats itself. `zcat` shows one.

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{Read, Write};

/// What the name of a module's file ends with.
pub(crate) const SUFFIX: &str = ".ptx.gz";

/// The bytes of a module's file. The same text gives the same bytes, without a date or a name; but
/// another version of the compressor may give others, so that only texts are compared.
pub(crate) fn compress(text: &str) -> Result<Vec<u8>> {
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    file.write_all(text.as_bytes())?;
    Ok(file.finish()?)
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
        // Deflated, no flags, date 0, as small as it gets, of no operating system.
        assert_eq!(header, [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255]);
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
