//! Panics of other libraries' decoders on damaged files: they become errors of the file, and the terminal shows nothing else.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

static HOOK: Once = Once::new();

thread_local! {
    /// Whether this thread runs a decoder whose panics are caught.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a decoder. Returns what it panicked with, of which nothing is printed. The caller drops or overwrites what a panic may
/// leave half done.
///
/// # Errors
/// The value of the panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    // The hook of the program prints all other panics as before.
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
    fn a_panic_of_a_decoder_is_a_value() {
        let panic = catch_panic(|| panic!("at byte 7")).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"at byte 7"));
        assert_eq!(catch_panic(|| catch_panic(|| 1).unwrap() + 1).unwrap(), 2);
        assert!(!IS_GUARDED.get());
    }
}
