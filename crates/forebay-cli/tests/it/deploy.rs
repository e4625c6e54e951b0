//! The files in `deploy/` use flags, keys of CONFIG.toml and endpoints that the program knows.

use crate::support;

use std::path::Path;

use support::{images, run, text};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Returns the flags of a line that calls the program.
fn flags(line: &str) -> Vec<String> {
    let words = line.split(|c: char| c.is_whitespace() || "\"[],".contains(c));
    let words = words.filter(|word| !word.is_empty());
    words
        .skip_while(|word| *word != "serve")
        .filter(|word| word.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn flags_exist() {
    let help = run(["serve", "--help"]).done().stdout;
    let mut seen = 0;
    for name in ["forebay.service", "Dockerfile", "kubernetes.yaml"] {
        for line in read(name)
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
        {
            for flag in flags(line) {
                assert!(
                    help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")),
                    "{name}: {flag}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen >= 4, "{seen} flags were found");
}

/// Returns the CONFIG.toml in the manifest, with its paths in `root`.
fn config(root: &Path) -> String {
    let manifest = read("kubernetes.yaml");
    let lines = manifest
        .lines()
        .skip_while(|line| !line.ends_with("CONFIG.toml: |"))
        .skip(1);
    let lines = lines.take_while(|line| line.starts_with("    ") || line.is_empty());
    let text: String = lines
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    assert!(text.contains("[jobs.resnet50]"), "{text}");
    text.replace("/etc/forebay/tls/", text_of(root, "tls-"))
        .replace("/etc/forebay/tokens/", text_of(root, ""))
        .replace("/data/imagenet", text_of(root, "shards"))
        .replace("batch_size = 256", "batch_size = 1")
        .replace("0.0.0.0:7070", "127.0.0.1:0")
        .replace("0.0.0.0:7071", "127.0.0.1:0")
        .replace("0.0.0.0:7072", "127.0.0.1:0")
}

fn text_of(root: &Path, name: &str) -> &'static str {
    Box::leak(format!("{}/{name}", root.display()).into_boxed_str())
}

#[test]
fn the_configuration_of_the_manifest_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let shards = root.join("shards");
    run([
        "pack",
        text(&images()),
        text(&shards),
        "--format",
        "indexed",
    ])
    .done();
    let certified = rcgen::generate_simple_self_signed(vec!["forebay".to_owned()]).unwrap();
    std::fs::write(root.join("tls-tls.crt"), certified.cert.pem()).unwrap();
    std::fs::write(
        root.join("tls-tls.key"),
        certified.signing_key.serialize_pem(),
    )
    .unwrap();
    std::fs::write(root.join("tokens"), "0123456789abcdef\n").unwrap();
    let file = root.join("CONFIG.toml");
    std::fs::write(&file, config(root)).unwrap();
    let ran = run(["serve", text(&file), "--check"]).done();
    for part in [
        "forebays://",
        "/imagenet",
        "/resnet50",
        "TLS 1.3",
        "tokens of",
    ] {
        assert!(ran.stdout.contains(part), "no {part}:\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("0123456789abcdef"));
}

#[test]
fn containers_do_not_run_as_root() {
    let dockerfile = read("Dockerfile");
    let last_user = dockerfile.lines().rfind(|line| line.starts_with("USER "));
    assert!(last_user.is_some_and(|line| line != "USER root" && line != "USER 0"));
    let manifest = read("kubernetes.yaml");
    assert!(manifest.contains("runAsNonRoot: true"));
}

#[test]
fn probes_ask_the_health_listener() {
    let manifest = read("kubernetes.yaml");
    let has = |line: &str| manifest.lines().any(|found| found.trim() == line);
    assert!(has("health_listen = \"0.0.0.0:7072\""));
    assert!(has("- {name: health, containerPort: 7072}"));
    let probes: Vec<&str> = manifest
        .lines()
        .filter(|line| line.contains("httpGet:"))
        .collect();
    assert_eq!(probes.len(), 2, "{probes:?}");
    for probe in probes {
        assert!(probe.contains("port: health"), "{probe}");
    }
}
