//! The list of reads that a run performs: files, and byte ranges of them in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use crate::Result;
use crate::cold::{FileBytes, Footprint};
use crate::random::Random;

/// A file that a [`ReadJob`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFile {
    /// Path of the file in the [`Medium`](super::Medium).
    pub path: PathBuf,
    /// Length of the file in bytes.
    pub len: u64,
}

impl<P: Into<PathBuf>> From<(P, u64)> for JobFile {
    fn from((path, len): (P, u64)) -> Self {
        Self {
            path: path.into(),
            len,
        }
    }
}

/// A read of a byte range, or a readahead hint for the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOp {
    /// Index of the file in [`ReadJob::files`].
    pub file: u32,
    /// Whether this is only a readahead hint (`POSIX_FADV_WILLNEED`): no bytes are read.
    pub announce: bool,
    /// Length of the range in bytes.
    pub len: u32,
    /// Offset in the file in bytes.
    pub offset: u64,
}

/// Reads and readahead hints, in the order in which [`run()`](super::run()) starts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadJob {
    files: Vec<JobFile>,
    ops: Vec<ReadOp>,
}

/// Distribution of the sizes of random reads: each size in bytes, with its share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeMix(Vec<(u32, u32)>);

/// Limit of a single read in bytes. Each thread of a run allocates a buffer for the longest read of the job.
const LONGEST: u64 = 256 << 20;

impl ReadJob {
    /// Creates a job from a list of reads.
    ///
    /// # Errors
    /// A read is empty, is longer than 256 MiB, or ends beyond the end of its file.
    pub fn new(files: Vec<JobFile>, ops: Vec<ReadOp>) -> Result<Self> {
        for op in &ops {
            let file = files.get(op.file as usize);
            let end = op.offset.checked_add(u64::from(op.len));
            let fits = file.is_some_and(|file| end.is_some_and(|end| end <= file.len));
            if !fits || op.len == 0 || u64::from(op.len) > LONGEST {
                let name = file.map_or("no file".to_owned(), |file| {
                    format!("\"{}\" of {} bytes", file.path.display(), file.len)
                });
                return Err(format!(
                    "invalid read of {} bytes at {}: it must be 1 byte to 256 MiB within its file ({name})",
                    op.len, op.offset
                )
                .into());
            }
        }
        Ok(Self { files, ops })
    }

    /// Creates a job that reads the files one after the other, from start to end, with `block` bytes per read.
    ///
    /// # Errors
    /// `block` is 0 or more than 256 MiB.
    pub fn sequential<F: Into<JobFile>>(
        files: impl IntoIterator<Item = F>,
        block: u32,
    ) -> Result<Self> {
        let files: Vec<JobFile> = files.into_iter().map(Into::into).collect();
        let mut ops = Vec::new();
        for (number, file) in files.iter().enumerate() {
            for offset in (0..file.len).step_by(block.max(1) as usize) {
                ops.push(ReadOp {
                    file: number as u32,
                    announce: false,
                    len: (file.len - offset).min(u64::from(block)) as u32,
                    offset,
                });
            }
        }
        Self::new(files, ops)
    }

    /// Creates a job of reads at random offsets. A file is chosen with a probability proportional to its length, and an offset
    /// is a multiple of the read's size, as in fio. Files that are shorter than the longest read are not read.
    ///
    /// # Errors
    /// All files are shorter than the longest read.
    pub fn random<F: Into<JobFile>>(
        files: impl IntoIterator<Item = F>,
        sizes: &SizeMix,
        reads: u64,
        seed: u64,
    ) -> Result<Self> {
        let files: Vec<JobFile> = files.into_iter().map(Into::into).collect();
        let mut random = Random::new(seed);
        let largest = sizes.0.iter().map(|&(size, _)| size).max().unwrap_or(0);
        let mut ends = Vec::with_capacity(files.len());
        let mut total = 0u64;
        for file in &files {
            total += file.len / u64::from(largest.max(1));
            ends.push(total);
        }
        if total == 0 || largest == 0 {
            return Err(format!("random reads of {largest} bytes: no file is that long").into());
        }
        let mut ops = Vec::new();
        for _ in 0..reads {
            let at = random.below(total);
            let number = ends.partition_point(|&end| end <= at);
            let len = sizes.draw(&mut random);
            let offset = random.below(files[number].len / u64::from(len)) * u64::from(len);
            ops.push(ReadOp {
                file: number as u32,
                announce: false,
                len,
                offset,
            });
        }
        Self::new(files, ops)
    }

