//! The files in `deploy/` use flags, variables, keys of CONFIG.toml and endpoints that the program knows. The schemas of
//! Kubernetes are compared in `forebay-python/tests/test_deploy.py`.

use crate::support;

use std::path::{Path, PathBuf};

use support::{images, run, text};

/// The files that use the flags of `serve`, and those that use the flags of `pack`.
const COMMANDS: [(&str, &[&str]); 2] = [
    (
        "serve",
        &[
            "forebay.service",
            "Dockerfile",
            "kubernetes/base/deployment.yaml",
            "kubernetes/components/tls/kustomization.yaml",
        ],
    ),
    (
        "pack",
        &[
            "kubernetes/pack/kustomization.yaml",
            "kubernetes/pack/plan.yaml",
            "kubernetes/pack/parts.yaml",
            "kubernetes/pack/finish.yaml",
        ],
    ),
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(name)
}

/// Returns a file without the lines that are comments.
fn read(name: &str) -> String {
    let file = std::fs::read_to_string(path(name)).unwrap();
    let lines = file
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the flags in a file, with their values. Lines of the Dockerfile that build the image are left out: they call other
/// programs.
fn flags(name: &str) -> Vec<String> {
    let file = read(name);
    let lines = file.lines().filter(|line| {
        !["RUN ", "COPY ", "    &&"]
            .iter()
            .any(|start| line.starts_with(start))
    });
    let words =
        lines.flat_map(|line| line.split(|c: char| c.is_whitespace() || "\"[],{}".contains(c)));
    words
        .filter_map(|word| {
            word.find("--")
                .filter(|at| *at == 0 || word[..*at].ends_with('='))
                .map(|at| &word[at..])
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn flags_exist() {
    for (command, files) in COMMANDS {
        let help = run([command, "--help"]).done().stdout;
        let mut seen = 0;
        for name in files {
            for flag in flags(name) {
                let flag = flag.split('=').next().unwrap();
                assert!(
                    help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")),
                    "{name}: {flag}"
                );
                seen += 1;
            }
        }
        assert!(seen >= 5, "{seen} flags of {command} were found");
    }
}

#[test]
fn variables_exist() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/environment.md");
    let page = std::fs::read_to_string(page).unwrap();
    for name in ["base/deployment.yaml", "overlays/bucket/store.yaml"] {
        let file = read(&format!("kubernetes/{name}"));
        let names: Vec<&str> = file
            .split(|c: char| !c.is_ascii_uppercase() && c != '_')
            .filter(|word| word.starts_with("FOREBAY_"))
            .collect();
        assert!(!names.is_empty(), "{name}");
        for variable in names {
            assert!(page.contains(&format!("| `{variable}` |")), "{variable}");
        }
    }
}

#[test]
fn configurations_of_the_overlays_are_valid() {
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
    std::fs::write(root.join("tls.crt"), certified.cert.pem()).unwrap();
    std::fs::write(root.join("tls.key"), certified.signing_key.serialize_pem()).unwrap();
    std::fs::write(root.join("tokens"), "0123456789abcdef\n").unwrap();
    // The flags of the component, with the secrets in `root`.
    let security: Vec<String> = flags("kubernetes/components/tls/kustomization.yaml")
        .iter()
        .map(|flag| {
            let (flag, file) = flag.split_once('=').unwrap();
            let file = Path::new(file).file_name().unwrap();
            format!("{flag}={}", text(&root.join(file)))
        })
        .collect();
    for (overlay, location) in [
        ("shared-directory", "/data/imagenet"),
        ("bucket", "s3://bucket/imagenet"),
    ] {
        let config = read(&format!("kubernetes/overlays/{overlay}/CONFIG.toml"));
        assert!(config.contains(location), "{config}");
        let config = config
            .replace(location, text(&shards))
            .replace("batch_size = 256", "batch_size = 1");
        let config = ["0.0.0.0:7070", "0.0.0.0:7071", "0.0.0.0:7072"]
            .iter()
            .fold(config, |config, address| {
                config.replace(address, "127.0.0.1:0")
            });
        let file = root.join("CONFIG.toml");
        std::fs::write(&file, config).unwrap();
        let mut arguments = vec!["serve", text(&file), "--dry-run"];
        arguments.extend(security.iter().map(String::as_str));
        let ran = run(arguments).done();
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
}

#[test]
fn containers_do_not_run_as_root() {
    let dockerfile = read("Dockerfile");
    let last_user = dockerfile.lines().rfind(|line| line.starts_with("USER "));
    assert!(last_user.is_some_and(|line| line != "USER root" && line != "USER 0"));
    for name in ["base/deployment.yaml", "pack/pod.yaml"] {
        assert!(read(&format!("kubernetes/{name}")).contains("runAsNonRoot: true"));
    }
}

#[test]
fn the_image_has_the_version_of_the_program() {
    let component = read("kubernetes/components/image/kustomization.yaml");
    let tag = concat!("newTag: ", env!("CARGO_PKG_VERSION"));
    assert!(
        component.lines().any(|line| line.trim() == tag),
        "{component}"
    );
}

#[test]
fn probes_ask_the_health_listener() {
    let deployment = read("kubernetes/base/deployment.yaml");
    let has = |line: &str| deployment.lines().any(|found| found.trim() == line);
    assert!(has("- {name: health, containerPort: 7072}"));
    let probes: Vec<&str> = deployment
        .lines()
        .filter(|line| line.contains("httpGet:"))
        .collect();
    assert_eq!(probes.len(), 3, "{probes:?}");
    for probe in probes {
        assert!(probe.contains("port: health"), "{probe}");
        assert!(
            probe.contains("/healthz") || probe.contains("/readyz"),
            "{probe}"
        );
    }
}
