//! The table of remote stores and the URL schemes that name them. Each has a module in `store/cloud/`.

/// Calls a macro with the module name and the [`Scheme`] of every kind of store.
macro_rules! stores {
    ($callback:ident) => {
        $callback! {
            s3 => Scheme { names: &["s3", "s3a"], is_bucket: true, account_names: &[], store: Kind::s3 },
            google => Scheme { names: &["gs", "gcs"], is_bucket: true, account_names: &[], store: Kind::google },
            azure => Scheme {
                names: &["az", "abfs", "abfss"], is_bucket: true, account_names: &["abfs", "abfss"], store: Kind::azure
            },
            hub => Scheme { names: &["hf"], is_bucket: true, account_names: &[], store: Kind::hub },
            webhdfs => Scheme { names: &["webhdfs", "swebhdfs"], is_bucket: true, account_names: &[], store: Kind::webhdfs },
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

/// The form of the URLs of one kind of store.
pub(crate) struct Scheme {
    pub(crate) names: &'static [&'static str],
    /// Whether the authority is a bucket or container, so that a query or fragment (`?`, `#`) is refused.
    pub(crate) is_bucket: bool,
    /// The schemes among `names` whose authority may be `container@account`.
    pub(crate) account_names: &'static [&'static str],
    pub(crate) store: Kind,
}

/// Returns the kind of store that a URL's scheme names.
pub(crate) fn find(scheme: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|kind| kind.names.contains(&scheme))
}
