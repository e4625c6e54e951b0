//! The table of bottlenecks: their names and headings for every interface.

macro_rules! bounds {
    ($($(#[$docs:meta])* $bound:ident = $name:literal, $heading:literal;)*) => {
        /// The bottleneck.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Bound {
            $($(#[$docs])* $bound,)*
        }

        impl Bound {
            /// All bottlenecks.
            pub const ALL: &'static [Bound] = &[$(Bound::$bound),*];

            /// Returns its name, as in `/api/status` and at the start of the sentence.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Bound::$bound => $name,)*
                }
            }

            /// Returns a heading for display.
            #[must_use]
            pub fn heading(self) -> &'static str {
                match self {
                    $(Bound::$bound => $heading,)*
                }
            }
        }
    };
}

bounds! {
    /// Nothing was measured yet.
    Unknown = "unknown", "Measuring";
    /// The consumer of the batches, which is the best case.
    Trainer = "trainer", "The trainers set the pace";
    /// Handing finished batches to the consumer.
    Handover = "handover", "Handing over batches is the limit";
    /// Copying finished batches to the device of the consumer.
    Device = "device", "Copying to the device is the limit";
    /// Decoding and transforming.
    Decode = "decode", "Decoding is the limit";
    /// Decoding, because other processes use the cores.
    Neighbor = "neighbor", "Others use the processors";
    /// Reading.
    Storage = "storage", "Storage is the limit";
    /// The network between a server and its client.
    Network = "network", "The network is the limit";
    /// One rank of a job is slower than the others.
    Straggler = "straggler", "One rank is slower than the others";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_documentation_lists_each_bottleneck() {
        let docs = include_str!("../../../../docs/loader.md");
        let names: BTreeSet<&str> = Bound::ALL.iter().map(|bound| bound.name()).collect();
        assert_eq!(names.len(), Bound::ALL.len());
        for name in names.into_iter().filter(|&name| name != "unknown") {
            assert!(docs.contains(&format!("- `{name}-bound`")), "{name}");
        }
    }
}
