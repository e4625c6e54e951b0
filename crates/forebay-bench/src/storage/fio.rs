//! The same jobs for fio, so that others can check a figure with a tool that they trust.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::job::ReadJob;
use crate::Result;

/// A job file of fio and the logs of reads that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FioJob {
    /// The text of the job file.
    pub job: String,
    /// The logs (`read_iolog`, version 2) with their paths.
    pub logs: Vec<(PathBuf, String)>,
}

/// Makes the fio job of a list of reads: `depth` workers, each with a log of its own, since fio replays one log with one
/// synchronous read at a time. The reads go to the workers in turn. Announcements are left out.
///
/// # Errors
/// A path with a blank or a control character, which logs cannot hold.
pub fn replay(job: &ReadJob, depth: usize, direct: bool, at: &Path) -> Result<FioJob> {
    let invalid = |text: &str| text.chars().any(|c| c.is_whitespace() || c.is_control());
    let names = job.files().iter().map(|file| {
        let absolute = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
        match absolute.to_str() {
            Some(text) if !invalid(text) => Ok(text.to_owned()),
            _ => Err(format!(
                "\"{}\" cannot be named in a log of fio: it has blanks or is not UTF-8; rename it",
                file.path.display()
            )),
        }
    });
    let names = names.collect::<std::result::Result<Vec<String>, String>>()?;
    let depth = depth.max(1);
    let reads: Vec<_> = job.ops().iter().filter(|op| !op.announce).collect();
    let mut text = String::from("[global]\nioengine=psync\nreplay_no_stall=1\ngroup_reporting=1\n");
    if direct {
        text.push_str("direct=1\n");
    } else {
        // fio drops the pages of its files before a run, unless told not to: both tools start as the caches are.
        text.push_str("invalidate=0\n");
    }
    let mut logs = Vec::new();
    for worker in 0..depth.min(reads.len()) {
        let own = || reads.iter().skip(worker).step_by(depth);
        let mut log = String::from("fio version 2 iolog\n");
        let files: BTreeSet<u32> = own().map(|op| op.file).collect();
        for (what, each) in [("add", &files), ("open", &files)] {
            for &file in each {
                let _ = writeln!(log, "{} {what}", names[file as usize]);
            }
        }
        for op in own() {
            let name = &names[op.file as usize];
            let _ = writeln!(log, "{name} read {} {}", op.offset, op.len);
        }
        for &file in &files {
            let _ = writeln!(log, "{} close", names[file as usize]);
        }
        let mut path = at.as_os_str().to_owned();
        path.push(format!(".{worker}.iolog"));
        let path = PathBuf::from(path);
        let _ = write!(text, "[worker{worker}]\nread_iolog={}\n", path.display());
        logs.push((path, log));
    }
    Ok(FioJob { job: text, logs })
}

impl FioJob {
    /// Writes the job file and its logs.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, at: &Path) -> Result<()> {
        let all = self.logs.iter().map(|(path, text)| (path.as_path(), text));
        for (path, text) in all.chain([(at, &self.job)]) {
            std::fs::write(path, text)
                .map_err(|error| format!("cannot write \"{}\": {error}", path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ReadOp;

    #[test]
    fn workers_share_the_reads_in_turn() {
        let op = |file, offset, announce| ReadOp {
            file,
            announce,
            len: 10,
            offset,
        };
        let files = vec![("/d/a", 100).into(), ("/d/b", 100).into()];
        let ops = vec![
            op(0, 0, false),
            op(1, 5, true),
            op(1, 7, false),
            op(0, 20, false),
        ];
        let job = ReadJob::new(files, ops).unwrap();
        let fio = replay(&job, 2, false, Path::new("/t/x.fio")).unwrap();
        assert!(fio.job.contains("invalidate=0") && !fio.job.contains("direct"));
        assert!(
            fio.job
                .ends_with("[worker1]\nread_iolog=/t/x.fio.1.iolog\n")
        );
        assert_eq!(
            fio.logs[0].1,
            "fio version 2 iolog\n/d/a add\n/d/a open\n/d/a read 0 10\n/d/a read 20 10\n/d/a close\n"
        );
        assert!(fio.logs[1].1.contains("/d/b read 7 10\n"));
        assert_eq!(
            replay(&job, 99, true, Path::new("x")).unwrap().logs.len(),
            3
        );
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("job.fio");
        replay(&job, 3, true, &at).unwrap().save(&at).unwrap();
        assert!(std::fs::read_to_string(&at).unwrap().contains("direct=1"));
        assert!(dir.path().join("job.fio.2.iolog").exists());
        let blank = ReadJob::sequential([("/d/a b", 10)], 10).unwrap();
        let error = replay(&blank, 1, false, &at).unwrap_err().to_string();
        assert!(error.contains("\"/d/a b\""), "{error}");
    }
}
