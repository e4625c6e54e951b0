//! `--cold`: how caches are emptied before each run.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_bench::cold::Cold;

#[derive(Debug, Clone, Copy, Args)]
pub(super) struct ColdArgs {
    /// How caches are emptied before each run: auto takes the strongest way that is permitted
    ///
    /// root drops the page cache of the machine, advise the cached pages of each file, direct reads past it
    #[arg(long, value_name = "WAY", default_value = "off", value_parser = ways())]
    pub(super) cold: Cold,
}

pub(super) fn ways() -> impl TypedValueParser<Value = Cold> {
    PossibleValuesParser::new(Cold::NAMES).try_map(|name| name.parse::<Cold>())
}
