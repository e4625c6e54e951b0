//! Page-cache hints for ranges of files (`posix_fadvise`). They have an effect on Linux only.

use std::num::NonZeroU64;
use std::os::fd::AsFd;

/// Starts to read a range of a file into the page cache; `None` as the length extends it to the end of the file.
pub fn will_need(file: impl AsFd, start: u64, len: Option<NonZeroU64>) {
    advise(file, start, len, Hint::WillNeed);
}

/// Starts to write the dirty pages of a range of a file, and lets the page cache drop clean ones.
pub fn wont_need(file: impl AsFd, start: u64, len: Option<NonZeroU64>) {
    advise(file, start, len, Hint::WontNeed);
}

#[derive(Clone, Copy)]
enum Hint {
    WillNeed,
    WontNeed,
}

#[cfg(target_os = "linux")]
fn advise(file: impl AsFd, start: u64, len: Option<NonZeroU64>, hint: Hint) {
    use rustix::fs::Advice;

    let advice = match hint {
        Hint::WillNeed => Advice::WillNeed,
        Hint::WontNeed => Advice::DontNeed,
    };
    // Without the hint the I/O is only slower.
    let _ = rustix::fs::fadvise(file, start, len, advice);
}

#[cfg(not(target_os = "linux"))]
fn advise(_: impl AsFd, _: u64, _: Option<NonZeroU64>, _: Hint) {}
