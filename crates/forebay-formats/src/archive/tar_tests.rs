use super::super::ArchiveKind;
use super::super::bytes::ArchiveFile;
use super::*;
use std::io::Write;
use std::sync::Arc;

/// Reads the members of an archive.
fn read(bytes: &[u8]) -> Result<Vec<TarMember>, ArchiveError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let file = ArchiveFile::Local(Arc::new(file), bytes.len() as u64);
    let mut stream = Stream::new(file, ArchiveKind::Tar).unwrap();
    let mut reader = TarReader::new(0, None);
    let mut members = Vec::new();
    while let Some(member) = reader.next(&mut stream)? {
        members.push(member);
    }
    Ok(members)
}

/// Creates an archive with the tar crate, whose names may have any length.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Creates a header.
fn header(name: &[u8], kind: u8, size: u64) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = kind;
    block[257..263].copy_from_slice(b"ustar\0");
    seal(&mut block);
    block
}

fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

fn padded(content: &[u8]) -> Vec<u8> {
    let mut padded = content.to_vec();
    padded.resize(content.len().next_multiple_of(512), 0);
    padded
}

#[test]
fn members_are_where_the_tar_crate_put_them() {
    let long = format!("{}/x.jpg", "d".repeat(300));
    let bytes = archive(&[
        ("a/b.jpg", b"one"),
        (&long, &[7; 5000]),
        ("empty", b""),
        ("c", &[1; 512]),
    ]);
    let members = read(&bytes).unwrap();
    let names: Vec<_> = members
        .iter()
        .map(|m| String::from_utf8(m.name.clone()).unwrap())
        .collect();
    assert_eq!(names, ["a/b.jpg", &long, "empty", "c"]);
    for (member, content) in members
        .iter()
        .zip([&b"one"[..], &[7; 5000], b"", &[1; 512]])
    {
        assert_eq!(member.kind, TarKind::File);
        assert_eq!(
            bytes[member.data as usize..(member.data + member.size) as usize],
            *content
        );
    }
}

#[test]
fn pax_names_and_sizes_are_used() {
    let records: Vec<u8> = [
        ("path", "d\u{fc}r/a very long.jpg"),
        ("mtime", "1234567.89"),
        ("size", "3"),
    ]
    .iter()
    .flat_map(|(key, value)| {
        // Two digits, a space, an equals sign and a newline.
        let len = key.len() + value.len() + 5;
        format!("{len:02} {key}={value}\n").into_bytes()
    })
    .collect();
    let mut bytes = header(b"ignored", b'x', records.len() as u64).to_vec();
    bytes.extend(padded(&records));
    bytes.extend(header(b"short", b'0', 0));
    bytes.extend(padded(b"abc"));
    bytes.extend([0; 1024]);
    let members = read(&bytes).unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].name, "dür/a very long.jpg".as_bytes());
    assert_eq!(members[0].size, 3);
}

#[test]
fn links_devices_and_prefixes_are_parsed() {
    let mut bytes = Vec::new();
    for (kind, name) in [
        (b'1', b"hard"),
        (b'2', b"soft"),
        (b'3', b"char"),
        (b'6', b"pipe"),
        (b'5', b"dirs"),
    ] {
        bytes.extend(header(name, kind, 0));
    }
    let mut block = header(b"name.jpg", b'0', 0);
    block[345..351].copy_from_slice(b"prefix");
    seal(&mut block);
    bytes.extend(block);
    bytes.extend([0; 1024]);
    let members = read(&bytes).unwrap();
    let kinds: Vec<_> = members.iter().map(|m| m.kind).collect();
    use TarKind::*;
    assert_eq!(kinds, [Link, Link, Special, Special, Directory, File]);
    assert_eq!(members[5].name, b"prefix/name.jpg");
}

