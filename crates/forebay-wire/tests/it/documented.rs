//! The example bytes in `docs/wire.md` are those that this crate writes and reads. They were
//! computed from the description by an independent program.

use forebay_batch::digest;
use forebay_wire::batch::to_header;
use forebay_wire::frame::{self, FrameLimits};
use forebay_wire::{Batch, BufferPool, Dtype, FrameWriter, Kind, Layout, Message, wire};

const PAGE: &str = include_str!("../../../../docs/wire.md");

/// Returns the bytes of the block named `name`.
fn documented(name: &str) -> Vec<u8> {
    let begin = format!("```hex {name}\n");
    let (_, rest) = PAGE.split_once(&begin).expect("a block of that name");
    let (block, _) = rest.split_once("```").expect("an end of the block");
    block
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
        .collect()
}

fn check(name: &str, message: impl Into<Message>, payload: &[u8], limits: FrameLimits) {
    let message = message.into();
    let mut bytes = Vec::new();
    FrameWriter::new(&mut bytes)
        .write(&message, payload)
        .unwrap();
    let documented = documented(name);
    assert_eq!(bytes, documented, "{name}");
    let (read, read_payload, rest) = frame::decode(&documented, &limits).unwrap().unwrap();
    assert_eq!(
        (read, read_payload, rest),
        (message, payload, &[][..]),
        "{name}"
    );
}

#[test]
fn documented_bytes_match() {
    let client = FrameLimits::from_client();
    check("close", wire::Close {}, &[], client);
    let hello = wire::Hello {
        version_min: 2,
        version_max: 2,
        client: "doc".to_owned(),
        dataset: "set".to_owned(),
        ..wire::Hello::default()
    };
    check("hello", hello, &[], client);
    let credit = wire::Credit {
        bytes: 38_535_168,
        ..wire::Credit::default()
    };
    check("credit", credit, &[], client);
    let released = wire::Credit {
        released: vec![3],
        ..wire::Credit::default()
    };
    check("released", released, &[], client);
    let ping = wire::Ping {
        token: 7,
        answer: true,
        ..wire::Ping::default()
    };
    check("ping", ping, &[], client);

    let pool = BufferPool::new(1 << 20);
    let mut images = pool.take(6);
    images.copy_from_slice(&[10, 20, 30, 40, 50, 60]);
    let batch = Batch {
        epoch: 1,
        step: 2,
        position: 4,
        dtype: Dtype::Uint8,
        mixed: None,
        columns: Vec::new(),
        encoded: None,
        shape: [2, 1, 1, 3],
        layout: Layout::Nhwc,
        labels: vec![5, -1],
        samples: vec![30, 10],
        flags: vec![0, 0],
        digest: digest::batch(4.., &[30, 10], &[0, 0]),
        payload: images,
    };
    assert_eq!(batch.digest, 0xe1c9_7d80_409e_438e);
    let header = to_header(&batch, Some(crc32c::crc32c(&batch.payload)));
    check("batch", header, &batch.payload, FrameLimits::from_server(6));
    let mut header = to_header(&batch, None);
    header.shared = Some(wire::SharedPayload {
        slot: 3,
        bytes: 6,
        capacity: 4096,
        gone: vec![],
    });
    check("shared", header, &[], FrameLimits::from_server(6));
}

#[test]
fn the_table_of_messages_is_right() {
    for &kind in Kind::ALL {
        let by = |side| kind.is_sent_by(side);
        let by = match (
            by(forebay_wire::Side::Client),
            by(forebay_wire::Side::Server),
        ) {
            (true, true) => "both",
            (true, false) => "client",
            _ => "server",
        };
        let row = format!("\n| {} | {kind} | {by} | ", kind as u8);
        assert!(PAGE.contains(&row), "{row}");
    }
}
