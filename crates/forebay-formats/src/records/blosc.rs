//! Decodes Blosc frames (version 2), in which Zarr and HDF5 store chunks: blocks of shuffled bytes, each in one or several
//! streams of another codec.

use flate2::read::ZlibDecoder;
use std::io::Read;

const HEADER_BYTES: usize = 16;
/// Bits of the flags in the header.
const SHUFFLE: u8 = 0x01;
const COPY: u8 = 0x02;
const BITSHUFFLE: u8 = 0x04;
const ONE_STREAM: u8 = 0x10;
/// A block is split into one stream for each byte of its elements, if elements have at most `MAX_STREAMS` bytes and each stream
/// at least `MIN_STREAM_BYTES`.
const MAX_STREAMS: usize = 16;
const MIN_STREAM_BYTES: usize = 128;
/// Longest distance that BloscLZ encodes in 13 bits; longer ones take two more bytes.
const BLOSCLZ_NEAR: usize = 8191;
/// Most output per input byte of LZ4 and BloscLZ: one byte extends a match by up to 255 bytes.
const LZ_MOST: usize = 256;

/// Decodes a frame; refuses one whose content has more than `most` bytes.
pub(crate) fn decompress(frame: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let damaged = |what: &str| format!("the Blosc frame is damaged: {what}");
    let header = frame.first_chunk::<HEADER_BYTES>();
    let header = header.ok_or_else(|| damaged("it is shorter than its header"))?;
    let flags = header[2];
    let type_bytes = usize::from(header[3]).max(1);
    let len = word(header, 4)?;
    let block_bytes = word(header, 8)?;
    if word(header, 12)? != frame.len() {
        return Err(damaged("its length is another one than its header says"));
    }
    if len > most {
        return Err(damaged(&format!(
            "it says {len} bytes, and a chunk has {most}"
        )));
    }
    if flags & COPY != 0 {
        let whole = frame.get(HEADER_BYTES..HEADER_BYTES + len);
        return whole
            .map(<[u8]>::to_vec)
            .ok_or_else(|| damaged("it is cut short"));
    }
    if len == 0 {
        return Ok(Vec::new());
    }
    if block_bytes == 0 {
        return Err(damaged("its blocks have no bytes"));
    }
    let mut out = Vec::new();
    let mut block = Vec::new();
    for number in 0..len.div_ceil(block_bytes) {
        let size = block_bytes.min(len - out.len());
        let start = word(frame, HEADER_BYTES + 4 * number)?;
        let is_split = flags & ONE_STREAM == 0
            && size == block_bytes
            && type_bytes <= MAX_STREAMS
            && block_bytes / type_bytes >= MIN_STREAM_BYTES;
        let streams = if is_split { type_bytes } else { 1 };
        block.clear();
        let mut at = start;
        for _ in 0..streams {
            let stored = word(frame, at)?;
            let stream = frame.get(at + 4..).and_then(|rest| rest.get(..stored));
            let stream = stream.ok_or_else(|| damaged("a stream lies outside of it"))?;
            at += 4 + stored;
            let size = size / streams;
            match stored == size {
                true => block.extend_from_slice(stream),
                false => append(flags >> 5, stream, size, &mut block)?,
            }
        }
        if block.len() != size {
            return Err(damaged("a block has another length than its header says"));
        }
        let is_shuffled = flags & SHUFFLE != 0 && type_bytes > 1;
        let is_bitshuffled = flags & BITSHUFFLE != 0 && size >= type_bytes;
        match (is_shuffled, is_bitshuffled) {
            (true, _) => unshuffle(&block, type_bytes, &mut out),
            (false, true) => bitunshuffle(&block, type_bytes, &mut out),
            (false, false) => out.extend_from_slice(&block),
        }
    }
    Ok(out)
}

fn word(bytes: &[u8], at: usize) -> Result<usize, String> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let word = word.ok_or("the Blosc frame is damaged: it is cut short")?;
    Ok(u32::from_le_bytes(*word) as usize)
}

/// Decodes a stream and appends its `size` bytes.
fn append(codec: u8, stream: &[u8], size: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let failed = |name: &str, what: &dyn std::fmt::Display| {
        format!("the Blosc frame is damaged: a stream of {name}: {what}")
    };
    let start = out.len();
    // The declared size comes from the file, so it is checked against what the codec can produce before memory is allocated.
    let is_possible = size <= stream.len().saturating_mul(LZ_MOST);
    match codec {
        0 | 1 if !is_possible => return Err(failed("LZ", &"it cannot have so many bytes")),
        0 => blosclz(stream, size, out)?,
        1 => {
            out.resize(start + size, 0);
            let read = lz4_flex::block::decompress_into(stream, &mut out[start..]);
            let read = read.map_err(|error| failed("LZ4", &error))?;
            out.truncate(start + read);
        }
        2 => {
            let len = snap::raw::decompress_len(stream);
            let len = len.map_err(|error| failed("Snappy", &error))?;
            if len != size || !is_possible {
                return Err(failed("Snappy", &"it has another length"));
            }
            out.resize(start + size, 0);
            let read = snap::raw::Decoder::new().decompress(stream, &mut out[start..]);
            read.map_err(|error| failed("Snappy", &error))?;
        }
        3 => {
            let mut decoder = ZlibDecoder::new(stream).take(size as u64 + 1);
            let read = decoder.read_to_end(out);
            read.map_err(|error| failed("zlib", &error))?;
        }
        4 => {
            let decoder = zstd::stream::read::Decoder::new(stream);
            let decoder = decoder.map_err(|error| failed("Zstandard", &error))?;
            let read = decoder.take(size as u64 + 1).read_to_end(out);
            read.map_err(|error| failed("Zstandard", &error))?;
        }
        codec => {
            return Err(format!(
                "the Blosc frame has codec {codec}, which no release has"
            ));
        }
    }
    match out.len() - start == size {
        true => Ok(()),
        false => Err(failed("its codec", &"it has another length")),
    }
}

