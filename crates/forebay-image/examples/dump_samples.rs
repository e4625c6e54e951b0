//! Writes raw samples of a directory's images for `tools/golden/measure_parity.py` and
//! `tools/golden/make_golden_pixels.py --compare`: `cargo run --release --example dump_samples -- IMAGES
//! DESTINATION [PROFILE] [--dct-scaling]`.

use forebay_image::{
    DecodeOptions, Decoder, EvalTransform, Layout, Limits, SampleSeed, TrainTransform, Transform,
    sniff,
};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = DecodeOptions::new(Limits::default());
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|a| a == "--dct-scaling") {
        arguments.remove(at);
        options.scaled = true;
    }
    let (images, to) = match &arguments[..] {
        [images, to] => (PathBuf::from(images), PathBuf::from(to)),
        [images, to, resize_like] => {
            options.resize_like = resize_like.parse()?;
            (PathBuf::from(images), PathBuf::from(to))
        }
        _ => return Err("usage: dump_samples IMAGES DESTINATION [PROFILE] [--dct-scaling]".into()),
    };
    std::fs::create_dir_all(&to)?;
    let mut files = Vec::new();
    list(&images, &mut files)?;
    files.sort();
    let transforms = [
        ("train", Transform::Train(TrainTransform::new(224))),
        ("eval", Transform::Eval(EvalTransform::new(256, 224))),
    ];
    let mut decoder = Decoder::with_options(options);
    let mut index = String::new();
    let mut sample = 0;
    for path in files {
        let bytes = std::fs::read(&path)?;
        if sniff(&bytes).is_none() {
            continue;
        }
        let seed = SampleSeed {
            seed: 1,
            epoch: 2,
            sample,
            occurrence: 0,
        };
        for (kind, transform) in &transforms {
            let mut out = vec![0; transform.output_values()];
            transform.apply(&mut decoder, &bytes, seed, &Layout::Nhwc.into(), &mut out)?;
            let name = format!("{sample}-{kind}.raw");
            std::fs::write(to.join(&name), &out)?;
            writeln!(index, "{sample} {kind} {name} {}", path.display())?;
        }
        let name = format!("{sample}-full.raw");
        std::fs::write(to.join(&name), decoder.decode(&bytes)?.data)?;
        writeln!(index, "{sample} full {name} {}", path.display())?;
        sample += 1;
    }
    std::fs::write(to.join("index.txt"), index)?;
    Ok(())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?
        } else {
            files.push(path)
        }
    }
    Ok(())
}
