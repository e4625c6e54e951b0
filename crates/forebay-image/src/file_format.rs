//! The table of image formats.

/// Calls a macro with all formats, in the order in which signatures are compared, each with its definition in `format`.
macro_rules! formats {
    ($callback:ident) => {
        $callback! {
            /// JPEG (ITU T.81): baseline, extended, progressive.
            Jpeg => jpeg::Jpeg(Encoding::Jpeg),
            /// PNG.
            Png => png::Png,
            /// WebP, lossy or lossless; animations are refused.
            WebP => webp::WebP,
            /// TIFF: the first image of a file, with 8 or 16 bits per channel.
            Tiff => tiff::Tiff,
            /// A baseline JPEG in an encoding for fast decoding, see [`FastEncoder`](crate::FastEncoder).
            /// Only records hold such images; other programs cannot read them.
            Fast => jpeg::Jpeg(Encoding::Fast),
        }
    };
}
pub(crate) use formats;

macro_rules! declare {
    ($($(#[$doc:meta])* $format:ident => $imp:expr,)*) => {
        /// Container format, detected from content and never from a file's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        impl Format {
            /// All formats, in the order in which signatures are compared.
            pub const ALL: &[Self] = &[$(Self::$format),*];
            /// The formats of image files, as messages list them: all formats but [`Fast`](Self::Fast).
            pub const FILES: &str = "JPEG, PNG, WebP and TIFF";
        }
    };
}

formats!(declare);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImageError;

    #[test]
    fn messages_list_all_formats_of_files() {
        let files = Format::ALL.iter().filter(|format| **format != Format::Fast);
        let names: Vec<&str> = files.map(|format| format.name()).collect();
        let listed = Format::FILES.replace(" and ", ", ").to_uppercase();
        assert_eq!(listed, names.join(", "));
        let start = String::new();
        let refused = ImageError::UnknownFormat { start }.to_string();
        assert!(refused.contains(&Format::FILES.replace(" and ", " or ")));
    }
}
