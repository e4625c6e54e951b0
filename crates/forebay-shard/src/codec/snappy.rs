//! Snappy, in its raw format (as in pages of Parquet): one Snappy block per block of a shard.

use std::io;

use snap::raw::{Decoder, Encoder, decompress_len, max_compress_len};

use super::{BlockCodec, Codec, Compressor, Engine};

impl Codec {
    /// Blocks are compressed with Snappy if that makes them smaller. Needs no C compiler.
    pub const SNAPPY: Self = Self { id: CODEC.id };
}

pub(super) const CODEC: BlockCodec = BlockCodec {
    id: 3,
    name: "snappy",
    feature_bit: 4,
    default_block_bytes: 256 << 10,
    levels: None,
    engine: Some(Engine {
        compressor,
        decompress,
    }),
};

fn compressor(_level: i32) -> io::Result<Compressor> {
    let mut encoder = Encoder::new();
    Ok(Box::new(move |raw, out| {
        let start = out.len();
        out.resize(start + max_compress_len(raw.len()), 0);
        let written = encoder.compress(raw, &mut out[start..])?;
        out.truncate(start + written);
        Ok(())
    }))
}

fn decompress(stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> io::Result<()> {
    let claimed = decompress_len(stored)?;
    if claimed != raw_len {
        let what = format!("the block expands to {claimed} bytes instead of {raw_len}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    out.clear();
    out.try_reserve_exact(raw_len)?;
    out.resize(raw_len, 0);
    Decoder::new().decompress(stored, out)?;
    Ok(())
}
