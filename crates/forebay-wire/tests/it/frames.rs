//! Frames: every truncation and every flipped bit is detected, limits apply before any allocation,
//! and written frames can be read.

use std::io::{Cursor, Read};

use forebay_batch::{BatchColumn, ColumnArray, ColumnKind, Element, column, digest};
use forebay_wire::batch::{from_header, to_header};
use forebay_wire::frame::{self, FrameLimits, HEAD_LEN};
use forebay_wire::{
    Batch, BufferPool, Dtype, EncodedImages, Error, FrameReader, FrameWriter, Kind, Layout,
    Message, Mixed, Side, wire,
};
use proptest::prelude::*;

const SERVER: FrameLimits = FrameLimits::from_server(1 << 20);

fn batch(pool: &BufferPool) -> Batch {
    let samples = vec![30, 10, 20];
    let mut images = pool.take(3 * 2 * 2 * 3);
    for (i, byte) in images.iter_mut().enumerate() {
        *byte = i as u8;
    }
    Batch {
        epoch: 1,
        step: 2,
        position: 6,
        payload: images,
        columns: Vec::new(),
        dtype: Dtype::Uint8,
        encoded: None,
        mixed: Some(Box::new(Mixed {
            labels: vec![999, -1, 5],
            lam: vec![0.25, 0.25, 1.0],
        })),
        shape: [3, 2, 2, 3],
        layout: Layout::Nhwc,
        labels: vec![-1, 5, 999],
        digest: digest::batch(6.., &samples, &[0, 0, 1]),
        samples,
        flags: vec![0, 0, 1],
    }
}

/// One frame of a batch, with the checksum of its payload.
fn batch_frame(pool: &BufferPool) -> Vec<u8> {
    let batch = batch(pool);
    let mut bytes = Vec::new();
    FrameWriter::new(&mut bytes)
        .write(
            &to_header(&batch, Some(crc32c::crc32c(&batch.payload))).into(),
            &batch.payload,
        )
        .unwrap();
    bytes
}

type Frames = Result<Vec<(Message, Vec<u8>)>, Error>;

/// Reads frames to the end as a client does, with the payloads of batches. Reading one by one and
/// reading ahead must agree.
fn read_all(bytes: &[u8], pool: &BufferPool) -> Frames {
    let reader = || FrameReader::new(Cursor::new(bytes), SERVER);
    let (each, ahead) = (
        read_from(reader(), pool),
        read_from(reader().read_ahead(), pool),
    );
    assert_eq!(format!("{each:?}"), format!("{ahead:?}"));
    each
}

fn read_from(mut reader: FrameReader<impl Read>, pool: &BufferPool) -> Frames {
    let mut out = Vec::new();
    loop {
        match reader.read() {
            Err(Error::Closed) => return Ok(out),
            Err(e) => return Err(e),
            Ok((message, payload_len)) => {
                let mut payload = pool.try_take(payload_len as usize).unwrap();
                let crc = match &message {
                    Message::Batch(header) => header.payload_crc32c,
                    _ => None,
                };
                reader.read_payload(&mut payload, crc)?;
                let copy = payload.to_vec();
                if let Message::Batch(header) = &message {
                    from_header(header.clone(), Layout::Nhwc, payload)?;
                }
                out.push((message, copy));
            }
        }
    }
}

#[test]
fn a_batch_arrives_as_it_was_sent() {
    let pool = BufferPool::new(1 << 20);
    let bytes = batch_frame(&pool);
    let read = read_all(&bytes, &pool).unwrap();
    let sent = batch(&pool);
    let [(Message::Batch(header), payload)] = &read[..] else {
        panic!("{read:?}");
    };
    assert_eq!(payload[..], sent.payload[..]);
    let mut images = pool.take(payload.len());
    images.copy_from_slice(payload);
    let got = from_header(header.clone(), Layout::Nhwc, images).unwrap();
    assert_eq!((got.epoch, got.step, got.position), (1, 2, 6));
    assert_eq!((got.shape, got.digest), (sent.shape, sent.digest));
    assert_eq!(
        (got.labels, got.mixed, got.samples, got.flags),
        (sent.labels, sent.mixed, sent.samples, sent.flags)
    );
    let (message, payload, rest) = frame::decode(&bytes, &SERVER).unwrap().unwrap();
    assert_eq!(
        (message.kind(), payload.len(), rest.len()),
        (Kind::Batch, 36, 0)
    );
}

