//! Values that are created on first use.

use std::cell::RefCell;

use crate::Result;

/// A value that is created on first use.
#[derive(Debug)]
pub(super) struct Once<T>(RefCell<Option<T>>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(RefCell::new(None))
    }
}

impl<T: Clone> Once<T> {
    pub(super) fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(made) = &*self.0.borrow() {
            return Ok(made.clone());
        }
        let made = make()?;
        *self.0.borrow_mut() = Some(made.clone());
        Ok(made)
    }
}
