//! Validates the loader options of a job.

use forebay_loader::Options;
use forebay_options::LoaderOptions;

use super::config::Job;

/// Returns the options of the job's streams. Returns an error for invalid options.
pub(super) fn options(job: &Job) -> Result<LoaderOptions, String> {
    Options::from_schema(&job.options).map_err(|e| e.to_string())?;
    Ok(job.options.clone())
}

#[cfg(test)]
mod tests {
    use forebay_image::{Dtype, EvalTransform, Layout, Op, TrainTransform, Transform};
    use forebay_loader::LabelBase;

    use super::*;

    fn job(text: &str) -> Result<LoaderOptions, String> {
        let job: Job = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        super::options(&job)
    }

    fn options(text: &str) -> Options {
        Options::from_schema(&job(text).unwrap()).unwrap()
    }

    #[test]
    fn a_job_with_a_transform_has_the_loaders_defaults() {
        let expected = Options::new(32, Transform::Train(TrainTransform::new(224)));
        assert_eq!(options(r#"transform = "train""#), expected);
        let error = job("").unwrap_err();
        assert!(error.contains("option transform is not given"), "{error}");
    }

    #[test]
    fn loader_options_are_parsed() {
        let options = options(
            r#"
            split = "train"
            batch_size = 8
            world_size = 4
            seed = 7
            shuffle = "full"
            virtual_ranks = 8
            layout = "nchw"
            resize_like = "opencv"
            exif_orientation = true
            dct_scaling = true
            drop_last = false
            limit = 100
            on_error = "skip"
            label_base = "stored"
            transform = [
                { kind = "RandomResizedCrop", size = [160, 192] },
                { kind = "RandomHorizontalFlip" },
                { kind = "ColorJitter", brightness = 0.4, hue = 0.1, contrast = [0.5, 1.5] },
                { kind = "RandAugment", magnitude = 7, interpolation = "bilinear", fill = [124, 116, 104] },
                { kind = "Normalize" },
                { kind = "RandomErasing", value = "random" },
            ]
            batch_transform = [{ kind = "Mixup", alpha = 0.2 }, { kind = "CutMix", weight = 3.0 }]
            "#,
        );
        assert_eq!(options.output.dtype, Dtype::Float32);
        assert_eq!(options.output.layout, Layout::Nchw);
        assert_eq!(
            (options.batch_size, options.world_size, options.seed),
            (8, 4, 7)
        );
        assert!(!options.drop_last && options.decode.exif && options.decode.scaled);
        assert_eq!(options.sampling.limit, 100);
        assert_eq!(options.label_base, LabelBase::Stored);
        let Transform::List(list) = &options.transform else {
            panic!("{:?}", options.transform)
        };
        assert_eq!(list.output_size(), (160, 192));
        let Op::ColorJitter(jitter) = list.ops()[2] else {
            panic!("{list:?}")
        };
        assert_eq!(jitter.brightness, Some((0.6, 1.4)));
        assert_eq!(jitter.hue, Some((-0.1, 0.1)));
        assert_eq!(jitter.contrast, Some((0.5, 1.5)));
        assert!(options.batch_transform.is_some());
    }

    #[test]
    fn single_transforms_have_short_names() {
        let train = TrainTransform {
            flip: 0.0,
            ..TrainTransform::new(160)
        };
        for (text, expected) in [
            (
                r#"transform = { kind = "train", size = 160, flip = 0.0 }"#,
                Transform::Train(train),
            ),
            (
                r#"transform = { kind = "EvalTransform", crop = 200 }"#,
                Transform::Eval(EvalTransform::new(256, 200)),
            ),
            (
                "transform = \"keep_encoded\"\nshuffle = true",
                Transform::KeepEncoded,
            ),
        ] {
            assert_eq!(options(text).transform, expected);
        }
    }

    #[test]
    fn errors_name_the_valid_values() {
        for (text, part) in [
            (r#"shuffle = "sometimes""#, "none, blocks, full"),
            (
                "shuffle = false\nblock_records = 3",
                "shuffle \"none\" has no blocks",
            ),
            (r#"dtype = "float64""#, "bfloat16"),
            (r#"on_error = "ignore""#, "\"raise\", \"skip\" or \"zero\""),
            (
                "label_base = 2",
                "option label_base is 2: expected 0, 1 or \"stored\"",
            ),
            (r#"transform = { kind = "train", sise = 3 }"#, "sise"),
            (r#"transform = { kind = "flip" }"#, "flip"),
            (r#"transform = { kind = "Resize", size = 3 }"#, "in a list"),
            (r#"transform = ["keep_encoded"]"#, "number 1 of the list"),
            (
                r#"transform = [{ kind = "RandomResizedCrop" }, { kind = "Normalize" }, { kind = "Grayscale" }]"#,
                "after Normalize",
            ),
            (
                r#"batch_transform = { kind = "Mixup", alpha = -1.0 }"#,
                "alpha",
            ),
        ] {
            let train = if text.starts_with("transform") {
                ""
            } else {
                "transform = \"train\"\n"
            };
            let error = job(&format!("{train}{text}")).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
