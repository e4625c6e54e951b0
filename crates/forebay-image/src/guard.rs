//! Converts panics of third-party decoders on damaged files to errors of the file, without printing them.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

static HOOK: Once = Once::new();

thread_local! {
    /// Whether this thread is running a decoder whose panics are caught.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a decoder and catches its panic without printing it. The caller must drop or overwrite
/// everything that a panic may leave half written.
///
/// # Errors
/// The payload of the panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    // All other panics still reach the hook that the program had installed.
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                print(panic);
            }
        }));
    });
    let before = IS_GUARDED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(before);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_of_decoders_are_returned() {
        let panic = catch_panic(|| panic!("at byte 7")).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"at byte 7"));
        assert_eq!(catch_panic(|| catch_panic(|| 1).unwrap() + 1).unwrap(), 2);
        assert!(!IS_GUARDED.get());
    }
}
