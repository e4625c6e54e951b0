//! `--cold`: the method that evicts the data from caches before each run.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_bench::cold::Cold;

/// The option `--cold`.
#[derive(Debug, Clone, Copy, Args)]
pub struct ColdArgs {
    /// How caches are emptied before each run: auto takes the strongest way that is permitted
    ///
    /// root drops the page cache of the machine, advise the cached pages of each file, direct reads past it
    #[arg(long, value_name = "WAY", default_value = "off", value_parser = ways())]
    pub cold: Cold,
}

/// Returns a parser for the names of the eviction methods.
pub fn ways() -> impl TypedValueParser<Value = Cold> {
    PossibleValuesParser::new(Cold::NAMES).try_map(|name| name.parse::<Cold>())
}