    /// Creates a job that reads each file with one read, as a loader of single files does.
    ///
    /// # Errors
    /// A file is empty or longer than 256 MiB.
    pub fn whole_files<F: Into<JobFile>>(files: impl IntoIterator<Item = F>) -> Result<Self> {
        let files: Vec<JobFile> = files.into_iter().map(Into::into).collect();
        let mut ops = Vec::with_capacity(files.len());
        for (number, file) in files.iter().enumerate() {
            if file.len > LONGEST {
                return Err(format!("\"{}\" is longer than 256 MiB", file.path.display()).into());
            }
            ops.push(ReadOp {
                file: number as u32,
                announce: false,
                len: file.len as u32,
                offset: 0,
            });
        }
        Self::new(files, ops)
    }

    /// Returns the files.
    pub fn files(&self) -> &[JobFile] {
        &self.files
    }

    /// Returns the reads and readahead hints, in order.
    pub fn ops(&self) -> &[ReadOp] {
        &self.ops
    }

    /// Returns the number of reads, without readahead hints.
    pub fn reads(&self) -> u64 {
        self.ops.iter().filter(|op| !op.announce).count() as u64
    }

    /// Returns the sum of the lengths of all reads, in bytes.
    pub fn bytes(&self) -> u64 {
        let reads = self.ops.iter().filter(|op| !op.announce);
        reads.map(|op| u64::from(op.len)).sum()
    }

    /// Returns the length of the longest read or hint in bytes.
    pub fn longest(&self) -> u32 {
        self.ops.iter().map(|op| op.len).max().unwrap_or(0)
    }

    /// Removes the readahead hints.
    #[must_use]
    pub fn without_announcements(mut self) -> Self {
        self.ops.retain(|op| !op.announce);
        self
    }

    /// Removes each read that begins inside an earlier read of the same file, and each hint that begins inside an earlier hint.
    #[must_use]
    pub fn without_repeats(mut self) -> Self {
        // Maps (file, is a hint, start of the range) to the end of the range.
        let mut seen: BTreeMap<(u32, bool, u64), u64> = BTreeMap::new();
        self.ops.retain(|op| {
            let key = (op.file, op.announce, op.offset);
            let before = seen.range((op.file, op.announce, 0)..=key).next_back();
            let is_new = before.is_none_or(|(_, &end)| end <= op.offset);
            if is_new {
                seen.insert(key, op.offset + u64::from(op.len));
            }
            is_new
        });
        self
    }

    /// Returns the byte ranges that a run reads; [`cold`](crate::cold) evicts them from the page cache before a run.
    pub fn footprint(&self) -> Footprint {
        let mut ranges: Vec<Vec<Range<u64>>> = vec![Vec::new(); self.files.len()];
        for op in self.ops.iter().filter(|op| !op.announce) {
            ranges[op.file as usize].push(op.offset..op.offset + u64::from(op.len));
        }
        let files = self.files.iter().zip(ranges);
        let files = files.filter(|(_, ranges)| !ranges.is_empty());
        let files = files.map(|(file, ranges)| FileBytes {
            path: file.path.clone(),
            ranges: Some(ranges),
        });
        Footprint::Files(files.collect())
    }
}

impl SizeMix {
    /// Creates a mix with a single size in bytes.
    pub fn fixed(bytes: u32) -> Self {
        Self(vec![(bytes, 100)])
    }

