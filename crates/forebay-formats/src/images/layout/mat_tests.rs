use super::*;
use flate2::write::ZlibEncoder;
use std::io::Write;

/// Created by SciPy (tools/golden/make_test_meta.py), compressed and uncompressed.
const COMPRESSED: &[u8] = include_bytes!("../../../../../testdata/meta-scipy/meta.mat");
const PLAIN: &[u8] = include_bytes!("../../../../../testdata/meta-scipy/meta-plain.mat");

#[test]
fn files_written_by_scipy_are_read() {
    for file in [COMPRESSED, PLAIN] {
        let found: Vec<_> = synsets(file)
            .unwrap()
            .into_iter()
            .map(|s| (s.id, s.wnid, s.words))
            .collect();
        let expected = [
            (1, "n09428293", "seashore, coast, seacoast, sea-coast"),
            (2, "n02782093", "balloon"),
            (3, "n07747607", "orange"),
            (4, "n11939491", "daisy"),
            (5, "n09332890", "lakeside, lakeshore"),
            (6, "n09193705", "alp"),
            (1001, "n00001740", "entity"),
        ];
        assert_eq!(
            found,
            expected.map(|(id, wnid, words)| (id, wnid.to_owned(), words.to_owned()))
        );
    }
}

/// Writes elements in either byte order.
struct Writer {
    big: bool,
}

impl Writer {
    fn u32(&self, value: u32) -> [u8; 4] {
        if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    fn element(&self, kind: u32, content: &[u8]) -> Vec<u8> {
        let mut out = self.u32(kind).to_vec();
        out.extend(self.u32(content.len() as u32));
        out.extend(content);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    fn matrix(&self, class: u32, count: u32, name: &str, rest: &[u8]) -> Vec<u8> {
        let mut content = self.element(6, &[self.u32(class), [0; 4]].concat());
        content.extend(self.element(5, &[self.u32(count), self.u32(1)].concat()));
        content.extend(self.element(1, name.as_bytes()));
        content.extend(rest);
        self.element(14, &content)
    }

    fn file(&self, elements: &[u8]) -> Vec<u8> {
        let mut file = vec![b' '; 124];
        file.extend(if self.big { [1, 0] } else { [0, 1] });
        file.extend(if self.big { b"MI" } else { b"IM" });
        file.extend(elements);
        file
    }

    fn synset(&self, id: &[u8], kind: u32, wnid: &str, words: &str) -> Vec<u8> {
        let units: Vec<u8> = words
            .encode_utf16()
            .flat_map(|unit| {
                if self.big {
                    unit.to_be_bytes()
                } else {
                    unit.to_le_bytes()
                }
            })
            .collect();
        [
            self.matrix(6, 1, "", &self.element(kind, id)),
            self.matrix(4, 9, "", &self.element(16, wnid.as_bytes())),
            self.matrix(4, words.len() as u32, "", &self.element(17, &units)),
        ]
        .concat()
    }

    fn synsets(&self) -> Vec<u8> {
        let mut rest = self.element(5, &self.u32(16));
        let names: Vec<u8> = ["ILSVRC2012_ID", "WNID", "words"]
            .iter()
            .flat_map(|name| {
                let mut field = name.as_bytes().to_vec();
                field.resize(16, 0);
                field
            })
            .collect();
        rest.extend(self.element(1, &names));
        rest.extend(self.synset(&[7], 2, "n00000007", "seven, \u{fc}"));
        let double = if self.big {
            300f64.to_be_bytes()
        } else {
            300f64.to_le_bytes()
        };
        rest.extend(self.synset(&double, 9, "n00000300", ""));
        self.matrix(2, 2, "synsets", &rest)
    }
}

#[test]
fn either_byte_order_and_any_number_type_is_read() {
    for big in [false, true] {
        let writer = Writer { big };
        let found = synsets(&writer.file(&writer.synsets())).unwrap();
        let ids: Vec<_> = found
            .iter()
            .map(|s| (s.id, s.wnid.as_str(), s.words.as_str()))
            .collect();
        assert_eq!(
            ids,
            [(7, "n00000007", "seven, \u{fc}"), (300, "n00000300", "")]
        );
    }
}

#[test]
fn small_files_do_not_expand_without_bound() {
    let writer = Writer { big: false };
    // A count without values, a decompression bomb, and endless nesting.
    let mut rest = writer.element(5, &writer.u32(8));
    rest.extend(writer.element(1, b"a\0\0\0\0\0\0\0"));
    let huge = writer.matrix(2, u32::MAX, "synsets", &rest);
    assert!(
        synsets(&writer.file(&huge))
            .unwrap_err()
            .contains("cut short")
    );
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; 64 << 20]).unwrap();
    let bomb = writer.element(15, &encoder.finish().unwrap());
    assert!(
        synsets(&writer.file(&bomb))
            .unwrap_err()
            .contains("more than")
    );
    let mut names = writer.element(5, &writer.u32(1));
    names.extend(writer.element(1, &[b'a'; 1 << 20]));
    let wide = writer.matrix(2, 0, "synsets", &names);
    assert!(
        synsets(&writer.file(&wide))
            .unwrap_err()
            .contains("1048576 fields")
    );
    let mut nested = Vec::new();
    for _ in 0..100 {
        nested = writer.matrix(2, 1, "synsets", &[rest.clone(), nested].concat());
    }
    assert!(
        synsets(&writer.file(&nested))
            .unwrap_err()
            .contains("too deep")
    );
    assert!(synsets(b"").is_err());
    assert!(synsets(&writer.file(b"")).unwrap_err().contains("synsets"));
}

#[test]
fn damaged_files_do_not_panic() {
    let writer = Writer { big: false };
    let by_hand = writer.file(&writer.synsets());
    for file in [PLAIN, COMPRESSED, &by_hand] {
        for end in 0..file.len() {
            let _ = synsets(&file[..end]);
        }
        let mut damaged = file.to_vec();
        for at in 0..file.len() {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                damaged[at] ^= flip;
                let _ = synsets(&damaged);
                damaged[at] ^= flip;
            }
        }
    }
}
