//! A dataset that is read through a server yields the same bytes as the loader in process.

use crate::support;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use forebay_client::{Client, ClientOptions, Error, RemoteKind, StreamOptions, Transport};
use forebay_image::{
    BatchTransform, Dtype, EvalTransform, Layout, Mixing, Normalize, ResizeLike, TrainTransform,
    Transform,
};
use forebay_loader::{LabelBase, Loader, OnError, Options, Shuffle, Weights};
use forebay_options::Transforms;
use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_server::{Server, ServerHandle};
use forebay_shard::Dataset;
use forebay_wire::Batch;
use support::{Log, options, url};

pub(crate) fn packed(format: DatasetFormat) -> (tempfile::TempDir, Dataset) {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("set");
    let mut options = PackOptions::new(images.as_path(), root.as_path());
    options.format = format;
    pack(&options, &(), &Cancel::new()).unwrap();
    let dataset = Dataset::open(&root).unwrap();
    (dir, dataset)
}

fn serve(dataset: &Dataset) -> ServerHandle {
    let mut server = Server::bind(options(&Log::default())).unwrap();
    server.add_dataset("set", dataset).unwrap();
    server.spawn().unwrap()
}

pub(crate) fn same(here: Option<Batch>, there: Option<Batch>) -> bool {
    let (here, there) = match (here, there) {
        (None, None) => return false,
        (Some(here), Some(there)) => (here, there),
        (here, there) => panic!("{here:?} here, {there:?} there"),
    };
    assert_eq!(format!("{here:?}"), format!("{there:?}"));
    assert!(here.payload[..] == there.payload[..], "{here:?}");
    assert_eq!(here.labels, there.labels);
    assert_eq!(here.mixed, there.mixed);
    assert_eq!(here.encoded, there.encoded);
    assert_eq!(here.samples, there.samples);
    assert_eq!(here.flags, there.flags);
    assert_eq!(here.columns, there.columns);
    true
}

#[test]
fn batches_are_those_of_the_loader() {
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let (_dir, dataset) = packed(format);
        let server = serve(&dataset);
        let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
        let over_tcp = support::connect(server.addr(), Transport::Tcp);
        assert_eq!(client.fingerprint(), dataset.fingerprint());
        assert_eq!(client.label_base(), 1);
        let names: Vec<&str> = client.splits().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["train", "validation"]);
        for (rank, world_size) in [(0, 1), (1, 2)] {
            let transform = match rank {
                0 => Transform::Train(TrainTransform::new(64)),
                _ => Transform::Eval(EvalTransform::new(72, 64)),
            };
            let mut options = Options::new(5, transform);
            (options.rank, options.world_size) = (rank, world_size);
            options.seed = 42;
            options.drop_last = rank != 1;
            options.output.layout = if rank == 0 {
                Layout::Nhwc
            } else {
                Layout::Nchw
            };
            if rank == 1 {
                options.output.dtype = Dtype::Float16;
                options.output.normalize = Some(Normalize {
                    mean: [0.485, 0.456, 0.406],
                    std: [0.229, 0.224, 0.225],
                });
            }
            let choices = vec![(Mixing::Mixup { alpha: 1.0 }, 1.0), (Mixing::Nothing, 1.0)];
            options.batch_transform = Some(BatchTransform::new(choices).unwrap());
            options.threads = 2;
            options.decode.exif = rank == 0;
            options.decode.resize_like =
                [ResizeLike::OpenCv, ResizeLike::TensorFlow][rank as usize];
            options.decode.scaled = rank == 1;
            let split = dataset.split("train").unwrap();
            let mut loader = Loader::new(split, options.clone()).unwrap();
            let mut stream = client
                .open(options.to_schema().with_split("train"))
                .unwrap();
            let mut tcp = over_tcp
                .open(options.to_schema().with_split("train"))
                .unwrap();
            assert_eq!(stream.batches_per_epoch(), loader.batches_per_epoch());
            while same(tcp.next_batch().unwrap(), stream.next_batch().unwrap()) {}
            stream.seek(0, 0).unwrap();
            for epoch in 0..2 {
                while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
                assert_eq!(stream.position(), (epoch + 1, 0));
            }
            // From a position in the middle, over a new connection.
            loader.seek(1, 10).unwrap();
            stream.seek(1, 10).unwrap();
            while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
            let stats = stream.server_stats(support::LONG).unwrap();
            let names: Vec<&str> = stats.stages.iter().map(|stage| &*stage.name).collect();
            assert_eq!(names.last(), Some(&"send"));
            assert!(
                names.contains(&"decode") && stats.bytes_read > 0,
                "{stats:?}"
            );
        }
    }
}

