//! Turns options into a plan, before anything is written.

use crate::bad_count::BadCount;
use crate::census::{Census, CensusRecord, inputs};
use crate::differences::differences;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, SourceProgress, Stage};
use crate::open_files;
use crate::options::{OnBad, PackOptions};
use crate::plan::Plan;
use crate::publish::destination::PlanDifference;
use crate::publish::upload;
use forebay_store::Location;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A pack that is ready to run, with everything that a dry run shows.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) options: PackOptions,
    pub(crate) dst: PathBuf,
    pub(crate) census: Census,
    pub(crate) plan: Plan,
    pub(crate) census_time: Duration,
    /// Whether the census was recorded by another process, so that files may have changed since.
    pub(crate) is_recorded: bool,
    /// Counts the images that were left out as bad.
    pub(crate) bad: BadCount,
}

impl Prepared {
    /// Returns the census of the source.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the destination directory.
    pub fn destination(&self) -> &Path {
        &self.dst
    }

    /// Returns the options from which the pack was prepared.
    pub fn options(&self) -> &PackOptions {
        &self.options
    }

    /// Returns the staging area and the number of bytes that it needs at least; `None` if shards are written directly to the
    /// destination.
    pub fn staging(&self) -> Option<(PathBuf, u64)> {
        let options = &self.options;
        let is_staged = options.upload.are_for(&options.dst);
        is_staged.then(|| (options.upload.area_dir(), self.staging_bytes()))
    }

    /// Returns the size in bytes of the largest shard, plus that of the images of compressed archives.
    pub(crate) fn staging_bytes(&self) -> u64 {
        let shards = self.plan.shards();
        let largest = shards
            .map(|shard| upload::room_of_planned(&shard, &self.options))
            .max();
        largest
            .unwrap_or(0)
            .saturating_add(self.census.spool_bytes())
    }

    /// Returns the time that the census and the plan took.
    pub fn census_time(&self) -> Duration {
        self.census_time
    }
}

/// Takes the census and makes the plan. Reads the source, and writes nothing.
pub fn prepare(
    options: &PackOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Prepared> {
    prepare_with(options, observer, cancel, &|| Ok(None))
}

/// As [`prepare`], for a part: if the plan of the parts is recorded in the destination, reads its census instead of listing
/// the source.
///
/// # Errors
/// As [`prepare`]; [`Error::DifferentPart`] if the recorded census was taken with other options.
pub fn prepare_part(
    options: &PackOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Prepared> {
    prepare_with(options, observer, cancel, &|| recorded(options))
}

/// Returns the recorded census of the plan in the destination, if there is one.
fn recorded(options: &PackOptions) -> Result<Option<Census>> {
    let is_missing = |path: &Path| !path.exists();
    if options.src.local_path().is_ok_and(is_missing) {
        // Listing the source reports this with a better message.
        return Ok(None);
    }
    let Some((plan, Some(bytes))) = upload::recorded_plan(&options.dst, &options.upload)? else {
        return Ok(None);
    };
    let Some(outline) = plan.outline else {
        return Ok(None);
    };
    let Some((name, then)) = outline.census else {
        return Ok(None);
    };
    let dst = upload::shown(&options.dst);
    let differences = differences([&then, &inputs(options)?], ["then", "now"]);
    PlanDifference::of(differences, PlanDifference::Arguments)
        .refuse_part(&dst, "this part".to_owned())?;
    let facts = (plan.findings, outline.warnings);
    CensusRecord::decode(&bytes, &name, &dst, options, facts).map(Some)
}

fn prepare_with(
    options: &PackOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
    recorded: &dyn Fn() -> Result<Option<Census>>,
) -> Result<Prepared> {
    let begin = Instant::now();
    options.validate().map_err(Error::Options)?;
    open_files::check()?;
    let place = options.place();
    if !options.src.is_remote() {
        options.src.local_path()?;
    }
    let src = place.as_path();
    let dst = upload::shown(&options.dst);
    refuse_remote_nesting(options)?;
    // Wrong arguments are reported before the census, which may take long.
    for dir in upload::written(&options.dst, &options.upload)? {
        refuse_nesting(src, &dir)?;
    }
    if let OnBad::Quarantine(dir) = &options.on_bad {
        refuse_inside(src, dir, "the quarantine lies in the source")?;
        // The destination is a separate directory, which may not exist yet.
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|e| Error::io(path, "resolve", e));
        if absolute(dir)?.starts_with(absolute(&dst)?) {
            let what = format!("the quarantine lies in the destination {}", dst.display());
            return Err(Error::destination(dir, what));
        }
        refuse_inside(&dst, dir, "the quarantine lies in the destination")?;
    }
    observer.stage(Stage::Census);
    let recorded = recorded()?;
    let is_recorded = recorded.is_some();
    let census = match recorded {
        Some(census) => census,
        None => Census::take(options, &SourceProgress(observer), cancel)?,
    };
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
        is_recorded,
    })
}

/// Refuses a destination inside the source if both are in a store.
fn refuse_remote_nesting(options: &PackOptions) -> Result<()> {
    let slashed = |place: &Location| format!("{}/", place.to_string().trim_end_matches('/'));
    let both = options.src.is_remote() && options.dst.is_remote();
    if both && slashed(&options.dst).starts_with(&slashed(&options.src)) {
        let what = format!("the destination lies in the source {}", options.src);
        return Err(Error::destination(options.dst.to_string(), what));
    }
    Ok(())
}

/// Refuses a destination inside the source, because the next pack would read its files as images.
pub(crate) fn refuse_nesting(src: &Path, dst: &Path) -> Result<()> {
    refuse_inside(src, dst, "the destination lies in the source")
}

fn refuse_inside(src: &Path, dst: &Path, problem: &str) -> Result<()> {
    let Ok(real_src) = src.canonicalize() else {
        // The census reports problems of the source with better messages.
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
            // If the destination does not exist yet, its closest existing parent is checked.
            Err(_) if existing.pop() => {}
            Err(_) => return Ok(()),
        }
    }
}
