//! LZ4, in its block format: one LZ4 block per block of a shard.
//!
//! Our block header already has the expanded length and a checksum, so LZ4's frame format would
//! only add bytes. The library is pure Rust and needs no C compiler.

use std::io;

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use super::{BlockCodec, Codec, Compressor, Engine};

impl Codec {
    /// Blocks are compressed with LZ4 if that makes them smaller. Needs no C compiler.
    pub const LZ4: Self = Self { id: CODEC.id };
}

pub(super) const CODEC: BlockCodec = BlockCodec {
    id: 2,
    name: "lz4",
    feature_bit: 2,
    default_block_bytes: 256 << 10,
    levels: None,
    engine: Some(Engine {
        compressor,
        decompress,
    }),
};

fn compressor(_level: i32) -> io::Result<Compressor> {
    Ok(Box::new(|raw, out| {
        let start = out.len();
        out.resize(start + get_maximum_output_size(raw.len()), 0);
        let written = compress_into(raw, &mut out[start..]).map_err(io::Error::other)?;
        out.truncate(start + written);
        Ok(())
    }))
}

fn decompress(stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> io::Result<()> {
    out.clear();
    out.try_reserve_exact(raw_len)?;
    out.resize(raw_len, 0);
    // The output is a slice of the right length, so the library cannot write more.
    let written = decompress_into(stored, out).map_err(invalid)?;
    if written != raw_len {
        return Err(invalid(format!(
            "the block expands to {written} bytes instead of {raw_len}"
        )));
    }
    Ok(())
}

fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expanded(stored: &[u8], raw_len: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompress(stored, raw_len, &mut out)?;
        Ok(out)
    }

    #[test]
    fn hostile_lengths_are_refused() {
        // Literal runs and matches longer than the block: lengths of 15, then 255 per byte.
        let run = [&[0xff][..], &[0xff; 5000]].concat();
        // A match before the first byte, and one of offset 0.
        let (before, zero) = ([0x1f, b'a', 2, 0, 0], [0x1f, b'a', 0, 0, 0]);
        // One literal, then a match of 1 MiB: more than the block may expand to.
        let bomb = [&[0x1f, b'a', 1, 0][..], &[0xff; 4112], &[0, 0]].concat();
        for stored in [&run[..], &before, &zero, &bomb, &[]] {
            for raw_len in [0, 1, 64, 100_000] {
                assert!(expanded(stored, raw_len).is_err(), "{stored:x?}");
            }
        }
    }

    proptest! {
        #[test]
        fn only_the_declared_size_is_accepted(
            raw in prop::collection::vec(0..4u8, 1..2000),
            extra in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let mut stored = Vec::new();
            compressor(0).unwrap()(&raw, &mut stored).unwrap();
            prop_assert_eq!(&expanded(&stored, raw.len()).unwrap(), &raw);
            prop_assert!(expanded(&stored, raw.len() + 1).is_err());
            prop_assert!(expanded(&stored, raw.len() - 1).is_err());
            prop_assert!(expanded(&stored[..stored.len() - 1], raw.len()).is_err());
            stored.extend(extra);
            prop_assert!(expanded(&stored, raw.len()).is_err());
        }

        #[test]
        fn any_bytes_expand_to_the_declared_size_or_fail(
            stored in prop::collection::vec(any::<u8>(), 0..300),
            raw_len in 0..2000usize,
        ) {
            if let Ok(raw) = expanded(&stored, raw_len) {
                prop_assert_eq!(raw.len(), raw_len);
            }
        }
    }
}
