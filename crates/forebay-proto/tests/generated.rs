//! The generated code in the repository is what the `.proto` files give.

use std::path::Path;

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("proto");
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
    let kept = root.join("src/generated");
    for name in ["tensorflow.rs", "forebay.wire.v2.rs"] {
        let made = std::fs::read_to_string(out.path().join(name)).expect("generated file");
        if std::env::var_os("FOREBAY_REGENERATE").is_some() {
            std::fs::write(kept.join(name), &made).expect("writing the generated file");
        }
        let found = std::fs::read_to_string(kept.join(name)).unwrap_or_default();
        assert!(
            made == found,
            "{name} is not what the .proto files give: run FOREBAY_REGENERATE=1 cargo test -p forebay-proto"
        );
    }
}