#[test]
fn every_truncation_is_found() {
    let pool = BufferPool::new(1 << 20);
    let bytes = batch_frame(&pool);
    for len in 1..bytes.len() {
        let e = read_all(&bytes[..len], &pool).unwrap_err();
        assert!(matches!(e, Error::Truncated { .. }), "{len}: {e}");
        assert!(e.is_disconnect() && !e.is_timeout());
        assert!(frame::decode(&bytes[..len], &SERVER).unwrap().is_none());
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let pool = BufferPool::new(1 << 20);
    let bytes = batch_frame(&pool);
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let e = read_all(&bad, &pool).unwrap_err();
        match bit / 8 {
            0..4 => assert!(matches!(e, Error::Magic { .. }), "{bit}: {e}"),
            4 => assert!(matches!(e, Error::Version { .. }), "{bit}: {e}"),
            // The checksum covers the header's length, so a longer one reaches the end here and a
            // shorter one does not match.
            _ => {}
        }
        assert!(!e.to_string().is_empty());
    }
}

#[test]
fn lengths_are_refused_before_anything_is_allocated() {
    /// Fails the test if more than a head is read.
    struct OnlyHead(Cursor<Vec<u8>>);
    impl Read for OnlyHead {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.read(buf)?;
            assert!(n > 0, "read beyond the head");
            Ok(n)
        }
    }
    let head = |kind: Kind, header_len: u32, payload_len: u64| {
        let mut head = Vec::from(*b"FBRY\x01");
        head.push(kind as u8);
        head.extend([0, 0]);
        head.extend(header_len.to_le_bytes());
        head.extend(payload_len.to_le_bytes());
        head.extend([0; 4]);
        head
    };
    let refused = |limits: FrameLimits, head: Vec<u8>| {
        let mut reader = FrameReader::new(OnlyHead(Cursor::new(head)), limits);
        reader.read().unwrap_err()
    };
    let client = FrameLimits::from_client();
    for e in [
        refused(client, head(Kind::Open, (1 << 20) + 1, 0)),
        refused(client, head(Kind::Open, u32::MAX, 0)),
        refused(client, head(Kind::Open, 1, 1)),
        refused(client, head(Kind::Open, 1, u64::MAX)),
        refused(SERVER, head(Kind::Batch, 1, (1 << 20) + 1)),
        refused(SERVER, head(Kind::Batch, 1, u64::MAX)),
        refused(SERVER, head(Kind::Stats, 1, 1)),
    ] {
        assert!(matches!(e, Error::TooLarge { .. }), "{e}");
    }
    // Messages whose kind the sender may not use are refused before they cause allocations.
    for kind in Kind::ALL {
        for (side, limits) in [(Side::Client, client), (Side::Server, SERVER)] {
            if !kind.is_sent_by(side) {
                let e = refused(limits, head(*kind, 1, 0));
                assert!(matches!(e, Error::Unexpected { .. }), "{kind}: {e}");
            }
        }
    }
}

#[test]
fn frames_that_come_together_are_read_together() {
    /// A reader that returns a limited number of bytes at a time and counts the calls.
    struct Portions<'a>(Cursor<&'a [u8]>, usize, &'a mut usize);
    impl Read for Portions<'_> {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            *self.2 += 1;
            let most = buf.len().min(self.1);
            self.0.read(&mut buf[..most])
        }
    }
    let pool = BufferPool::new(1 << 20);
    let ping = |token| {
        let mut bytes = Vec::new();
        let message = wire::Ping {
            token,
            ..wire::Ping::default()
        };
        frame::encode(&message.into(), 0, &mut bytes).unwrap();
        bytes
    };
    // A message larger than one read-ahead, and a payload that crosses its boundary.
    let long = Message::from(wire::Stats {
        stages: vec![wire::Stage::default(); 5000],
        ..wire::Stats::default()
    });
    let mut bytes = [ping(1), batch_frame(&pool), ping(2), batch_frame(&pool)].concat();
    let mut last = Vec::new();
    frame::encode(&long, 0, &mut last).unwrap();
    bytes.extend([last, ping(3)].concat());
    let expected = read_all(&bytes, &pool).unwrap();
    assert_eq!(expected.len(), 6);
    for portion in (1..60).chain([bytes.len()]) {
        let mut asked = 0;
        let portions = Portions(Cursor::new(&bytes), portion, &mut asked);
        let reader = FrameReader::new(portions, SERVER).read_ahead();
        assert_eq!(read_from(reader, &pool).unwrap(), expected, "{portion}");
        if portion == bytes.len() {
            // The small messages in one call, the long one in two, then the end.
            assert_eq!(asked, 4);
        }
    }
    // A server reads several messages in one call, and knows whether the next one has begun.
    let mut both = [ping(1), ping(2)].concat();
    let end = both.len() - 1;
    let mut reader = FrameReader::new(Cursor::new(&both[..end]), FrameLimits::from_client());
    reader.read().unwrap();
    assert!(reader.is_mid_frame());
    assert!(matches!(
        reader.read().unwrap_err(),
        Error::Truncated { .. }
    ));
    both.truncate(both.len() / 2);
    let mut reader = FrameReader::new(Cursor::new(&both[..]), FrameLimits::from_client());
    reader.read().unwrap();
    assert!(!reader.is_mid_frame());
    assert!(matches!(reader.read().unwrap_err(), Error::Closed));
}

