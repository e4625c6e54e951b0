//! Scratch directory for the files that parsers read. It is in memory if the operating system has a file system in memory.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    let dir = parent.join(format!("forebay-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
});

pub fn dir() -> &'static Path {
    &DIR
}