/// Numbers of ranks that do not divide the virtual ranks, with shuffles with and without windows.
#[test]
fn any_number_of_ranks_shares_an_epoch_over_the_network() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let server = serve(&dataset);
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let split = dataset.split("train").unwrap();
    for shuffle in ["blocks", "full"] {
        let mut digests = HashSet::new();
        for (world_size, batch_size) in [(1, 30), (3, 10), (5, 6)] {
            let mut digest = 0u64;
            for rank in 0..world_size {
                let transform = Transform::Train(TrainTransform::new(8));
                let mut options = Options::new(batch_size, transform);
                (options.rank, options.world_size) = (rank, world_size);
                (options.seed, options.drop_last) = (6, false);
                options.shuffle = Shuffle::named(shuffle).unwrap();
                (options.sampling.repeats, options.threads) = (3, 1);
                let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
                let mut stream = client
                    .open(options.to_schema().with_split("train"))
                    .unwrap();
                for _ in 0..2 {
                    while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
                    let of_rank = stream.epoch_digest();
                    assert!(of_rank.complete && of_rank == loader.epoch_digest());
                }
                digest = digest.wrapping_add(stream.epoch_digest().value);
            }
            digests.insert(digest);
        }
        assert_eq!(digests.len(), 1);
    }
}

#[test]
fn sampling_is_the_same_over_the_network() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let server = serve(&dataset);
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let split = dataset.split("train").unwrap();
    let class = split.classes()[1].name.clone();
    let changes: [&dyn Fn(&mut Options); 4] = [
        &|options| options.sampling.classes = vec![class.clone()],
        &|options| {
            options.sampling.indices = [0, 2, 3, 5].into();
            options.sampling.repeats = 3;
        },
        &|options| {
            options.sampling.weights = Weights::Balanced;
            options.sampling.num_samples = 23;
        },
        &|options| {
            options.sampling.weights =
                Weights::BySample((0..split.len()).map(|i| i as f32).collect());
            options.on_error = OnError::Zero;
        },
    ];
    for change in changes {
        let mut options = Options::new(4, Transform::Train(TrainTransform::new(16)));
        options.drop_last = false;
        change(&mut options);
        let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
        let mut stream = client
            .open(options.to_schema().with_split("train"))
            .unwrap();
        assert_eq!(stream.info().samples, loader.epoch_samples());
        assert_eq!(*stream.options(), loader.schema());
        for epoch in 0..2 {
            while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
            assert_eq!(stream.position(), (epoch + 1, 0));
        }
        loader.seek(1, 4).unwrap();
        stream.seek(1, 4).unwrap();
        while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
    }
}

#[test]
fn labels_are_the_same_over_the_network() {
    let (_dir, dataset) = packed(DatasetFormat::TfRecord);
    let server = serve(&dataset);
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let split = dataset.split("train").unwrap();
    assert_eq!(split.label_base(), 1);
    for (label_base, first) in [
        (LabelBase::Zero, 0),
        (LabelBase::One, 1),
        (LabelBase::Stored, 1),
    ] {
        let mut options = Options::new(1, Transform::Eval(EvalTransform::new(32, 32)));
        options.label_base = label_base;
        options.batch_transform =
            Some(BatchTransform::new(vec![(Mixing::Mixup { alpha: 1.0 }, 1.0)]).unwrap());
        options.sampling.labels = vec![first];
        let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
        let mut stream = client
            .open(options.to_schema().with_split("train"))
            .unwrap();
        assert_eq!(*stream.options(), loader.schema());
        assert_eq!(stream.info().label_base, first);
        assert_eq!(loader.label_base(), Some(first));
        let names: Vec<String> = split.classes().iter().map(|c| c.name.clone()).collect();
        assert_eq!(stream.info().classes, names);
        assert_eq!(loader.classes()[..], names[..]);
        while let Some(batch) = stream.next_batch().unwrap() {
            assert_eq!(batch.labels, [first]);
            assert_eq!(batch.mixed.as_ref().unwrap().labels, [first]);
            assert!(same(loader.next_batch().unwrap(), Some(batch)));
        }
    }
}

