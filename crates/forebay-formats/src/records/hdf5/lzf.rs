//! LZF, a compression filter that h5py adds to those of HDF5.

/// Its id among HDF5's filters.
pub(super) const FILTER: u16 = 32000;

/// Decompresses data; an error if the result has more than `most` bytes.
pub(super) fn decompress(data: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = data;
    let mut next = || -> Option<u8> {
        let (first, after) = rest.split_first()?;
        rest = after;
        Some(*first)
    };
    let short = || "LZF data is cut short".to_owned();
    while let Some(control) = next() {
        if control < 32 {
            for _ in 0..=control {
                out.push(next().ok_or_else(short)?);
            }
        } else {
            let mut len = usize::from(control >> 5) + 2;
            if len == 9 {
                len += usize::from(next().ok_or_else(short)?);
            }
            let low = next().ok_or_else(short)?;
            let distance = (usize::from(control & 0x1f) << 8) + usize::from(low) + 1;
            let start = out.len().checked_sub(distance);
            let start =
                start.ok_or_else(|| "LZF data refers to bytes before its first one".to_owned())?;
            for at in start..start + len {
                out.push(out[at]);
            }
        }
        if out.len() > most {
            return Err(format!("LZF data has more than {most} bytes"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_references_are_decoded() {
        // Three literals, then six bytes copied from three bytes back.
        let data = [2, b'a', b'b', b'c', 4 << 5, 2];
        assert_eq!(decompress(&data, 9).unwrap(), b"abcabcabc");
        let long = [0, b'x', 7 << 5, 11, 0];
        assert_eq!(decompress(&long, 100).unwrap(), [b'x'; 21]);
        for (damaged, most) in [
            (&data[..2], 9),
            (&data[..5], 9),
            (&[32, 9][..], 9),
            (&data[..], 8),
        ] {
            assert!(decompress(damaged, most).is_err(), "{damaged:?}");
        }
    }
}
