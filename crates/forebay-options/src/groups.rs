//! The options in groups, in the order in which documentation has them.

/// Groups of options: a title, and the names of its options. Each of [`OPTIONS`](crate::OPTIONS) and
/// [`PROCESS_OPTIONS`](crate::PROCESS_OPTIONS) is in one group.
pub const GROUPS: &[(&str, &str)] = &[
    (
        "Samples",
        "split batch_size drop_last pad_last indices classes limit weights class_balanced num_samples repeats label_base \
         columns on_error",
    ),
    (
        "Order",
        "shuffle seed reshuffle block_records window_blocks",
    ),
    (
        "Pixels",
        "transform batch_transform layout dtype normalize resize_like exif_orientation dct_scaling keep_empty_boxes \
         max_pixels max_image_bytes",
    ),
    ("Ranks", "rank world_size virtual_ranks"),
    (
        "Machine and storage",
        "threads memory learn_seek_points page_cache storage_options",
    ),
    (
        "Server",
        "timeout transport connections token token_file tls_ca tls_cert tls_key",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OPTIONS, PROCESS_OPTIONS};

    #[test]
    fn each_option_is_in_one_group() {
        let grouped = GROUPS.iter().flat_map(|(_, names)| names.split(' '));
        let mut grouped: Vec<&str> = grouped.collect();
        let options = OPTIONS.iter().chain(PROCESS_OPTIONS);
        let mut names: Vec<&str> = options.map(|option| option.name).collect();
        grouped.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped, names);
    }
}
