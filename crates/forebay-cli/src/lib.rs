//! The command line of Forebay: arguments, printing, progress.
//!
//! Has the user interface for people and scripts: options, exit codes, error lines and their hints, progress bars, tables and
//! `--json` events. The library crates process the data.
//!
//! | module | contents |
//! | --- | --- |
//! | `args` | options of every command, and the environment variables of options |
//! | `command` | the table of commands, one file each |
//! | `console` | results on stdout, everything else on stderr, `--json` events |
//! | `input`, `contents` | recognize and open locations on the command line |
//! | `frontend` | the parts of these modules that other programs use |
//! | `failure`, `library_errors` | one error line with its hint, exit codes |
//! | `interrupt` | Ctrl-C: once for a clean stop, twice for an immediate one |
//! | `progress` | progress bars |
//! | `cache_args` | options of the cache for data from stores |
//! | `staging_args` | options of the area where shards wait for their upload |
//! | `store_args` | options for connecting to a store, for commands that take a location |
//! | `seek_points` | the directory of learned seek points |
//! | `quantity` | parses and formats sizes and durations |
//! | `tfrecord_names` | recognizes names of TFRecord shards, and their splits |
//! | `histogram`, `table`, `paint` | format results |

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
mod seek_points;
mod staging_args;
mod store_args;
mod table;
mod tfrecord_names;

pub use cached_index::{CachedIndex, cached_index};
pub use input::why_no_dataset;
pub use quantity::parse_size;
pub use run::{command, main_from, run_with_events};
pub use seek_points::share_seek_points;
