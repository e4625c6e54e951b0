//! Jobs: streams whose options are the server's. What a client leaves out is filled in, what it gives must agree.
//!
//! Owns the comparison of two [`StreamSpec`]s, for both sides. A field that is zero, empty or missing counts as
//! left out, unless its name is among those that the client says it gave.

use std::fmt::Debug;

use forebay_proto::wire::{LabelBase, Layout, OnError, StreamSpec};

/// An option that a client gives and a job has otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// Name of the option.
    pub option: &'static str,
    /// What the job has.
    pub job: String,
    /// What the client gave.
    pub asked: String,
}

/// Longest value that is repeated in a message: some options are lists of numbers of records.
const MAX_SHOWN: usize = 300;

fn shown(value: &impl Debug) -> String {
    let mut text: String = format!("{value:?}").chars().take(MAX_SHOWN).collect();
    if text.len() >= MAX_SHOWN {
        text.push('…');
    }
    text
}

/// The value of an option that is a choice, in the words of the loader.
fn word(option: &str, spec: &StreamSpec) -> Option<&'static str> {
    let word = match option {
        "layout" => match spec.layout() {
            Layout::Unspecified | Layout::Nhwc => "nhwc",
            Layout::Nchw => "nchw",
        },
        "on_error" => match spec.on_error() {
            OnError::Unspecified | OnError::Raise => "raise",
            OnError::Skip => "skip",
            OnError::Zero => "zero",
        },
        "label_base" => match spec.label_base() {
            LabelBase::Unspecified | LabelBase::Zero => "0",
            LabelBase::One => "1",
            LabelBase::Stored => "stored",
        },
        _ => return None,
    };
    Some(word)
}

macro_rules! fields {
    ($with:ident) => {
        $with!(split, |v: &String| v.is_empty());
        $with!(batch_size, |v: &u64| *v == 0);
        $with!(world_size, |v: &u64| *v == 0);
        $with!(lanes, |v: &u64| *v == 0);
        $with!(seed, |v: &u64| *v == 0);
        $with!(shuffle, Option::is_none);
        $with!(transform, Option::is_none);
        $with!(layout, |v: &i32| *v == 0);
        $with!(keep_last, |v: &bool| !*v);
        $with!(output, Option::is_none);
        $with!(decode, Option::is_none);
        $with!(sampling, Option::is_none);
        $with!(on_error, |v: &i32| *v == 0);
        $with!(batch_transform, Option::is_none);
        $with!(label_base, |v: &i32| *v == 0);
    };
}

/// The names that `given` may hold: those of the fields of [`StreamSpec`].
pub const NAMES: [&str; 15] = [
    "split",
    "batch_size",
    "world_size",
    "lanes",
    "seed",
    "shuffle",
    "transform",
    "layout",
    "keep_last",
    "output",
    "decode",
    "sampling",
    "on_error",
    "batch_transform",
    "label_base",
];

/// Takes what `asked` leaves out from the job; the rank stays the client's, and so does a world size that the job leaves
/// open.
pub fn fill(asked: &mut StreamSpec, job: &StreamSpec, given: &[String]) {
    macro_rules! fill_field {
        ($field:ident, $is_unset:expr) => {{
            let is_unset = $is_unset;
            if is_unset(&asked.$field) && !given.iter().any(|name| name == stringify!($field)) {
                asked.$field = job.$field.clone();
            }
        }};
    }
    fields!(fill_field);
    if let (Some(asked), Some(job)) = (&mut asked.shuffle, &job.shuffle)
        && asked.name == job.name
    {
        for (asked, job) in [
            (&mut asked.block_records, job.block_records),
            (&mut asked.window_blocks, job.window_blocks),
        ] {
            if *asked == 0 {
                *asked = job;
            }
        }
    }
    if asked.world_size == 0 {
        asked.world_size = 1;
    }
}

/// The first option of a filled-in spec that the job has otherwise.
#[must_use]
pub fn contradiction(asked: &StreamSpec, job: &StreamSpec) -> Option<Contradiction> {
    macro_rules! compare_field {
        ($field:ident, $is_unset:expr) => {{
            let open = stringify!($field) == "world_size" && job.world_size == 0;
            if asked.$field != job.$field && !open {
                let option = stringify!($field);
                return Some(Contradiction {
                    option,
                    job: word(option, job).map_or_else(|| shown(&job.$field), str::to_owned),
                    asked: word(option, asked).map_or_else(|| shown(&asked.$field), str::to_owned),
                });
            }
        }};
    }
    fields!(compare_field);
    None
}

#[cfg(test)]
mod tests {
    use forebay_proto::wire::Shuffle;

    use super::*;

    fn job() -> StreamSpec {
        StreamSpec {
            split: "train".to_owned(),
            batch_size: 256,
            world_size: 8,
            lanes: 64,
            seed: 7,
            layout: 2,
            keep_last: true,
            shuffle: Some(Shuffle {
                name: "blocks".to_owned(),
                block_records: 32,
                window_blocks: 2,
            }),
            ..StreamSpec::default()
        }
    }

    #[test]
    fn names_are_those_of_the_fields() {
        let mut names = Vec::new();
        macro_rules! name_field {
            ($field:ident, $is_unset:expr) => {
                names.push(stringify!($field))
            };
        }
        fields!(name_field);
        assert_eq!(names, NAMES);
    }

    #[test]
    fn what_is_left_out_is_the_jobs() {
        let mut asked = StreamSpec {
            rank: 3,
            ..StreamSpec::default()
        };
        fill(&mut asked, &job(), &[]);
        assert_eq!(asked, StreamSpec { rank: 3, ..job() });
        assert_eq!(contradiction(&asked, &job()), None);
        let any_size = StreamSpec {
            world_size: 0,
            ..job()
        };
        let mut asked = StreamSpec::default();
        fill(&mut asked, &any_size, &[]);
        assert_eq!(asked.world_size, 1);
        asked.world_size = 4;
        assert_eq!(contradiction(&asked, &any_size), None);
    }

    #[test]
    fn what_is_given_must_agree() {
        for (given, change) in [
            (
                "batch_size",
                StreamSpec {
                    batch_size: 32,
                    ..StreamSpec::default()
                },
            ),
            ("seed", StreamSpec::default()),
            ("keep_last", StreamSpec::default()),
            (
                "world_size",
                StreamSpec {
                    world_size: 4,
                    ..StreamSpec::default()
                },
            ),
        ] {
            let mut asked = change;
            fill(&mut asked, &job(), &[given.to_owned()]);
            let found = contradiction(&asked, &job()).unwrap();
            assert_eq!(found.option, given);
            assert_ne!(found.job, found.asked);
        }
        let mut asked = StreamSpec {
            label_base: LabelBase::Stored.into(),
            ..StreamSpec::default()
        };
        fill(&mut asked, &job(), &["label_base".to_owned()]);
        let found = contradiction(&asked, &job()).unwrap();
        assert_eq!((found.job.as_str(), found.asked.as_str()), ("0", "stored"));
        // An order of blocks whose sizes are left out is the same order.
        let mut asked = StreamSpec {
            shuffle: Some(Shuffle {
                name: "blocks".to_owned(),
                ..Shuffle::default()
            }),
            ..StreamSpec::default()
        };
        fill(&mut asked, &job(), &["shuffle".to_owned()]);
        assert_eq!(contradiction(&asked, &job()), None);
    }
}
