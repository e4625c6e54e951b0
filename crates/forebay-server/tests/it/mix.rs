//! Served mixes: the batches of a loader in this process, for every epoch and transport.

use forebay_client::{Client, StreamOptions, Transport};
use forebay_image::{EvalTransform, Transform};
use forebay_loader::{Loader, Mix, MixLabels, Options};
use forebay_pack::DatasetFormat;
use forebay_server::{JobOptions, Server};

use crate::dataset::{packed, same};
use crate::support::{Log, given, options, over, url};

#[test]
fn a_served_mix_has_the_batches_of_a_loader() {
    let (_first, first) = packed(DatasetFormat::INDEXED);
    let (_second, second) = packed(DatasetFormat::TfRecord);
    let datasets = [first, second];
    let weights = [vec![1.0, 0.0], vec![1.0, 2.0]];
    let mixes = Mix::of_datasets(&datasets, &weights, &MixLabels::Offset).unwrap();
    let mix = mixes.iter().find(|mix| mix.split() == "train").unwrap();
    let mut server = Server::bind(options(&Log::default())).unwrap();
    server.add_mix("set", &datasets, mixes.clone()).unwrap();
    let job = given(
        r#"{"split": "train", "batch_size": 3, "transform": "keep_encoded", "shuffle": true}"#,
    );
    let job = JobOptions {
        dataset: "set".to_owned(),
        options: job,
    };
    server.add_job("job", job).unwrap();
    assert_eq!(server.job("job").unwrap().dataset_starts, mix.starts());
    let server = server.spawn().unwrap();
    let mut own = Options::new(4, Transform::Eval(EvalTransform::new(20, 16)));
    own.drop_last = false;
    for transport in [Transport::Tcp, Transport::Shm] {
        let client = Client::connect(&url(server.addr()), over(transport)).unwrap();
        assert_eq!(client.fingerprint(), mix.fingerprint());
        assert_eq!(client.splits().len(), mixes.len());
        let mut loader = Loader::mixed(mix, own.clone()).unwrap();
        let asked = || StreamOptions::from(own.to_schema().with_split("train"));
        let mut stream = client.open(asked()).unwrap();
        assert_eq!(stream.info().dataset_starts, mix.starts());
        assert_eq!(stream.info().classes[..], loader.classes()[..]);
        for epoch in 0..3 {
            let mut seconds = 0;
            loop {
                let batch = loader.next_batch().unwrap();
                if let Some(batch) = &batch {
                    let of_second = |sample: &&u64| **sample >= mix.starts()[1];
                    seconds += batch.samples.iter().filter(of_second).count();
                }
                if !same(batch, stream.next_batch().unwrap()) {
                    break;
                }
            }
            assert_eq!(seconds > 0, epoch > 0);
        }
        // A position in the middle of an epoch, and a stream that begins there.
        loader.seek(1, 4).unwrap();
        stream.seek(1, 4).unwrap();
        while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
        loader.seek(1, 4).unwrap();
        let mut begun = asked();
        (begun.epoch, begun.position) = (1, 4);
        let mut begun = client.open(begun).unwrap();
        while same(loader.next_batch().unwrap(), begun.next_batch().unwrap()) {}
    }
}

#[test]
fn mixes_that_cannot_be_are_refused() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let two = [dataset.clone(), dataset];
    for (datasets, weights, labels, said) in [
        (
            &two[..0],
            vec![],
            MixLabels::Stored,
            "datasets is without a common split",
        ),
        (
            &two,
            vec![vec![1.0]],
            MixLabels::Stored,
            "weights is 1 numbers: expected 2",
        ),
        (
            &two,
            vec![vec![1.0; 2], vec![0.0; 2]],
            MixLabels::Stored,
            "weights is a sum of 0",
        ),
        (
            &two,
            vec![],
            MixLabels::Add(vec![1]),
            "labels is 1 numbers: expected 2",
        ),
    ] {
        let error = Mix::of_datasets(datasets, &weights, &labels).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
