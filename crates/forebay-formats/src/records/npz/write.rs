//! Writes arrays as `.npz` for `numpy.load`. Members are stored, not compressed, so that rows can be read at their offsets.

use crate::archive::ZipWriter;
use crate::records::arrays::{ArrayFormat, Element, SpooledArray, TextAs};
use crate::records::npy::{NpyHeader, encode_header};
use flate2::Crc;
use forebay_shard::BlockCompression;
use std::io::{self, Read, Write};

const PIECE_BYTES: usize = 256 << 10;

pub(super) static FORMAT: ArrayFormat = ArrayFormat {
    title: "an .npz file",
    extension: super::NPZ,
    text: TextAs::Utf32,
    is_compressed: false,
    refuses: |number| NpyHeader::encode(number, &[], &mut Vec::new()).is_none(),
    encode,
};

fn encode(
    arrays: &mut [SpooledArray],
    _compression: BlockCompression,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut zip = ZipWriter::new(out);
    for array in arrays {
        let mut header = Vec::new();
        let written = match &array.element {
            Element::Number(number) => NpyHeader::encode(*number, &array.shape, &mut header),
            _ => {
                let descr = format!("<U{}", array.width / 4);
                encode_header(&descr, &array.shape, &mut header)
            }
        };
        written.ok_or_else(|| io::Error::other("NumPy has no such type"))?;
        let mut crc = Crc::new();
        crc.update(&header);
        let mut rows = array.reader()?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match rows.read(&mut piece)? {
                0 => break,
                read => crc.update(&piece[..read]),
            }
        }
        drop(rows);
        let size = header.len() as u64 + array.bytes();
        let name = format!("{}{}", array.name, super::NPY);
        let mut content = header.as_slice().chain(array.reader()?);
        zip.add(&name, size, crc.sum(), &mut content)?;
    }
    zip.finish()
}