#[test]
fn encoded_images_arrive_in_batches_of_any_size() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let server = serve(&dataset);
    let split = dataset.split("train").unwrap();
    let mut options = Options::new(2, Transform::KeepEncoded);
    options.drop_last = false;
    let mut loader = Loader::new(split, options.clone()).unwrap();
    let mut sizes = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        sizes.push(batch.payload.len() as u64);
    }
    let typical = loader.options().batch_bytes().unwrap() as u64;
    assert!(
        sizes.iter().any(|&size| size > typical),
        "{sizes:?} of {typical}"
    );
    // With credit for one batch of average size at a time, and with more than enough.
    for credit_bytes in [Some(typical), None, Some(1 << 30)] {
        let own = ClientOptions {
            credit_bytes,
            payload_checksum: Some(true),
            ..ClientOptions::default()
        };
        let client = Client::connect(&url(server.addr()), own).unwrap();
        let mut stream = client
            .open(options.to_schema().with_split("train"))
            .unwrap();
        assert_eq!(stream.info().batch_bytes, typical);
        loader.seek(0, 0).unwrap();
        for epoch in 0..3 {
            while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
            assert_eq!(stream.position(), (epoch + 1, 0));
        }
        loader.seek(1, 2).unwrap();
        stream.seek(1, 2).unwrap();
        while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
    }
    // A client limits the batch size that it accepts: a larger batch ends the stream.
    let own = ClientOptions {
        max_batch_bytes: sizes.iter().max().unwrap() - 1,
        ..ClientOptions::default()
    };
    let client = Client::connect(&url(server.addr()), own).unwrap();
    let mut stream = client
        .open(options.to_schema().with_split("train"))
        .unwrap();
    let error = loop {
        match stream.next_batch() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a batch beyond the limit was taken"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("limit"), "{error}");
}

#[test]
fn encoded_batches_beyond_the_limit_are_an_error() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let mut loader = Loader::new(
        dataset.split("train").unwrap(),
        Options::new(2, Transform::KeepEncoded),
    )
    .unwrap();
    let typical = loader.options().batch_bytes().unwrap() as u64;
    let mut largest = 0;
    while let Some(batch) = loader.next_batch().unwrap() {
        largest = largest.max(batch.payload.len() as u64);
    }
    assert!(largest > typical, "{largest} of {typical}");
    let mut own = options(&Log::default());
    own.max_batch_bytes = largest - 1;
    let mut server = Server::bind(own).unwrap();
    server.add_dataset("set", &dataset).unwrap();
    let server = server.spawn().unwrap();
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let spec = Options::new(2, Transform::KeepEncoded)
        .to_schema()
        .with_split("train");
    let mut stream = client.open(spec).unwrap();
    let error = loop {
        match stream.next_batch() {
            Ok(Some(batch)) => assert!((batch.payload.len() as u64) < largest),
            Ok(None) => panic!("a batch beyond the limit was made"),
            Err(error) => break error,
        }
    };
    let Error::Remote { kind, message, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*kind, RemoteKind::Invalid);
    assert!(
        message.contains(&format!("a batch of {largest} bytes")),
        "{message}"
    );
}