/// Decodes a BloscLZ stream: literals, and matches that copy earlier output.
fn blosclz(stream: &[u8], size: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let damaged = || {
        "the Blosc frame is damaged: a stream of BloscLZ is cut short or points nowhere".to_owned()
    };
    let start = out.len();
    let mut bytes = stream.iter().copied();
    let mut control = bytes.next().map(|first| first & 31);
    while let Some(byte) = control {
        let code = usize::from(byte);
        if code < 32 {
            for _ in 0..=code {
                out.push(bytes.next().ok_or_else(damaged)?);
            }
        } else {
            let mut len = (code >> 5) - 1;
            let high = (code & 31) << 8;
            if len == 6 {
                loop {
                    let more = bytes.next().ok_or_else(damaged)?;
                    len += usize::from(more);
                    if more != 255 {
                        break;
                    }
                }
            }
            let low = usize::from(bytes.next().ok_or_else(damaged)?);
            let mut distance = high + low;
            if low == 255 && high == 31 << 8 {
                let far = [bytes.next(), bytes.next()].map(|byte| byte.map(usize::from));
                let [Some(high), Some(low)] = far else {
                    return Err(damaged());
                };
                distance = (high << 8) + low + BLOSCLZ_NEAR;
            }
            distance += 1;
            len += 3;
            let here = out.len() - start;
            if distance > here || here + len > size {
                return Err(damaged());
            }
            for _ in 0..len {
                out.push(out[out.len() - distance]);
            }
        }
        if out.len() - start > size {
            return Err(damaged());
        }
        control = bytes.next();
    }
    Ok(())
}

/// Undoes the byte shuffle: the input has the first bytes of all elements, then their second bytes, and so on.
pub(super) fn unshuffle(bytes: &[u8], type_bytes: usize, out: &mut Vec<u8>) {
    let count = bytes.len() / type_bytes;
    let (planes, rest) = bytes.split_at(count * type_bytes);
    for number in 0..count {
        out.extend(planes.iter().skip(number).step_by(count).take(type_bytes));
    }
    out.extend_from_slice(rest);
}

/// Undoes the bit shuffle: the input has the first bits of all elements, and so on. Elements after the last multiple of eight
/// are not shuffled.
fn bitunshuffle(bytes: &[u8], type_bytes: usize, out: &mut Vec<u8>) {
    let count = bytes.len() / type_bytes;
    if !count.is_multiple_of(8) {
        out.extend_from_slice(bytes);
        return;
    }
    let plane = count / 8;
    let (planes, rest) = bytes.split_at(count * type_bytes);
    for number in 0..count {
        for byte in 0..type_bytes {
            let bit = |bit: usize| {
                let at = (byte * 8 + bit) * plane + number / 8;
                (planes[at] >> (number % 8) & 1) << bit
            };
            out.push((0..8).map(bit).sum());
        }
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same numbers as frames of numcodecs 0.16 (tools/golden/make_golden_zarr.py), one for each codec and shuffle.
    #[test]
    fn frames_of_the_library_are_decoded() {
        let corpus = crate::records::zarr::tests::corpus().join("blosc");
        let number = |at: u32| match at {
            5000..5200 => at.wrapping_mul(2_654_435_761),
            at => at * 7 / 64,
        };
        let plain: Vec<u8> = (0..20_003)
            .flat_map(|at| number(at).to_le_bytes())
            .collect();
        let mut seen = 0;
        for entry in std::fs::read_dir(&corpus).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "blosc") {
                let frame = std::fs::read(&path).unwrap();
                let found = decompress(&frame, plain.len()).unwrap();
                assert!(found == plain, "{}", path.display());
                assert!(decompress(&frame, plain.len() - 1).is_err());
                seen += 1;
                for at in 0..frame.len().min(400) {
                    let mut damaged = frame.clone();
                    damaged[at] ^= 0x55;
                    let result = decompress(&damaged, plain.len());
                    assert!(result.is_err() || result.is_ok_and(|out| out.len() <= plain.len()));
                    assert!(decompress(&frame[..at], plain.len()).is_err());
                }
            }
        }
        assert_eq!(seen, 15);
    }
}
