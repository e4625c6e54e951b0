//! Writes zip archives of stored members without times and owners. Sizes of 4 GiB and more use zip64.

use std::io::{self, Read, Write};

/// Sizes and offsets from this value on are written to the zip64 field.
const ZIP64_FROM: u64 = 0xffff_ffff;
/// 1980-01-01, the earliest date in a zip archive.
const NO_TIME: [u8; 4] = [0, 0, 0x21, 0];
/// Versions of the format that a reader needs: 2.0, and 4.5 for zip64.
const VERSIONS: [u16; 2] = [20, 45];

/// Writes an archive sequentially.
pub(crate) struct ZipWriter<'a> {
    out: &'a mut dyn Write,
    at: u64,
    directory: Vec<u8>,
    members: u64,
}

impl<'a> ZipWriter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            at: 0,
            directory: Vec::new(),
            members: 0,
        }
    }

    /// Writes a member with this size in bytes and this checksum.
    pub(crate) fn add(
        &mut self,
        name: &str,
        size: u64,
        crc32: u32,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let start = self.at;
        let name_len = u16::try_from(name.len()).map_err(io::Error::other)?;
        let is_long = size >= ZIP64_FROM;
        let is_far = start >= ZIP64_FROM;
        let version = VERSIONS[usize::from(is_long || is_far)];
        let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        let mut common = Vec::new();
        common.extend(version.to_le_bytes());
        // Flags (names are UTF-8) and method (stored).
        common.extend(0x0800u16.to_le_bytes());
        common.extend(0u16.to_le_bytes());
        common.extend(NO_TIME);
        common.extend(crc32.to_le_bytes());
        common.extend(short(size));
        common.extend(short(size));
        common.extend(name_len.to_le_bytes());
        let mut sizes = Vec::new();
        if is_long {
            sizes.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        }
        let mut local = b"PK\x03\x04".to_vec();
        local.extend(&common);
        let extra = zip64_field(&sizes);
        local.extend((extra.len() as u16).to_le_bytes());
        local.extend(name.as_bytes());
        local.extend(extra);
        self.put(&local)?;
        let copied = io::copy(&mut content.take(size), self.out)?;
        if copied != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += size;
        if is_far {
            sizes.extend(start.to_le_bytes());
        }
        let extra = zip64_field(&sizes);
        let record = &mut self.directory;
        record.extend(b"PK\x01\x02");
        record.extend(version.to_le_bytes());
        record.extend(&common);
        record.extend((extra.len() as u16).to_le_bytes());
        // Comment length, disk number and attributes.
        record.extend([0; 10]);
        record.extend(short(start));
        record.extend(name.as_bytes());
        record.extend(extra);
        self.members += 1;
        Ok(())
    }

    /// Writes the central directory.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let (start, len) = (self.at, self.directory.len() as u64);
        let directory = std::mem::take(&mut self.directory);
        self.put(&directory)?;
        let is_large = start >= ZIP64_FROM || len >= ZIP64_FROM || self.members >= 0xffff;
        let mut end = Vec::new();
        if is_large {
            end.extend(b"PK\x06\x06");
            end.extend(44u64.to_le_bytes());
            end.extend(VERSIONS[1].to_le_bytes());
            end.extend(VERSIONS[1].to_le_bytes());
            end.extend([0; 8]);
            for value in [self.members, self.members, len, start] {
                end.extend(value.to_le_bytes());
            }
            end.extend(b"PK\x06\x07");
            end.extend([0; 4]);
            end.extend((start + len).to_le_bytes());
            end.extend(1u32.to_le_bytes());
        }
        end.extend(b"PK\x05\x06");
        end.extend([0; 4]);
        let members = u16::try_from(self.members).unwrap_or(u16::MAX);
        end.extend(members.to_le_bytes());
        end.extend(members.to_le_bytes());
        for value in [len, start] {
            end.extend(u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
        }
        end.extend([0; 2]);
        self.put(&end)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// Returns the zip64 field with these values; empty without values.
fn zip64_field(values: &[u8]) -> Vec<u8> {
    if values.is_empty() {
        return Vec::new();
    }
    let mut field = 1u16.to_le_bytes().to_vec();
    field.extend((values.len() as u16).to_le_bytes());
    field.extend(values);
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::zip::Directory;
    use crate::archive::{Archive, ArchiveKind, Stream};

    #[test]
    fn written_members_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zip");
        let mut file = std::fs::File::create(&path).unwrap();
        let mut writer = ZipWriter::new(&mut file);
        for (name, content) in [("a.npy", &b"first"[..]), ("ü/b.npy", b"")] {
            let mut crc = flate2::Crc::new();
            crc.update(content);
            let mut rest = content;
            writer
                .add(name, content.len() as u64, crc.sum(), &mut rest)
                .unwrap();
        }
        writer.finish().unwrap();
        let (file, _) = Archive::Local(path.clone()).open().unwrap();
        let mut directory = Directory::find(&file, file.len()).unwrap();
        let mut stream = Stream::new(file.clone(), ArchiveKind::Zip { base: 0 }).unwrap();
        let mut found = Vec::new();
        while let Some(member) = directory.next(&mut stream).unwrap() {
            let mut content = Vec::new();
            member
                .append_to(&file, directory.base, u64::MAX, &mut content)
                .unwrap();
            found.push((String::from_utf8(member.name).unwrap(), content));
        }
        assert_eq!(found[0], ("a.npy".to_owned(), b"first".to_vec()));
        assert_eq!(found[1], ("ü/b.npy".to_owned(), Vec::new()));
        let mut other = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
        assert_eq!(other.by_name("a.npy").unwrap().size(), 5);
    }

    #[test]
    fn long_archives_have_a_longer_directory() {
        // The reader below returns zeros instead of the first member, whose content does not matter here.
        struct Zeros;
        impl Read for Zeros {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                out.fill(0);
                Ok(out.len())
            }
        }
        struct Tail(u64, Vec<u8>);
        impl Write for Tail {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len() as u64;
                if self.0 > ZIP64_FROM {
                    self.1.extend_from_slice(bytes);
                    let surplus = self.1.len().saturating_sub(1 << 20);
                    self.1.drain(..surplus);
                }
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Tail(0, Vec::new());
        let mut writer = ZipWriter::new(&mut out);
        writer.add("long", ZIP64_FROM + 1, 0, &mut Zeros).unwrap();
        writer.add("far", 0, 0, &mut io::empty()).unwrap();
        writer.finish().unwrap();
        let (total, tail) = (out.0, out.1);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zip");
        let file = std::fs::File::create(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &tail, total - tail.len() as u64).unwrap();
        let (file, _) = Archive::Local(path).open().unwrap();
        let mut directory = Directory::find(&file, file.len()).unwrap();
        let mut stream = Stream::new(file.clone(), ArchiveKind::Zip { base: 0 }).unwrap();
        let long = directory.next(&mut stream).unwrap().unwrap();
        assert_eq!(
            (long.size, long.name.as_slice()),
            (ZIP64_FROM + 1, &b"long"[..])
        );
        let far = directory.next(&mut stream).unwrap().unwrap();
        assert!(far.data(&file, directory.base).unwrap() > ZIP64_FROM);
        assert!(directory.next(&mut stream).unwrap().is_none());
    }
}