#[test]
fn four_bytes_tell_another_protocol() {
    // The reader does not wait for more bytes of a foreign protocol.
    for (bytes, name) in [
        (&b"HTTP"[..], "(an HTTP answer)"),
        (b"\x15\x03\x03\0", "(TLS)"),
        (b"SSH-", "found 53 53 48 2d"),
    ] {
        let e = read_all(bytes, &BufferPool::new(0)).unwrap_err();
        assert!(matches!(e, Error::Magic { .. }), "{e}");
        assert!(e.to_string().ends_with(name), "{e}");
    }
}

#[test]
fn other_protocols_are_named() {
    let e = read_all(
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &BufferPool::new(0),
    )
    .unwrap_err();
    assert_eq!(
        e.to_string(),
        "expected a frame, which begins with 46 42 52 59 (FBRY), found 47 45 54 20 (an HTTP request)"
    );
}

#[test]
fn a_timeout_in_the_middle_of_a_frame_loses_nothing() {
    /// Returns one byte, then a timeout, and so on.
    struct Slow(Cursor<Vec<u8>>, bool);
    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            let one = buf.len().min(1);
            self.0.read(&mut buf[..one])
        }
    }
    let mut bytes = Vec::new();
    let sent = Message::from(wire::Open {
        epoch: 3,
        position: 1 << 40,
        ..Default::default()
    });
    frame::encode(&sent, 0, &mut bytes).unwrap();
    let len = bytes.len();
    let mut reader = FrameReader::new(Slow(Cursor::new(bytes), false), FrameLimits::from_client());
    let mut timeouts = 0;
    let got = loop {
        match reader.read() {
            Ok((message, _)) => break message,
            Err(e) => assert!(e.is_timeout(), "{e}"),
        }
        timeouts += 1;
        assert_eq!(reader.is_mid_frame(), timeouts > 1);
    };
    assert_eq!((got, timeouts), (sent, len));
}

#[test]
fn batches_that_do_not_add_up_are_refused() {
    let pool = BufferPool::new(1 << 20);
    let sent = batch(&pool);
    let tries: [fn(&mut wire::Batch); 10] = [
        |b| b.lam.push(0.5),
        |b| b.labels_b.clear(),
        |b| b.dtype = 77,
        |b| b.dtype = wire::Dtype::Float16.into(),
        |b| b.shape = vec![3, 2, 2],
        |b| b.shape = vec![u64::MAX, u64::MAX, 2, 3],
        |b| b.shape[0] = 4,
        |b| b.flags.clear(),
        |b| b.samples.push(1),
        |b| b.labels.clear(),
    ];
    for (i, change) in tries.iter().enumerate() {
        let mut header = to_header(&sent, None);
        change(&mut header);
        let images = pool.take(sent.payload.len());
        assert!(from_header(header, Layout::Nhwc, images).is_err(), "{i}");
    }
}

/// The same batch with encoded images of 5, 0 and 31 bytes.
fn encoded(pool: &BufferPool) -> Batch {
    let mut batch = batch(pool);
    batch.shape = [3, 0, 0, 0];
    batch.mixed = None;
    batch.encoded = Some(Box::new(EncodedImages {
        offsets: vec![0, 5, 5, 36],
        widths: vec![640, 0, 7],
        heights: vec![480, 0, 9],
    }));
    batch
}

#[test]
fn encoded_images_arrive_as_they_were_sent() {
    let pool = BufferPool::new(1 << 20);
    let sent = encoded(&pool);
    let mut bytes = Vec::new();
    FrameWriter::new(&mut bytes)
        .write(&to_header(&sent, None).into(), &sent.payload)
        .unwrap();
    let (message, payload, _) = frame::decode(&bytes, &SERVER).unwrap().unwrap();
    let Message::Batch(header) = message else {
        panic!("{message:?}");
    };
    assert_eq!(header.shape, [3]);
    let mut images = pool.take(payload.len());
    images.copy_from_slice(payload);
    let got = from_header(header, Layout::Nhwc, images).unwrap();
    assert_eq!(got.encoded, sent.encoded);
    assert_eq!(got.image(0), Some(&[0, 1, 2, 3, 4][..]));
    assert_eq!(got.image(1), Some(&[][..]));
    assert_eq!(got.image(2).unwrap().len(), 31);
    assert_eq!((got.labels, got.samples), (sent.labels, sent.samples));
}

