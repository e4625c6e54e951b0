//! Options of the staging area, for commands that write datasets.

use std::path::PathBuf;

use clap::Args;
use forebay_pack::{UploadOptions, Uploaded};
use forebay_staging::STAGING_VARIABLE;

use crate::quantity::{self, parse_size};

/// The staging area.
#[derive(Debug, Args)]
pub(crate) struct StagingArgs {
    /// Directory for shards until their upload [default: in ~/.cache]
    #[arg(long, value_name = "DIR", help_heading = "Upload")]
    staging: Option<PathBuf>,

    /// Bytes that it may hold [default: half of what is free there]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Upload")]
    staging_bytes: Option<u64>,
}

impl StagingArgs {
    /// Sets the staging options of a pack. If the destination is a directory, shards go through a staging area only if the
    /// option is given on the command line, not by the environment variable.
    pub(crate) fn apply(&self, options: &mut UploadOptions, is_remote: bool) {
        let is_given = self.staging.is_some()
            && std::env::var_os(STAGING_VARIABLE)
                != self.staging.clone().map(PathBuf::into_os_string);
        if is_remote || is_given {
            options.staging_dir.clone_from(&self.staging);
        }
        options.staging_bytes = self.staging_bytes;
    }
}

/// Describes the uploads for people.
pub(crate) fn in_words(uploaded: &Uploaded) -> String {
    format!(
        "{}, {}",
        quantity::counted(uploaded.files, "file", "files"),
        quantity::bytes(uploaded.bytes),
    )
}
