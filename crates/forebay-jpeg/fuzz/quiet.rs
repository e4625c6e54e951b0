//! Ignores panics that are caught: the JPEG library may panic on damaged files, which Forebay
//! converts to errors. libFuzzer's crate aborts at any panic; with this hook, only a panic that
//! leaves the target aborts.

use std::sync::Once;

static ONCE: Once = Once::new();

/// Removes the hook that aborts the process, and does not print the library's panics.
pub fn init() {
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map_or("", |place| place.file());
            if !place.contains("libjpeg-turbo-rs") {
                eprintln!("{panic}");
            }
        }));
    });
}
