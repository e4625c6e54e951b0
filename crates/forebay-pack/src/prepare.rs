//! From options to a plan that can be looked at, before anything is written.

use crate::bad_count::BadCount;
use crate::census::Census;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, SourceProgress, Stage};
use crate::open_files;
use crate::options::{OnBad, PackOptions};
use crate::plan::Plan;
use forebay_store::Location;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A pack that is ready to run: all that a dry run shows.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) options: PackOptions,
    pub(crate) dst: PathBuf,
    pub(crate) census: Census,
    pub(crate) plan: Plan,
    pub(crate) census_time: Duration,
    /// Images that were left out as bad.
    pub(crate) bad: BadCount,
}

impl Prepared {
    /// The census of the source.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Which file goes where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The directory that it is packed into.
    pub fn destination(&self) -> &Path {
        &self.dst
    }

    /// The options that it was prepared from.
    pub fn options(&self) -> &PackOptions {
        &self.options
    }

    /// The staging area that shards go through, and the bytes that it needs at least; none where they stay where they are
    /// written.
    pub fn staging(&self) -> Option<(PathBuf, u64)> {
        let options = &self.options;
        let is_staged = options.upload.are_for(&options.dst);
        is_staged.then(|| (options.upload.area_dir(), self.staging_bytes()))
    }

    /// Bytes that the largest shard takes, and the images of compressed archives.
    pub(crate) fn staging_bytes(&self) -> u64 {
        let shards = self.plan.shards();
        let largest = shards
            .map(|shard| crate::upload::room_of_planned(&shard, &self.options))
            .max();
        largest
            .unwrap_or(0)
            .saturating_add(self.census.spool_bytes())
    }

    /// Time that the census and the plan took.
    pub fn census_time(&self) -> Duration {
        self.census_time
    }
}

/// Takes the census and makes the plan. Reads the source, writes nothing.
pub fn prepare(
    options: &PackOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Prepared> {
    let begin = Instant::now();
    options.validate().map_err(Error::Options)?;
    open_files::check()?;
    let place = options.place();
    if !options.src.is_remote() {
        options.src.local_path()?;
    }
    let src = place.as_path();
    let dst = crate::upload::shown(&options.dst);
    refuse_remote_nesting(options)?;
    // Before the census: it may take long, and this is a mistake in the arguments.
    for dir in crate::upload::written(&options.dst, &options.upload)? {
        refuse_nesting(src, &dir)?;
    }
    if let OnBad::Quarantine(dir) = &options.on_bad {
        refuse_inside(src, dir, "the quarantine lies in the source")?;
        // A dataset is a directory of its own, and may not be there yet.
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|e| Error::io(path, "resolve", e));
        if absolute(dir)?.starts_with(absolute(&dst)?) {
            let what = format!("the quarantine lies in the destination {}", dst.display());
            return Err(Error::destination(dir, what));
        }
        refuse_inside(&dst, dir, "the quarantine lies in the destination")?;
    }
    observer.stage(Stage::Census);
    let census = Census::take(options, &SourceProgress(observer), cancel)?;
    let plan = Plan::make(&census, options)?;
    observer.planned(&census, &plan);
    let bad = BadCount::new(options.max_bad, census.files());
    Ok(Prepared {
        bad,
        options: options.clone(),
        dst,
        census,
        plan,
        census_time: begin.elapsed(),
    })
}

/// The same for two places in one store.
fn refuse_remote_nesting(options: &PackOptions) -> Result<()> {
    let slashed = |place: &Location| format!("{}/", place.to_string().trim_end_matches('/'));
    let both = options.src.is_remote() && options.dst.is_remote();
    if both && slashed(&options.dst).starts_with(&slashed(&options.src)) {
        let what = format!("the destination lies in the source {}", options.src);
        return Err(Error::destination(options.dst.to_string(), what));
    }
    Ok(())
}

/// The next pack would read files inside the source as images.
pub(crate) fn refuse_nesting(src: &Path, dst: &Path) -> Result<()> {
    refuse_inside(src, dst, "the destination lies in the source")
}

fn refuse_inside(src: &Path, dst: &Path, problem: &str) -> Result<()> {
    let Ok(real_src) = src.canonicalize() else {
        // Whatever is wrong with the source, the census says it better.
        return Ok(());
    };
    let mut existing = std::path::absolute(dst).map_err(|e| Error::io(dst, "resolve", e))?;
    loop {
        match existing.canonicalize() {
            Ok(real) if real.starts_with(&real_src) => {
                let what = format!("{problem} {}", src.display());
                return Err(Error::destination(dst, what));
            }
            Ok(_) => return Ok(()),
            // Not there yet: where it would be made decides.
            Err(_) if existing.pop() => {}
            Err(_) => return Ok(()),
        }
    }
}
