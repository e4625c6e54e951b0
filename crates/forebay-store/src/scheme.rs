//! The table of stores that are reached over the network: which URLs name them. `store/cloud/` has a file for each.

/// Calls a macro with all kinds of stores: the name of its module, and its [`Scheme`].
macro_rules! stores {
    ($callback:ident) => {
        $callback! {
            s3 => Scheme { names: &["s3", "s3a"], is_bucket: true, account_names: &[], store: Kind::s3 },
            google => Scheme { names: &["gs", "gcs"], is_bucket: true, account_names: &[], store: Kind::google },
            azure => Scheme {
                names: &["az", "abfs", "abfss"], is_bucket: true, account_names: &["abfs", "abfss"], store: Kind::azure
            },
            web => Scheme { names: &["http", "https"], is_bucket: false, account_names: &[], store: Kind::web },
        }
    };
}
pub(crate) use stores;

macro_rules! declare {
    ($($module:ident => $scheme:expr,)*) => {
        /// A kind of store, by the name of its module.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(non_camel_case_types)] // These are names of modules.
        pub(crate) enum Kind {
            $($module,)*
        }

        static SCHEMES: &[Scheme] = &[$($scheme),*];
    };
}

stores!(declare);

/// How the URLs of a kind of store look.
pub(crate) struct Scheme {
    pub(crate) names: &'static [&'static str],
    /// Whether the authority is a bucket or container, so that `?` and `#` cannot follow the path.
    pub(crate) is_bucket: bool,
    /// Those of the names that may have `container@account` as authority.
    pub(crate) account_names: &'static [&'static str],
    pub(crate) store: Kind,
}

/// Returns the kind of store that a URL's scheme names.
pub(crate) fn find(scheme: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|kind| kind.names.contains(&scheme))
}
