//! From options to a plan that can be looked at, before anything is written.

use crate::census::Census;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::{OnBadImage, PackOptions};
use crate::plan::Plan;
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
}

impl Prepared {
    /// What is in the source.
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
    crate::write::check_open_files()?;
    let src = options.src.local_path()?;
    let dst = options.dst.local_path()?.to_path_buf();
    // Before the census: it may take long, and this is a mistake in the arguments.
    refuse_nesting(src, &dst)?;
    if let OnBadImage::Quarantine(dir) = &options.on_bad_image {
        refuse_inside(src, dir, "the quarantine lies in the source")?;
        // A data set is a directory of its own, and may not be there yet.
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|e| Error::io(path, "resolve", e));
        if absolute(dir)?.starts_with(absolute(&dst)?) {
            let what = format!("the quarantine lies in the destination {}", dst.display());
            return Err(Error::destination(dir, what));
        }
        refuse_inside(&dst, dir, "the quarantine lies in the destination")?;
    }
    let census = Census::take(options, observer, cancel)?;
    let plan = Plan::make(&census, options)?;
    observer.planned(&census, &plan);
    Ok(Prepared {
        options: options.clone(),
        dst,
        census,
        plan,
        census_time: begin.elapsed(),
    })
}

/// What is written inside the source would be read as images by the next pack.
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