    /// Creates a mix from sizes in bytes and their shares, which are relative to the sum of all shares.
    ///
    /// # Errors
    /// A size is 0 or more than 256 MiB, or the sum of the shares is 0.
    pub fn new(sizes: Vec<(u32, u32)>) -> std::result::Result<Self, String> {
        let invalid = sizes
            .iter()
            .find(|&&(size, _)| size == 0 || u64::from(size) > LONGEST);
        if let Some((size, _)) = invalid {
            return Err(format!("invalid size {size}: it must be 1 byte to 256 MiB"));
        }
        match sizes.iter().map(|&(_, share)| u64::from(share)).sum() {
            0 => Err("a mix of sizes needs shares above 0".to_owned()),
            _ => Ok(Self(sizes)),
        }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let all = self.0.iter().map(|&(_, share)| u64::from(share)).sum();
        let mut at = random.below(all);
        for &(size, share) in &self.0 {
            match at.checked_sub(u64::from(share)) {
                Some(rest) => at = rest,
                None => return size,
            }
        }
        self.0.last().map_or(0, |&(size, _)| size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_reads_cover_each_byte_once() {
        let job = ReadJob::sequential([("a", 2500), ("b", 0), ("c", 1000)], 1000).unwrap();
        let ops: Vec<_> = job
            .ops()
            .iter()
            .map(|op| (op.file, op.offset, op.len))
            .collect();
        assert_eq!(
            ops,
            [(0, 0, 1000), (0, 1000, 1000), (0, 2000, 500), (2, 0, 1000)]
        );
        assert_eq!((job.bytes(), job.reads(), job.longest()), (3500, 4, 1000));
        assert!(ReadJob::sequential([("a", 10)], 0).is_err());
    }

    #[test]
    fn random_reads_stay_in_their_files_and_follow_the_mix() {
        let sizes = SizeMix::new(vec![(1 << 10, 25), (4 << 10, 75)]).unwrap();
        let files = [("a", 100_000), ("short", 4000), ("b", 300_000)];
        let job = ReadJob::random(files, &sizes, 4000, 9).unwrap();
        assert_eq!(job, ReadJob::random(files, &sizes, 4000, 9).unwrap());
        let small = job.ops().iter().filter(|op| op.len == 1024).count();
        assert!((900..1100).contains(&small), "{small}");
        let of_b = job.ops().iter().filter(|op| op.file == 2).count();
        assert!((2800..3200).contains(&of_b), "{of_b}");
        assert!(
            job.ops()
                .iter()
                .all(|op| op.file != 1 && op.offset % u64::from(op.len) == 0)
        );
        let error = ReadJob::random([("a", 10)], &SizeMix::fixed(11), 1, 0).unwrap_err();
        assert!(error.to_string().contains("no file is that long"));
    }

    #[test]
    fn repeated_reads_are_removed() {
        let op = |file, announce, offset, len| ReadOp {
            file,
            announce,
            len,
            offset,
        };
        let ops = [
            op(0, true, 10, 20),
            op(0, false, 10, 20),
            op(0, false, 40, 10),
            op(1, false, 10, 20),
            op(0, false, 15, 5),
            op(0, true, 29, 1),
            op(0, false, 30, 10),
            op(0, false, 40, 30),
        ];
        let files = vec![("a", 100).into(), ("b", 100).into()];
        let job = ReadJob::new(files, ops.to_vec()).unwrap().without_repeats();
        let kept = [0, 1, 2, 3, 6].map(|number: usize| ops[number]);
        assert_eq!(job.ops(), kept);
        assert_eq!(job.clone().without_announcements().ops().len(), 4);
        assert_eq!(job.without_repeats().ops(), kept);
    }

    #[test]
    fn invalid_reads_are_rejected() {
        let op = |offset, len| ReadOp {
            file: 0,
            announce: false,
            len,
            offset,
        };
        let job = |op| ReadJob::new(vec![("a", 1 << 40).into()], vec![op]);
        assert!(job(op(5, 5)).is_ok());
        for bad in [
            op(0, 0),
            op(1 << 40, 1),
            op(u64::MAX, 2),
            op(0, (256 << 20) + 1),
        ] {
            let error = job(bad).unwrap_err().to_string();
            assert!(error.contains("\"a\" of"), "{error}");
        }
        let mut none = op(0, 1);
        none.file = 1;
        assert!(job(none).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn whole_files_are_read_in_their_order() {
        let files = (1..50u64).map(|len| (format!("{len}"), len));
        let job = ReadJob::whole_files(files).unwrap();
        assert_eq!(job.bytes(), (1..50).sum::<u64>());
        assert!(job.ops().is_sorted_by_key(|op| op.file));
        assert!(ReadJob::whole_files([("empty", 0)]).is_err());
        assert!(matches!(job.footprint(), Footprint::Files(files) if files.len() == 49));
    }

    #[test]
    fn invalid_size_mixes_are_rejected() {
        for bad in [vec![], vec![(0, 1)], vec![(4096, 0)], vec![(257 << 20, 1)]] {
            assert!(SizeMix::new(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
