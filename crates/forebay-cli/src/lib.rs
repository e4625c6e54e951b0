//! The command line of Forebay: arguments, printing, progress.
//!
//! Owns what a person at a terminal (or a script) meets: options, exit codes, error lines and
//! their hints, progress bars, tables and `--json` events. Everything that is done to data is
//! left to the library crates.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `args` | options that every command has, and the environment names of all options |
//! | `command` | the visible table of commands, one file each |
//! | `console` | results on stdout, all else on stderr, `--json` events |
//! | `input`, `contents` | what a path on the command line is, opened |
//! | `frontend` | what of these modules other programs use |
//! | `failure`, `library_errors` | one error line with its hint, exit codes |
//! | `interrupt` | Ctrl-C: once for a clean stop, twice for an immediate one |
//! | `progress` | the bar |
//! | `cache_args` | where it is kept what is read from a store |
//! | `staging_args` | where shards wait for their upload |
//! | `store_args` | how a store is reached, for commands that take a location |
//! | `quantity` | sizes and durations, read and written |
//! | `tfrecord_names` | which files are TFRecord shards, and of which split |
//! | `histogram`, `table`, `paint` | how results look |

mod account;
mod args;
mod bad_args;
mod cache_args;
mod cached_index;
mod command;
mod console;
mod contents;
mod failure;
pub mod frontend;
mod histogram;
mod input;
mod interrupt;
mod json_log;
mod library_errors;
mod paint;
mod progress;
mod quantity;
mod run;
mod staging_args;
mod store_args;
mod table;
mod tfrecord_names;

pub use cached_index::{CachedIndex, cached_index};
pub use input::why_no_dataset;
pub use quantity::parse_size;
pub use run::{command, main_from};
