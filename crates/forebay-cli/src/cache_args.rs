//! Options of the local cache, for commands that read a dataset more than once.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use forebay_cache::{Cache, CacheOptions, reads_store};
use forebay_store::Location;

use crate::console::Console;
use crate::failure::Failure;
use crate::quantity::parse_size;

/// Options about the local cache. Nothing is cached where neither a directory nor memory is given.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cache")]
pub(crate) struct CacheArgs {
    /// Keep what is read from a store in this directory; best on a local NVMe disk, and shared by
    /// the processes of this host
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// Bytes that the directory may hold [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) cache_bytes: Option<u64>,

    /// Bytes that are kept in memory: without a directory, or where it has no room [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) cache_memory: Option<u64>,
}

impl CacheArgs {
    /// Opens the requested cache if one of these datasets is read from a store. Others need no cache.
    pub(crate) fn open_for<'a>(
        &self,
        places: impl IntoIterator<Item = &'a PathBuf>,
        console: &Console,
    ) -> Result<Option<Arc<Cache>>, Failure> {
        let mut places = places.into_iter();
        let needs = |place| Location::parse(place).is_ok_and(|place| reads_store(&place));
        if places.any(needs) {
            self.open(console)
        } else {
            Ok(None)
        }
    }

    /// Opens the requested cache, if the options request one.
    pub(crate) fn open(&self, console: &Console) -> Result<Option<Arc<Cache>>, Failure> {
        if self.cache_dir.is_none() && self.cache_memory.is_none() {
            if self.cache_bytes.is_some() {
                return Err(Failure::usage("--cache-bytes needs --cache-dir"));
            }
            return Ok(None);
        }
        let told = console.clone();
        let options = CacheOptions {
            dir: self.cache_dir.clone(),
            disk_bytes: self.cache_bytes,
            memory_bytes: self.cache_memory.unwrap_or(0),
            on_warning: Some(Arc::new(move |text: &str| told.warning(text))),
            ..CacheOptions::default()
        };
        Ok(Some(Arc::new(Cache::open(&options)?)))
    }
}
