//! The generated code in the repository is what the `.proto` files give: the messages of this crate, and
//! `tensorflow.Example`, with which tests of forebay-shard compare its own reader and writer.

use std::path::Path;

const AGAIN: &str =
    "run FOREBAY_REGENERATE=1 cargo test -p forebay-wire --features generate generated";

/// FNV-1a of the `.proto` files.
fn sources() -> String {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let files = ["example.proto", "wire.proto"]
        .map(|name| std::fs::read(proto.join(name)).expect("a .proto file"));
    let hash = files
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{hash:016x}\n")
}

#[test]
fn generated_code_is_of_these_files() {
    let kept = include_str!("../../src/wire/generated/sources.fnv");
    assert_eq!(kept, sources(), "the .proto files changed: {AGAIN}");
}

#[cfg(feature = "generate")]
#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("../../proto");
    let files = protox::compile(["example.proto", "wire.proto"], [&proto]).expect("valid protos");
    let out = tempfile::tempdir().expect("a temporary directory");
    prost_build::Config::new()
        .btree_map(["."])
        .bytes(["."])
        // Has a token, which must not be printed.
        .skip_debug([".forebay.wire.v2.Hello"])
        .out_dir(out.path())
        .compile_fds(files)
        .expect("code generation");
    std::fs::write(out.path().join("sources.fnv"), sources()).expect("writing a file");
    for kept in [
        "src/wire/generated/forebay.wire.v2.rs",
        "src/wire/generated/sources.fnv",
        "../forebay-shard/tests/generated/tensorflow.rs",
    ] {
        let kept = root.join(kept);
        let name = kept.file_name().expect("the name of a file");
        let made = std::fs::read_to_string(out.path().join(name)).expect("generated file");
        if std::env::var_os("FOREBAY_REGENERATE").is_some() {
            std::fs::write(&kept, &made).expect("writing the generated file");
        }
        let found = std::fs::read_to_string(&kept).unwrap_or_default();
        assert!(
            made == found,
            "{} is not what the .proto files give: {AGAIN}",
            kept.display()
        );
    }
}