#[test]
fn inconsistent_encoded_images_are_refused() {
    let pool = BufferPool::new(1 << 20);
    let sent = encoded(&pool);
    let tries: [fn(&mut wire::Batch); 12] = [
        |b| b.offsets[3] = 37,
        |b| b.offsets[1] = u64::MAX,
        |b| b.offsets[0] = 1,
        |b| b.offsets[2] = 4,
        |b| b.offsets.truncate(3),
        |b| b.offsets.push(36),
        |b| b.offsets.clear(),
        |b| b.shape = vec![u64::MAX],
        |b| b.shape = vec![3, 2, 2, 3],
        |b| b.dtype = wire::Dtype::Float32.into(),
        |b| b.widths.clear(),
        |b| {
            b.lam = vec![1.0; 3];
            b.labels_b = vec![0; 3];
        },
    ];
    for (i, change) in tries.iter().enumerate() {
        let mut header = to_header(&sent, None);
        change(&mut header);
        let images = pool.take(sent.payload.len());
        assert!(from_header(header, Layout::Nhwc, images).is_err(), "{i}");
    }
}

/// The same batch with a column of one size, a ragged one and boxes.
fn with_columns(pool: &BufferPool) -> Batch {
    let plain = batch(pool);
    let array = |element, shape: &[usize]| ColumnArray::new(element, shape.to_vec());
    let column = |name: &str, kind, offsets: Option<Vec<i64>>, arrays| BatchColumn {
        name: name.to_owned(),
        kind,
        offsets,
        arrays,
    };
    let mut columns = vec![
        column(
            "pair",
            ColumnKind::Numbers,
            None,
            vec![array(Element::Float64, &[3, 2])],
        ),
        column(
            "caption",
            ColumnKind::Text,
            Some(vec![0, 5, 5, 7]),
            vec![array(Element::Uint8, &[7])],
        ),
        column(
            "boxes",
            ColumnKind::Boxes,
            Some(vec![0, 0, 2, 2]),
            vec![
                array(Element::Float32, &[2, 4]),
                array(Element::Int64, &[2]),
            ],
        ),
    ];
    let bytes = column::place(&mut columns, plain.payload.len()).unwrap();
    let mut payload = pool.take(bytes);
    for (i, byte) in payload.iter_mut().enumerate() {
        *byte = i as u8;
    }
    Batch {
        payload,
        columns,
        ..plain
    }
}

#[test]
fn columns_arrive_as_they_were_sent() {
    let pool = BufferPool::new(1 << 20);
    let sent = with_columns(&pool);
    sent.check().unwrap();
    let mut bytes = Vec::new();
    FrameWriter::new(&mut bytes)
        .write(&to_header(&sent, None).into(), &sent.payload)
        .unwrap();
    let (message, payload, _) = frame::decode(&bytes, &SERVER).unwrap().unwrap();
    let Message::Batch(header) = message else {
        panic!("{message:?}");
    };
    let mut received = pool.take(payload.len());
    received.copy_from_slice(payload);
    let got = from_header(header, Layout::Nhwc, received).unwrap();
    assert_eq!(got.columns, sent.columns);
    assert_eq!(got.payload[..], sent.payload[..]);
    assert_eq!(got.images(), sent.images());
    let boxes = got.column("boxes").unwrap();
    assert_eq!(got.array(&boxes.arrays[1]).unwrap().len(), 16);
}

