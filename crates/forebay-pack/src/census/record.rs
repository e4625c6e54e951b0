//! The census as parts share it: it is taken once, and stored beside the plan.
//!
//! A record has the lists of files with their sizes, and the classes, boxes and columns of labels. A part reads it instead of
//! listing the source, so it compares the inputs of the census with its own ([`Inputs`]), and looks at the files that it packs.

use super::{Census, SplitCensus, UNLABELLED};
use crate::error::{Error, Result};
use crate::options::PackOptions;
use forebay_formats::ClassList;
use forebay_formats::FindingList;
use forebay_formats::images::{ExtraFeatures, ObjectList, SourceLayout, StoredArchive};
use forebay_formats::key_path::{is_below, is_split_name};
use forebay_formats::option_names::OVERWRITE;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Incremented when older records can no longer be read.
const VERSION: u32 = 1;
/// Maximum size of a record that is read, stored and decoded.
pub(crate) const MAX_BYTES: u64 = 2 << 30;
const DECODED_MAX_BYTES: u64 = 16 << 30;
/// The start of the file names of records.
const PREFIX: &str = "census-";

/// The options from which a census was taken and that no argument of the plan contains, by name. Of a file this is a hash
/// of its content, because machines may see it under different paths.
pub(crate) type Inputs = BTreeMap<String, String>;

/// A recorded census as it is decoded. It is encoded as the same tuple of references.
type Fields = (
    SourceLayout,
    ClassList,
    ExtraFeatures,
    Vec<StoredArchive<ObjectList>>,
    Vec<SplitCensus>,
);

/// Returns the inputs of the census that these options ask for.
pub(crate) fn inputs(options: &PackOptions) -> Result<Inputs> {
    let mut inputs = Inputs::new();
    if options.src.is_remote() {
        inputs.insert("source".into(), options.src.to_string());
    }
    if let Some(layout) = options.layout {
        inputs.insert("layout".into(), layout.name().into());
    }
    for (name, path) in [("classes", &options.classes), ("labels", &options.labels)] {
        if let Some(path) = path {
            let hash = hash_of(path).map_err(|error| Error::io(path, "read", error))?;
            inputs.insert(name.into(), format!("a file with the hash {hash}"));
        }
    }
    Ok(inputs)
}

