use serde_json::json;

use super::*;

fn read(value: Value) -> Result<LoaderOptions, String> {
    LoaderOptions::deserialize(value).map_err(|e| e.to_string())
}

/// Python shows the help texts too, and does not have the syntax of TOML.
#[test]
fn help_texts_contain_no_toml_syntax() {
    for option in OPTIONS {
        let text = [&[option.doc][..], option.details].concat().concat();
        assert!(
            !text.contains("= ") && !text.contains(".toml"),
            "{}: {text}",
            option.name
        );
    }
}

fn every() -> Value {
    json!({
        "split": "train", "batch_size": 8, "rank": 1, "world_size": 4, "seed": u64::MAX, "shuffle": "blocks",
        "reshuffle": false, "block_records": 16, "window_blocks": 3, "virtual_ranks": 8,
        "transform": [{"kind": "RandomResizedCrop", "size": 96}, {"kind": "Normalize"}],
        "batch_transform": {"kind": "Mixup", "alpha": 0.2}, "layout": "nchw", "dtype": "float16",
        "normalize": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}, "resize_like": "opencv", "exif_orientation": true, "dct_scaling": false, "max_pixels": 7,
        "max_image_bytes": 8, "drop_last": false, "indices": [1, 5], "classes": ["a", 3], "limit": 9,
        "weights": {"a": 0.5}, "class_balanced": true, "num_samples": 20, "repeats": 2, "on_error": "skip",
        "label_base": 1, "columns": ["caption"], "keep_empty_boxes": true,
    })
}

#[test]
fn options_round_trip() {
    let options = read(every()).unwrap();
    let given = options.given();
    assert_eq!(Value::Object(given.clone()), every());
    assert_eq!(given.len(), OPTIONS.len());
    assert!(OPTIONS.iter().all(|option| given.contains_key(option.name)));
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(
        serde_json::from_str::<LoaderOptions>(&text).unwrap(),
        options
    );
    assert_eq!(read(json!({})).unwrap(), LoaderOptions::default());
    assert_eq!(
        read(json!({"seed": null})).unwrap(),
        LoaderOptions::default()
    );
}

#[test]
fn duplicate_options_are_refused() {
    let error = serde_json::from_str::<LoaderOptions>(r#"{"seed": 1, "seed": 2}"#).unwrap_err();
    assert!(error.to_string().contains("option seed is given twice"));
}

#[test]
fn unset_options_come_from_the_other_options() {
    let job = read(json!({"seed": 7, "batch_size": 16})).unwrap();
    let asked = read(json!({"seed": 0})).unwrap();
    let both = asked.or(&job);
    assert_eq!(both, read(json!({"seed": 0, "batch_size": 16})).unwrap());
    assert_eq!(
        LoaderOptions::default()
            .or(&read(every()).unwrap())
            .given()
            .len(),
        OPTIONS.len()
    );
}

#[test]
fn short_forms_equal_the_long_forms() {
    for (short, long) in [
        (json!({"shuffle": true}), json!({"shuffle": "blocks"})),
        (json!({"shuffle": false}), json!({"shuffle": "none"})),
        (
            json!({"transform": "keep_encoded"}),
            json!({"transform": {"kind": "keep_encoded"}}),
        ),
        (
            json!({"transform": ["A"]}),
            json!({"transform": [{"kind": "A"}]}),
        ),
    ] {
        assert_eq!(read(short).unwrap(), read(long).unwrap());
    }
}

#[test]
fn errors_name_the_option() {
    for (value, said) in [
        (
            json!({"batch_size": -1}),
            "option batch_size is -1: expected a whole number from 0",
        ),
        (
            json!({"limit": 0}),
            "option limit is 0: expected a whole number from 1",
        ),
        (
            json!({"normalize": {"mean": [0.0, 0.0, 0.0]}}),
            "expected a table of mean and std",
        ),
        (
            json!({"batch_size": "8"}),
            "option batch_size is \"8\": expected a whole number",
        ),
        (
            json!({"drop_last": 1}),
            "option drop_last is 1: expected true or false",
        ),
        (
            json!({"on_error": "ignore"}),
            "expected \"raise\", \"skip\" or \"zero\"",
        ),
        (
            json!({"resize_like": "pilow"}),
            "option resize_like is \"pilow\": expected \"pillow\"",
        ),
        (
            json!({"label_base": 2}),
            "option label_base is 2: expected 0, 1 or \"stored\"",
        ),
        (
            json!({"shuffle": 3}),
            "option shuffle is 3: expected true, false or the name",
        ),
        (
            json!({"transform": 3}),
            "option transform: expected a name or a table",
        ),
        (
            json!({"transform": [{"size": 3}]}),
            "number 1 of the list: missing field `kind`",
        ),
        (
            json!({"batchsize": 1}),
            "unknown field `batchsize`, expected one of `split`",
        ),
        (
            json!({"num_workers": 4}),
            "unknown field `num_workers`: native threads decode",
        ),
    ] {
        let error = read(value).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