#[test]
fn invalid_headers_are_refused_with_their_offset() {
    let whole = archive(&[("a", &[1; 600]), ("b", &[2; 600])]);
    // A damaged first header, a truncated second header, and truncated data.
    let mut damaged = whole.clone();
    damaged[3] ^= 1;
    assert_eq!(read(&damaged).unwrap_err().offset, 0);
    assert_eq!(read(&whole[..1536 + 100]).unwrap_err().offset, 1536);
    assert_eq!(read(&whole[..1536 + 512 + 599]).unwrap_err().offset, 1536);
    // Sizes that overflow, and extension headers that would exhaust the memory.
    for (kind, size) in [
        (b'0', u64::MAX >> 31),
        (b'L', 1 << 30),
        (b'x', 1 << 30),
        (b'1', 5),
    ] {
        assert!(read(&header(b"a", kind, size)).is_err(), "{kind}");
    }
    let mut block = header(b"a", b'0', 0);
    block[124..136].copy_from_slice(&[0xff; 12]);
    seal(&mut block);
    assert!(read(&block).is_err());
    let mut pax = header(b"a", b'x', 10).to_vec();
    pax.extend(padded(b"99 size=1\n"));
    assert!(read(&pax).is_err());
}

#[test]
fn damaged_archives_are_refused_or_read() {
    let long = format!("{}/x.jpg", "d".repeat(120));
    let whole = archive(&[("a/b.jpg", b"one"), (&long, &[7; 50])]);
    for end in 0..whole.len() {
        if let Ok(members) = read(&whole[..end]) {
            assert!(members.iter().all(|m| m.data + m.size <= end as u64));
        }
    }
    let mut damaged = whole.clone();
    for at in 0..2048.min(whole.len()) {
        for flip in [0x01, 0x80, 0xff] {
            damaged[at] ^= flip;
            let mut bytes = damaged.clone();
            // Correct the checksums, so that the parsing code after the check is reached.
            for start in (0..bytes.len() - 512).step_by(512) {
                if bytes[start + 257..start + 262] == *b"ustar" {
                    let mut block: [u8; 512] = bytes[start..start + 512].try_into().unwrap();
                    seal(&mut block);
                    bytes[start..start + 512].copy_from_slice(&block);
                }
            }
            if let Ok(members) = read(&bytes) {
                assert!(
                    members
                        .iter()
                        .all(|m| m.data + m.size <= bytes.len() as u64)
                );
            }
            damaged[at] ^= flip;
        }
    }
}

/// Returns the names of the members, the offset of bytes behind the end mark, and whether there was an end mark.
fn names_and_rest(bytes: &[u8]) -> (Vec<String>, Option<u64>, bool) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let file = ArchiveFile::Local(Arc::new(file), bytes.len() as u64);
    let mut stream = Stream::new(file, ArchiveKind::Tar).unwrap();
    let mut reader = TarReader::new(0, None);
    let mut names = Vec::new();
    while let Some(member) = reader.next(&mut stream).unwrap() {
        names.push(String::from_utf8(member.name).unwrap());
    }
    (names, reader.behind_end, reader.ended)
}

#[test]
fn archives_behind_an_end_mark_are_read_on() {
    let (one, two) = (archive(&[("a", b"1")]), archive(&[("b", b"2"), ("c", b"")]));
    let names = |found: &[&str]| found.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let joined = [&one[..], &[0; 20 * 512], &two, &one].concat();
    let all = names(&["a", "b", "c", "a"]);
    assert_eq!(names_and_rest(&joined), (all, None, true));
    // The last archive may lack its end mark.
    let mut cut = [&one[..], &two].concat();
    cut.truncate(cut.len() - 1024);
    assert_eq!(names_and_rest(&cut), (names(&["a", "b", "c"]), None, false));
    for (tail, at) in [
        (&b"PK\x03\x04"[..], 0),
        (&[&[0; 700][..], &[1; 512]].concat(), 700),
    ] {
        let (found, behind, _) = names_and_rest(&[&one[..], tail].concat());
        assert_eq!(found, names(&["a"]));
        assert_eq!(behind, Some(one.len() as u64 + at));
    }
    // Zeros that do not fill a block are padding.
    let padded = [&one[..], &[0; 100]].concat();
    assert_eq!(names_and_rest(&padded), (names(&["a"]), None, true));
}

#[test]
fn an_extension_counts_for_its_own_archive_only() {
    let mut bytes = header(b"ignored", b'L', 4).to_vec();
    bytes.extend(padded(b"name"));
    bytes.extend([0; 1024]);
    bytes.extend(archive(&[("a", b"1")]));
    let error = read(&bytes).unwrap_err();
    assert!(error.what.contains("after an extension header"), "{error}");
}