fn hash_of(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// A recorded census: its content, and the hash that names it.
pub(crate) struct CensusRecord {
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: String,
}

impl CensusRecord {
    fn new(bytes: Vec<u8>) -> Self {
        let name = blake3::hash(&bytes).to_hex()[..32].to_owned();
        Self { bytes, name }
    }

    /// Returns the file name of the record with this name.
    pub(crate) fn file_name(name: &str) -> String {
        format!("{PREFIX}{name}")
    }

    /// Returns whether a file name is that of a record.
    pub(crate) fn is_file_name(file: &str) -> bool {
        file.strip_prefix(PREFIX).is_some_and(Self::is_name)
    }

    /// Returns whether a text has the form of a name; it becomes a part of a path.
    pub(crate) fn is_name(name: &str) -> bool {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        name.len() == 32 && name.bytes().all(is_digit)
    }

    /// Encodes a census.
    pub(crate) fn encode(census: &Census) -> Result<Self> {
        let archives = census.archives.iter();
        let archives: Vec<_> = archives.map(|found| found.to_stored(&census.src)).collect();
        let fields = (
            census.layout,
            &census.classes,
            &*census.extra_features,
            archives,
            &census.splits,
        );
        let encode = || -> io::Result<Vec<u8>> {
            let mut encoder = zstd::Encoder::new(Vec::new(), 3)?;
            postcard::to_io(&(VERSION, fields), &mut encoder).map_err(io::Error::other)?;
            encoder.finish()
        };
        let bytes = encode().map_err(|error| Error::io(&census.src, "encode the census of", error));
        bytes.map(Self::new)
    }

    /// Decodes a census whose record has the given name. `place` is for errors.
    pub(crate) fn decode(
        bytes: &[u8],
        name: &str,
        place: &Path,
        options: &PackOptions,
        (findings, warnings): (FindingList, Vec<String>),
    ) -> Result<Census> {
        let damaged = || {
            let what = format!(
                "the census of the parts is damaged, or of another version of forebay: record the plan again with {OVERWRITE}"
            );
            Error::destination(place, what)
        };
        if blake3::hash(bytes).to_hex()[..32] != *name {
            return Err(damaged());
        }
        let fields = decoded(bytes).ok_or_else(damaged)?;
        let (layout, classes, extra_features, archives, splits) = fields;
        let src = options.place();
        let archives = StoredArchive::all_in(archives, &options.src, &options.src_store)?;
        let archives = archives.ok_or_else(damaged)?;
        let rows = splits.iter().flat_map(|split| &split.rows).copied();
        let are_sound = extra_features.is_sound(rows)
            && splits
                .iter()
                .all(|split| split.is_sound(&classes, archives.len()));
        if !are_sound {
            return Err(damaged());
        }
        let extra_features = Arc::new(extra_features);
        let splits = splits.into_iter();
        Ok(Census {
            src,
            layout,
            splits: splits
                .map(|split| split.completed(&extra_features))
                .collect(),
            classes,
            findings,
            warnings,
            archives,
            extra_features,
        })
    }
}

/// Decodes the fields; `None` if they are damaged or of another version.
fn decoded(bytes: &[u8]) -> Option<Fields> {
    let decoder = zstd::Decoder::new(bytes).ok()?.take(DECODED_MAX_BYTES);
    // Larger than any text in it.
    let mut scratch = vec![0; 1 << 20];
    let mut reader = BufReader::new(decoder);
    let (version, _) = postcard::from_io::<u32, _>((&mut reader, &mut scratch)).ok()?;
    if version != VERSION {
        return None;
    }
    let (fields, _) = postcard::from_io((reader, &mut scratch)).ok()?;
    Some(fields)
}

impl SplitCensus {
    /// Returns whether a split that was decoded is consistent.
    fn is_sound(&self, classes: &ClassList, archives: usize) -> bool {
        let is_class = |class: u32| (class as usize) < classes.len();
        let files: u64 = self.chunks.iter().map(|chunk| chunk.files()).sum();
        let listed = self.listed_classes.iter();
        is_split_name(&self.name)
            && is_below(&self.dir)
            && self
                .chunks
                .iter()
                .all(|chunk| chunk.is_sound(archives) && chunk.class.is_none_or(is_class))
            && listed.clone().all(|listed| listed.len() as u64 == files)
            && listed
                .flatten()
                .all(|class| *class == UNLABELLED || is_class(*class))
            && (self.rows.is_empty() || self.rows.len() as u64 == files)
    }

    /// Returns the split with the fields that are not encoded.
    fn completed(self, extra_features: &Arc<ExtraFeatures>) -> Self {
        let mut split = Self::new(self.name, self.dir);
        for chunk in self.chunks {
            split.push(chunk);
        }
        split.listed_classes = self.listed_classes;
        split.rows = self.rows;
        split.extra_features = Arc::clone(extra_features);
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::publish::destination::Header;
    use forebay_shard::ExampleBuilder;
    use forebay_store::Cancel;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Options of a source with a file of labels, and of one with boxes.
    fn sources(dir: &Path) -> [PackOptions; 2] {
        let (labelled, boxes, dst) = (dir.join("labelled"), dir.join("boxes"), dir.join("dst"));
        for name in ["a/0.jpg", "a/1.jpg", "b/2.jpg"] {
            put(&labelled, name, name);
        }
        put(&labelled, "b/animation", "GIF89a");
        let lines = "path,class,x,y,z\na/0,dog,0.5,one,1\na/1,cat,1,,2\na/0,cat,2,three,3\nb/2,dog,,four,4\n";
        put(dir, "labels.csv", lines);
        put(&boxes, "LOC_synset_mapping.txt", "n00000001 one, two\n");
        for number in 0..3 {
            let name = format!("train/n00000001/n00000001_{number}");
            put(&boxes, &format!("ILSVRC/Data/CLS-LOC/{name}.JPEG"), &name);
            let xml = "<annotation><size><width>10</width><height>10</height></size><object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object></annotation>";
            put(
                &boxes,
                &format!("ILSVRC/Annotations/CLS-LOC/{name}.xml"),
                xml,
            );
        }
        let mut options = PackOptions::new(labelled.as_path(), dst.as_path());
        options.labels = Some(dir.join("labels.csv"));
        [options, PackOptions::new(boxes.as_path(), dst.as_path())]
    }

    fn decode(bytes: &[u8], options: &PackOptions) -> Result<Census> {
        let record = CensusRecord::new(bytes.to_vec());
        let facts = (FindingList::default(), Vec::new());
        CensusRecord::decode(
            &record.bytes,
            &record.name,
            Path::new("dst"),
            options,
            facts,
        )
    }

    /// Reads everything in a census, and returns the parts of it that a plan depends on.
    fn read(census: &Census, options: &PackOptions) -> Option<(Header, Vec<Vec<u8>>)> {
        let mut records = Vec::new();
        for split in census.splits() {
            for entry in split.iter() {
                let mut example = ExampleBuilder::new();
                entry.extras.add_to(entry.name, 1, &mut example);
                let mut record = entry.key();
                example.encode_into(&mut record);
                records.push(record);
            }
            assert!(split.left_out().count() < 100);
            assert!(split.class_counts().len() < 100);
        }
        let plan = Plan::make(census, options).ok()?;
        Some((Header::new(census, &plan), records))
    }

    #[test]
    fn damaged_records_are_errors_or_consistent() {
        let dir = tempfile::tempdir().unwrap();
        for options in sources(dir.path()) {
            let census = Census::take(&options, &(), &Cancel::new()).unwrap();
            assert!(!census.extra_features.features().is_empty());
            let record = CensusRecord::encode(&census).unwrap();
            let again = decode(&record.bytes, &options).unwrap();
            assert_eq!(read(&again, &options), read(&census, &options));
            let plain = zstd::decode_all(&record.bytes[..]).unwrap();
            let mut state = 1u64;
            let mut random = |below: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as usize % below
            };
            let mut accepted = 0;
            for _ in 0..3000 {
                let mut damaged = plain.clone();
                for _ in 0..=random(3) {
                    let at = random(damaged.len());
                    match random(3) {
                        0 => damaged[at] = random(256) as u8,
                        1 => damaged[at] = damaged[at].wrapping_add(1),
                        _ => damaged.truncate(at + 1),
                    }
                }
                let damaged = zstd::encode_all(&damaged[..], 1).unwrap();
                if let Ok(census) = decode(&damaged, &options) {
                    read(&census, &options);
                    accepted += 1;
                }
            }
            assert!(accepted > 0, "the damage reaches the values");
        }
    }

    #[test]
    fn records_with_paths_outside_of_the_source_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let src = dir.path().join("src");
        put(&src, "class/image.jpg", "x");
        let options = PackOptions::new(src.as_path(), dir.path().join("dst").as_path());
        let census = Census::take(&options, &(), &Cancel::new()).unwrap();
        let record = CensusRecord::encode(&census).unwrap();
        let plain = zstd::decode_all(&record.bytes[..]).unwrap();
        let replaced = |from: &[u8], to: &[u8]| {
            let mut plain = plain.clone();
            let mut places = (0..plain.len()).filter(|at| plain[*at..].starts_with(from));
            let places: Vec<usize> = places.by_ref().collect();
            for at in places {
                plain[at..at + from.len()].copy_from_slice(to);
            }
            decode(&zstd::encode_all(&plain[..], 1).unwrap(), &options)
        };
        assert!(replaced(b"image.jpg", b"imagE.jpg").is_ok());
        for name in [b"../../jpg", b"/mage.jpg", b"a/./a.jpg", b"image.jp\0"] {
            assert!(replaced(b"image.jpg", name).is_err());
        }
    }
}
