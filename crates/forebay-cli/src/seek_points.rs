//! The directory in which processes share the seek points that their loaders learn.

use std::path::PathBuf;

const VARIABLE: &str = "FOREBAY_SEEK_POINTS";

/// Shares the seek points that loaders of this process learn, unless the environment says `none`.
pub fn share_seek_points() {
    let directory = match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(none) if none == "none" => None,
        Some(directory) => Some(PathBuf::from(directory)),
        None => forebay_staging::user_cache().map(|cache| cache.join("forebay/seek-points")),
    };
    if let Some(directory) = directory {
        forebay_loader::share_learned_seek_points(directory);
    }
}