#[test]
fn loader_errors_arrive_with_their_kind() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let server = serve(&dataset);
    let refused = |split: &str, change: fn(&mut StreamOptions)| {
        let options = Options::new(4, Transform::Train(TrainTransform::new(32)));
        let mut open = StreamOptions::from(options.to_schema().with_split(split));
        change(&mut open);
        let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
        match client.open(open) {
            Err(Error::Remote { kind, message, .. }) => (kind, message),
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("was opened"),
        }
    };
    let (kind, text) = refused("test", |_| ());
    assert_eq!(kind, RemoteKind::NotFound);
    assert!(text.contains("there is train, validation"), "{text}");
    assert_eq!(refused("", |_| ()).0, RemoteKind::NotFound);
    let no_split = |o: &mut StreamOptions| o.options.split = None;
    assert_eq!(refused("train", no_split).0, RemoteKind::NotFound);
    for change in [
        (|o| o.options.transform = Some(Transforms::List(Vec::new()))) as fn(&mut StreamOptions),
        |o| o.options.batch_size = Some(0),
        |o| o.options.batch_size = Some(1 << 23),
        |o| {
            let raw = Options::new(1 << 29, Transform::KeepEncoded);
            o.options = raw.to_schema().with_split("train");
            o.options.drop_last = Some(false);
        },
        |o| {
            o.options = Options::new(4, Transform::KeepEncoded)
                .to_schema()
                .with_split("train");
            o.options.layout = Some(Layout::Nchw);
        },
        |o| o.options.world_size = Some(1 << 40),
        |o| o.options.virtual_ranks = Some(u64::MAX),
        |o| o.position = 1 << 40,
        |o| o.options.resize_like = Some("photoshop".to_owned()),
        |o| o.options.max_pixels = Some(1 << 40),
        |o| o.options.max_image_bytes = Some(1 << 40),
        |o| {
            o.options.class_balanced = Some(true);
            o.options.num_samples = Some(u64::MAX);
        },
        |o| o.options.repeats = Some(u64::MAX),
        |o| o.options.indices = Some(vec![1, u64::MAX]),
    ] {
        assert_eq!(refused("train", change).0, RemoteKind::Invalid);
    }
}

#[test]
fn a_server_has_limits_of_its_own() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let mut own = options(&Log::default());
    own.image_limits.max_pixels = 1000;
    let mut server = Server::bind(own).unwrap();
    server.add_dataset("set", &dataset).unwrap();
    let server = server.spawn().unwrap();
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let options = Options::new(4, Transform::Train(TrainTransform::new(32)));
    let mut stream = client
        .open(options.to_schema().with_split("train"))
        .unwrap();
    assert_eq!(stream.options().max_pixels, Some(1000));
    let error = stream.next_batch().unwrap_err().to_string();
    assert!(error.contains("pixels, the limit is 1000"), "{error}");
}

#[test]
fn a_damaged_record_is_named_with_its_place() {
    let (dir, dataset) = packed(DatasetFormat::INDEXED);
    let server = serve(&dataset);
    let shard = first_shard(&dir.path().join("set"));
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 64] {
        *byte ^= 0x55;
    }
    std::fs::write(&shard, bytes).unwrap();
    let options = Options::new(4, Transform::Train(TrainTransform::new(32)));
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let mut stream = client
        .open(options.to_schema().with_split("train"))
        .unwrap();
    let e = loop {
        match stream.next_batch() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the damage was not found"),
            Err(e) => break e,
        }
    };
    let Error::Remote {
        kind: RemoteKind::Data,
        message,
        ..
    } = &e
    else {
        panic!("{e}");
    };
    let name = shard.file_name().unwrap().to_str().unwrap();
    assert!(message.contains(name), "{message}");
    // Error messages do not reveal the server's local paths.
    let place = dir.path().to_str().unwrap();
    assert!(!message.contains(place), "{message}");
    let mut options = options;
    options.on_error = OnError::Skip;
    let mut stream = client
        .open(options.to_schema().with_split("train"))
        .unwrap();
    while stream.next_batch().unwrap().is_some() {}
    let stats = stream.server_stats(support::LONG).unwrap();
    assert!(stats.failed > 0 && !stats.failures.is_empty());
    for failure in &stats.failures {
        assert!(
            failure.contains(name) && !failure.contains(place),
            "{failure}"
        );
    }
}

fn first_shard(root: &Path) -> PathBuf {
    let mut shards: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("train-00000"))
        .collect();
    shards.sort();
    shards.remove(0)
}
