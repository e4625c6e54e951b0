//! Option names of other loaders: errors name the replacement in this loader.

/// Option names of other loaders in groups, with one sentence per group.
const FOREIGN: &[(&[&str], &str)] = &[
    (
        &[
            "num_workers",
            "workers",
            "num_parallel_calls",
            "num_threads",
        ],
        "native threads decode, as many as there are cores; threads sets another number",
    ),
    (
        &[
            "persistent_workers",
            "worker_init_fn",
            "multiprocessing_context",
        ],
        "there are no worker processes; leave it out",
    ),
    (
        &["prefetch_factor", "prefetch", "buffer_batches"],
        "the loader reads ahead by itself, within memory; prefetch is an option of forebay.torch.Loader, \
         forebay.jax.Loader and forebay.tf.Loader",
    ),
    (
        &["sampler", "batch_sampler", "subset"],
        "the loader draws samples itself; select them with indices, classes, weights or class_balanced",
    ),
    (
        &["collate_fn"],
        "native threads make batches; to change them, give map_batch to forebay.torch.Loader or forebay.Mapped",
    ),
    (
        &[
            "map_batch",
            "map_sample",
            "map_threads",
            "map_workers",
            "map_timeout",
            "returns",
        ],
        "it is an option of forebay.Mapped, and of forebay.torch.Loader, forebay.jax.Loader and forebay.tf.Loader",
    ),
    (
        &["pin_memory", "channels_last", "float_dtype"],
        "it is an option of forebay.torch.Loader",
    ),
    (
        &["pin_memory_device"],
        "give device to forebay.torch.Loader, which copies batches there through pinned memory",
    ),
    (
        &["device", "sharding"],
        "it is an option of the loaders of libraries: forebay.torch.Loader, forebay.jax.Loader",
    ),
    (
        &[
            "shuffle_buffer",
            "shuffle_buffer_size",
            "shuffle_size",
            "buffer_size",
        ],
        "shuffling has no buffer; block_records and window_blocks set how far samples are mixed",
    ),
    (&["generator", "shuffle_seed"], "use seed"),
    (&["num_replicas", "num_shards"], "use world_size, with rank"),
    (&["shard_id"], "use rank, with world_size"),
    (
        &["size", "image_size", "input_size", "img_size"],
        "the transform has the size: TrainTransform(224), EvalTransform(224)",
    ),
    (
        &["transforms", "augment", "augmentation"],
        "use transform: TrainTransform, EvalTransform, KeepEncoded or a list",
    ),
];

/// Returns a sentence about an option that other loaders have and this loader does not.
///
/// ```
/// use forebay_options::foreign;
///
/// assert!(foreign("num_workers").is_some_and(|answer| answer.contains("threads")));
/// assert_eq!(foreign("batch_size"), None);
/// ```
#[must_use]
pub fn foreign(name: &str) -> Option<&'static str> {
    let entry = FOREIGN.iter().find(|(names, _)| names.contains(&name))?;
    Some(entry.1)
}

/// Returns the most similar of `names`, if `name` may be a typo of it.
///
/// ```
/// use forebay_options::misspelled;
///
/// assert_eq!(misspelled("batchSize", ["batch_size", "seed"]), Some("batch_size"));
/// assert_eq!(misspelled("colour", ["batch_size", "seed"]), None);
/// ```
#[must_use]
pub fn misspelled<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let distance = |known: &str| strsim::levenshtein(&name, known);
    let near = names.into_iter().min_by_key(|known| distance(known))?;
    // A typo leaves at least two thirds of the word.
    (3 * distance(near) <= name.len().max(near.len())).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_not_options() {
        let names: Vec<&str> = FOREIGN
            .iter()
            .flat_map(|(names, _)| names.iter().copied())
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!crate::is_option(name), "{name}");
            assert!(!names[..i].contains(name), "{name} is there twice");
        }
    }
}
