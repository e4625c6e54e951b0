//! Arguments, output and errors of the commands, for other programs with the same user interface.

pub use crate::args::{GlobalArgs, with_environment};
pub use crate::command::bench::cold_args::{ColdArgs, ways};
pub use crate::command::bench::epoch_args::EpochArgs;
pub use crate::command::bench::trainer::TrainerArgs;
pub use crate::command::bench::{figure, print_report};
pub use crate::console::Console;
pub use crate::failure::{Failure, Outcome};
pub use crate::input::show;
pub use crate::interrupt::Interrupt;
pub use crate::paint::{Paint, printable};
pub use crate::progress::Bar;
pub use crate::run::conclude;
pub use crate::store_args::StoreArgs;
pub use crate::table::{Align, Table};
pub use forebay_options::name_options_as_flags;

/// Parses and formats sizes and durations.
pub mod quantity {
    pub use crate::quantity::{bytes, counted, duration, parse_duration, parse_size};
}
