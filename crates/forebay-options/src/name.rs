//! How texts name the options of commands: `--drop-feature` on the command line, `drop_feature` in programs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

static AS_FLAGS: AtomicBool = AtomicBool::new(false);

/// An option of a command in a text for users, which its `Display` spells as they write it.
///
/// ```
/// use forebay_options::{OptionName, name_options_as_flags};
///
/// const ON_BAD: OptionName = OptionName("on_bad");
/// assert_eq!(format!("{ON_BAD} skip leaves it out"), "on_bad skip leaves it out");
/// name_options_as_flags();
/// assert_eq!(format!("{ON_BAD} skip leaves it out"), "--on-bad skip leaves it out");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionName(pub &'static str);

impl fmt::Display for OptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if AS_FLAGS.load(Ordering::Relaxed) {
            write!(f, "--{}", self.0.replace('_', "-"))
        } else {
            f.write_str(self.0)
        }
    }
}

/// From now on, texts of this process name options as flags. For programs with a command line.
pub fn name_options_as_flags() {
    AS_FLAGS.store(true, Ordering::Relaxed);
}