#[test]
fn columns_that_do_not_fit_their_payload_are_refused() {
    let pool = BufferPool::new(1 << 20);
    let sent = with_columns(&pool);
    let tries: [fn(&mut wire::Batch); 22] = [
        |b| b.columns[0].kind = 0,
        |b| b.columns[0].kind = 99,
        |b| b.columns[0].kind = wire::column::Kind::Boxes.into(),
        |b| b.columns[0].ragged = true,
        |b| b.columns[0].lengths = vec![1, 1, 1],
        |b| b.columns[1].ragged = false,
        |b| b.columns[1].lengths[0] = 6,
        |b| b.columns[1].lengths = vec![u64::MAX, 1, 7],
        |b| b.columns[1].lengths = vec![i64::MAX as u64, 1, 7],
        |b| b.columns[1].lengths.clear(),
        |b| b.columns[1].lengths.push(0),
        |b| b.columns[1].name = "pair".to_owned(),
        |b| b.columns[1].name = "x".repeat(201),
        |b| b.columns[0].arrays[0].dtype = "float128".to_owned(),
        |b| b.columns[0].arrays[0].dtype = "int64".repeat(1000),
        |b| b.columns[0].arrays[0].shape = vec![3, u64::MAX],
        |b| b.columns[0].arrays[0].start += 64,
        |b| b.columns[1].arrays[0].start += 1,
        |b| b.columns[2].arrays[1].start = b.columns[2].arrays[0].start,
        |b| b.columns[2].arrays.truncate(1),
        |b| b.columns.truncate(2),
        |b| b.columns = vec![b.columns[0].clone(); 300],
    ];
    for (i, change) in tries.iter().enumerate() {
        let mut header = to_header(&sent, None);
        change(&mut header);
        let payload = pool.take(sent.payload.len());
        assert!(from_header(header, Layout::Nhwc, payload).is_err(), "{i}");
    }
    for bytes in [0, sent.payload.len() - 1, sent.payload.len() + 1] {
        let header = to_header(&sent, None);
        assert!(from_header(header, Layout::Nhwc, pool.take(bytes)).is_err());
    }
    // Encoded images end where columns begin.
    let mut both = with_columns(&pool);
    both.encoded = encoded(&pool).encoded;
    both.mixed = None;
    both.shape = [3, 0, 0, 0];
    both.check().unwrap();
    let mut header = to_header(&both, None);
    header.offsets[3] += 1;
    let payload = pool.take(both.payload.len());
    from_header(header.clone(), Layout::Nhwc, payload).unwrap();
    header.offsets[3] += 64;
    let payload = pool.take(both.payload.len());
    assert!(from_header(header, Layout::Nhwc, payload).is_err());
}

proptest! {
    #[test]
    fn garbage_is_an_error_or_the_beginning_of_a_frame(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for limits in [SERVER, FrameLimits::from_client()] {
            prop_assert!(!matches!(frame::decode(&bytes, &limits), Ok(Some(_))));
        }
    }

    #[test]
    fn garbage_after_a_good_head_is_an_error(kind in 1u8..=12, body in proptest::collection::vec(any::<u8>(), 0..100)) {
        // With a correct checksum, so that decoding reaches the message.
        let bytes = framed(kind, &body);
        for limits in [SERVER, FrameLimits::from_client()] {
            if let Ok(Some((message, ..))) = frame::decode(&bytes, &limits) {
                let mut again = Vec::new();
                frame::encode(&message, 0, &mut again).unwrap();
                prop_assert_eq!(frame::decode(&again, &limits).unwrap().unwrap().0, message);
            }
        }
    }

    #[test]
    fn frames_in_a_row_are_read_as_they_were_written(epochs in proptest::collection::vec(any::<(u64, u64, u64)>(), 0..20)) {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        for &(epoch, batches, digest) in &epochs {
            writer.write(&wire::EpochEnd { epoch, batches, digest }.into(), &[]).unwrap();
        }
        let read = read_all(&bytes, &BufferPool::new(0)).unwrap();
        prop_assert_eq!(read.len(), epochs.len());
        for ((message, _), (epoch, batches, digest)) in read.into_iter().zip(epochs) {
            prop_assert_eq!(message, Message::EpochEnd(wire::EpochEnd { epoch, batches, digest }));
        }
    }
}

/// A frame with a correct checksum.
fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(*b"FBRY\x01");
    bytes.push(kind);
    bytes.extend([0, 0]);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), body);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn unknown_groups_nest_up_to_a_bound() {
    // Nested groups of the unknown field 1023, which the decoder skips, on a thread with a small stack.
    let check = || {
        for (levels, is_read) in [(50, true), (100_000, false)] {
            let body = [[0xfb, 0x3f].repeat(levels), [0xfc, 0x3f].repeat(levels)].concat();
            let frame = framed(1, &body);
            let read = frame::decode(&frame, &FrameLimits::from_client());
            assert_eq!(matches!(read, Ok(Some(_))), is_read, "{levels}: {read:?}");
        }
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    thread.spawn(check).unwrap().join().unwrap();
}

#[test]
fn a_head_is_24_bytes() {
    let mut bytes = Vec::new();
    frame::encode(&wire::Close {}.into(), 0, &mut bytes).unwrap();
    assert_eq!(bytes.len(), HEAD_LEN);
}
