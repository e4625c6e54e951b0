//! Columns of batches: the same bytes in process and over every transport.

use forebay_client::{Client, ClientOptions, StreamOptions, Transport, Via};
use forebay_image::{EvalTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_pack::DatasetFormat;
use forebay_server::{Server, ServerOptions};
use forebay_shard::{ColumnType, Dataset};

use crate::dataset::{packed, same};
use crate::security::Authority;
use crate::support::{Log, given, options, over, url};

/// The columns of a dataset that need no geometry.
fn names(dataset: &Dataset) -> Vec<String> {
    let schema = dataset.manifest().schema();
    let plain = schema
        .columns()
        .iter()
        .filter(|column| column.column_type != ColumnType::Boxes);
    plain.map(|column| column.name.clone()).collect()
}

#[test]
fn columns_are_the_same_over_every_transport() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let names = names(&dataset);
    assert!(names.len() >= 4, "{names:?}");
    let authority = Authority::new();
    let bind = |tls| {
        let own = ServerOptions {
            tls,
            ..options(&Log::default())
        };
        let mut server = Server::bind(own).unwrap();
        server.add_dataset("set", &dataset).unwrap();
        server.spawn().unwrap()
    };
    let (server, secure) = (bind(None), bind(Some(authority.server())));
    let plain = url(server.addr());
    let encrypted = format!("forebays://{}/set", secure.addr());
    let checked = |options: ClientOptions| ClientOptions {
        payload_checksum: Some(true),
        ..options
    };
    let lanes = ClientOptions {
        connections: 3,
        ..over(Transport::Tcp)
    };
    let little = ClientOptions {
        credit_bytes: Some(1_400_000),
        ..over(Transport::Tcp)
    };
    for (url, client, via) in [
        (&plain, checked(over(Transport::Tcp)), Via::Tcp),
        (&plain, little, Via::Tcp),
        (&plain, lanes, Via::Tcp),
        (&plain, over(Transport::Shm), Via::Shm),
        (&plain, checked(over(Transport::Shm)), Via::Shm),
        (&encrypted, authority.client(), Via::Tcp),
    ] {
        let client = Client::connect(url, client).unwrap();
        // Large batches, some of which are sent in slices, and batches of encoded images.
        let transforms = [
            Transform::Eval(EvalTransform::new(300, 300)),
            Transform::KeepEncoded,
        ];
        for transform in transforms {
            let mut options = Options::new(5, transform);
            options.drop_last = false;
            options.columns = names.clone().into();
            let split = dataset.split("train").unwrap();
            let mut loader = Loader::new(split, options.clone()).unwrap();
            let mut stream = client
                .open(options.to_schema().with_split("train"))
                .unwrap();
            assert_eq!(*stream.options(), loader.schema());
            assert_eq!(stream.via(), via);
            for _ in 0..2 {
                let mut batches = 0;
                while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {
                    batches += 1;
                }
                assert_eq!(batches, loader.batches_per_epoch());
            }
            assert_eq!(loader.epoch_digest(), stream.epoch_digest());
            loader.seek(0, 5).unwrap();
            stream.seek(0, 5).unwrap();
            while same(loader.next_batch().unwrap(), stream.next_batch().unwrap()) {}
        }
    }
}

#[test]
fn trainings_that_share_batches_have_the_same_columns() {
    let (_dir, dataset) = packed(DatasetFormat::TfRecord);
    let own = ServerOptions {
        shared_batches_bytes: 64 << 20,
        ..options(&Log::default())
    };
    let mut server = Server::bind(own).unwrap();
    server.add_dataset("set", &dataset).unwrap();
    let server = server.spawn().unwrap();
    let mut options = Options::new(5, Transform::Eval(EvalTransform::new(40, 32)));
    options.columns = names(&dataset).into();
    let open = |transport| {
        let client = Client::connect(&url(server.addr()), over(transport)).unwrap();
        let spec = options.to_schema().with_split("train");
        client.open(StreamOptions::from(spec)).unwrap()
    };
    let (mut first, mut second) = (open(Transport::Tcp), open(Transport::Shm));
    for _ in 0..2 {
        while same(first.next_batch().unwrap(), second.next_batch().unwrap()) {}
    }
}

#[test]
fn unknown_columns_are_refused_with_the_known_ones() {
    let (_dir, dataset) = packed(DatasetFormat::INDEXED);
    let mut server = Server::bind(options(&Log::default())).unwrap();
    server.add_dataset("set", &dataset).unwrap();
    let server = server.spawn().unwrap();
    let client = Client::connect(&url(server.addr()), ClientOptions::default()).unwrap();
    let spec = given(
        r#"{"split": "train", "batch_size": 2, "columns": ["captions"], "transform": "train"}"#,
    );
    let error = client
        .open(StreamOptions::from(spec))
        .map(|_| ())
        .unwrap_err();
    let forebay_client::Error::Remote { kind, message, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*kind, forebay_client::RemoteKind::Invalid);
    let said = r#"option columns is "captions": expected columns of the dataset: "image", "label""#;
    assert!(message.starts_with(said), "{message}");
}
