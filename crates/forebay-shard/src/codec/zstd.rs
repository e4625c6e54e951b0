//! Zstandard: one frame per block.

use super::{BlockCodec, Codec, Levels};

impl Codec {
    /// Blocks are compressed with Zstandard if that makes them smaller.
    pub const ZSTD: Self = Self { id: CODEC.id };
}

pub(super) const CODEC: BlockCodec = BlockCodec {
    id: 1,
    name: "zstd",
    feature_bit: 1,
    default_block_bytes: 256 << 10,
    // 3 is the library's default: most of the gain at several hundred MB/s.
    levels: Some(Levels {
        range: 1..=22,
        default: 3,
    }),
    #[cfg(feature = "zstd")]
    engine: Some(library::ENGINE),
    #[cfg(not(feature = "zstd"))]
    engine: None,
};

#[cfg(feature = "zstd")]
mod library {
    use std::cell::RefCell;
    use std::io;

    use zstd::bulk::{self, Decompressor};
    use zstd::zstd_safe::find_frame_compressed_size;

    use crate::codec::{Compressor, Engine};

    pub(super) const ENGINE: Engine = Engine {
        compressor,
        decompress,
    };

    /// First bytes of a Zstandard frame (RFC 8878). Skippable frames and those of old versions
    /// differ.
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

    thread_local! {
        /// Creating a context is expensive and keeping it is cheap, so each thread keeps one.
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }

    fn compressor(level: i32) -> io::Result<Compressor> {
        let mut zstd = bulk::Compressor::new(level)?;
        Ok(Box::new(move |raw, out| {
            out.extend_from_slice(&zstd.compress(raw)?);
            Ok(())
        }))
    }

    fn decompress(stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        check_one_frame(stored)?;
        out.try_reserve_exact(raw_len)?;
        let written = DECOMPRESSOR.with_borrow_mut(|slot| {
            let zstd = match slot {
                Some(zstd) => zstd,
                None => slot.insert(Decompressor::new()?),
            };
            // The vector may have a larger capacity than requested; only the output length matters.
            zstd.decompress_to_buffer(stored, out)
        })?;
        if written != raw_len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the block expands to {written} bytes instead of {raw_len}"),
            ));
        }
        Ok(())
    }

    /// Refuses everything but a single frame: the library would also expand several consecutive
    /// frames and ignore skippable ones.
    fn check_one_frame(stored: &[u8]) -> io::Result<()> {
        let invalid = |problem: String| Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        if !stored.starts_with(&MAGIC) {
            return invalid("the block is no Zstandard frame".to_owned());
        }
        match find_frame_compressed_size(stored) {
            Ok(len) if len == stored.len() => Ok(()),
            Ok(len) => invalid(format!(
                "{} bytes follow the Zstandard frame of the block",
                stored.len() - len
            )),
            Err(_) => invalid("the Zstandard frame of the block is cut short".to_owned()),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use proptest::prelude::*;

        fn compress(raw: &[u8]) -> Vec<u8> {
            let mut stored = Vec::new();
            compressor(3).unwrap()(raw, &mut stored).unwrap();
            stored
        }

        fn expanded(stored: &[u8], raw_len: usize) -> io::Result<Vec<u8>> {
            let mut out = Vec::new();
            decompress(stored, raw_len, &mut out)?;
            Ok(out)
        }

        /// A skippable frame (RFC 8878, section 3.1.2) with this content.
        fn skippable(content: &[u8]) -> Vec<u8> {
            let mut frame = 0x184d_2a53u32.to_le_bytes().to_vec();
            frame.extend((content.len() as u32).to_le_bytes());
            frame.extend_from_slice(content);
            frame
        }

        proptest! {
            #[test]
            fn only_one_frame_of_the_declared_size_is_accepted(
                raw in prop::collection::vec(any::<u8>(), 1..2000),
                cut in any::<prop::sample::Index>(),
                extra in prop::collection::vec(any::<u8>(), 0..40),
            ) {
                let frame = compress(&raw);
                prop_assert_eq!(expanded(&frame, raw.len()).unwrap(), raw.clone());
                let join = |parts: &[&[u8]]| parts.concat();
                let cut = cut.index(raw.len());
                let (head, tail) = raw.split_at(cut);
                for stored in [
                    join(&[&compress(head), &compress(tail)]),
                    join(&[&frame, &skippable(&extra)]),
                    join(&[&skippable(&extra), &frame]),
                    join(&[&frame, &compress(b"")]),
                    join(&[&frame, &extra, &[0]]),
                    frame[..frame.len() - 1].to_vec(),
                    skippable(&raw),
                ] {
                    prop_assert!(expanded(&stored, raw.len()).is_err(), "{:x?}", stored);
                }
                prop_assert!(expanded(&frame, raw.len() + 1).is_err());
                prop_assert!(expanded(&frame, raw.len() - 1).is_err());
            }
        }
    }
}
