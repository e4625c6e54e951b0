//! The part of the package `crc-fast` that `object_store` calls, in its place in builds of this workspace.
//!
//! The package has tables of a hundred algorithms, 0.7 MB that no linker can leave out and that do not compress, and five
//! further packages. `object_store` needs one algorithm, for the uploads of those who choose S3's checksum CRC-64/NVME; the
//! server of the tests two more.

use std::sync::OnceLock;

/// The checksums. All of them reflect their bits, begin with ones, and are inverted at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrcAlgorithm {
    /// CRC-64/NVME.
    Crc64Nvme,
    /// CRC-32, as in zip and PNG.
    Crc32IsoHdlc,
    /// CRC-32C.
    Crc32Iscsi,
}

/// A checksum of bytes that come in pieces.
#[derive(Debug, Clone)]
pub struct Digest {
    crc: u64,
    ones: u64,
    tables: &'static Tables,
}

/// For each of eight bytes in a row, the remainders of its values.
type Tables = [[u64; 256]; 8];

/// The tables of a polynomial, whose bits are in reverse.
fn tables(polynomial: u64) -> Box<Tables> {
    let mut tables = Box::new([[0; 256]; 8]);
    for value in 0..256 {
        let mut crc = value as u64;
        for table in tables.iter_mut() {
            for _ in 0..8 {
                crc = (crc >> 1) ^ (polynomial * (crc & 1));
            }
            table[value] = crc;
        }
    }
    tables
}

impl Digest {
    /// Begins a checksum.
    pub fn new(algorithm: CrcAlgorithm) -> Self {
        static TABLES: [OnceLock<Box<Tables>>; 3] = [const { OnceLock::new() }; 3];
        let (polynomial, ones) = match algorithm {
            CrcAlgorithm::Crc64Nvme => (0x9a6c_9329_ac4b_c9b5, u64::MAX),
            CrcAlgorithm::Crc32IsoHdlc => (0xedb8_8320, u32::MAX.into()),
            CrcAlgorithm::Crc32Iscsi => (0x82f6_3b78, u32::MAX.into()),
        };
        Self {
            crc: ones,
            ones,
            tables: TABLES[algorithm as usize].get_or_init(|| tables(polynomial)),
        }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let look = |table: usize, byte: u8| self.tables[table][usize::from(byte)];
        for word in words {
            let mixed = (self.crc ^ u64::from_le_bytes(*word)).to_le_bytes();
            let each = mixed.iter().enumerate();
            self.crc = each.fold(0, |crc, (at, &byte)| crc ^ look(7 - at, byte));
        }
        for &byte in rest {
            self.crc = look(0, self.crc as u8 ^ byte) ^ (self.crc >> 8);
        }
    }

    /// The checksum.
    pub fn finalize(&self) -> u64 {
        self.crc ^ self.ones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_their_check_values() {
        let with = |algorithm, pieces: &[&[u8]]| {
            let mut digest = Digest::new(algorithm);
            pieces.iter().for_each(|piece| digest.update(piece));
            digest.finalize()
        };
        let of = |pieces: &[&[u8]]| with(CrcAlgorithm::Crc64Nvme, pieces);
        // The check value of the catalogue of CRCs, and those of NVM Express for 4 KiB of zeros and of ones.
        assert_eq!(of(&[b"123456789"]), 0xae8b_1486_0a79_9888);
        assert_eq!(of(&[b"1", b"2345", b"6789"]), 0xae8b_1486_0a79_9888);
        assert_eq!(of(&[&[0; 4096]]), 0x6482_d367_eb22_b64e);
        assert_eq!(of(&[&[0xff; 4096]]), 0xc0dd_ba73_02ec_a3ac);
        assert_eq!(of(&[]), 0);
        for (algorithm, check) in [
            (CrcAlgorithm::Crc32IsoHdlc, 0xcbf4_3926),
            (CrcAlgorithm::Crc32Iscsi, 0xe306_9283),
        ] {
            assert_eq!(with(algorithm, &[b"123", b"456789"]), check);
        }
    }
}
