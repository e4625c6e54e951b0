//! `forebay bench explain` and `forebay advise`.

use crate::support;

use serde_json::Value;
use support::{run, text};

fn event(stdout: &str, kind: &str) -> Value {
    let mut events = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    let found = events.find(|event| event["type"] == kind);
    found.unwrap_or_else(|| panic!("no event {kind}: {stdout}"))
}

#[test]
fn stages_are_explained_and_remedies_have_prices() {
    let dir = tempfile::tempdir().unwrap();
    let explain = [
        "bench",
        "explain",
        "synthetic://imagenet?records=10&pictures=2&bandwidth=5MB",
        "--consumer",
        "step:1ms",
        "--batch-size",
        "4",
        "--run-time",
        "60ms",
        "--runs",
        "1",
        "--report",
        text(dir.path()),
        "--json",
    ];
    let ran = run(explain).done();
    let rows = event(&ran.stdout, "bench")["rows"].clone();
    let rows = rows.as_array().unwrap();
    assert!(rows.len() >= 5, "{rows:?}");
    assert!(rows.iter().any(|row| row["cache"].is_string()));
    let prices = event(&ran.stdout, "prices");
    assert!(prices["bottleneck"].as_str().unwrap().contains("-bound: "));
    // Which remedies have a price depends on the machine.
    for price in prices["prices"].as_array().expect("prices") {
        let number = |key: &str| price[key].as_f64().expect("a number");
        assert!(number("gain") > 1.0, "{prices}");
        assert!(number("lowest") <= number("gain") && number("gain") <= number("highest"));
        assert!(price["how"].is_string(), "{prices}");
    }
    for file in ["report.json", "report.md", "report.html", "explain-1.svg"] {
        assert!(dir.path().join(file).is_file(), "{file}");
    }
    let source = "synthetic://imagenet?records=60";
    let ran = run(["bench", "explain", source, "--consumer", "sleep"]).code(2);
    assert!(ran.stderr.contains("step:75ms"), "{}", ran.stderr);
    run(["bench", "explain", "/no/such/dataset"]).code(1);
}

/// Explains a small generated dataset with this consumer.
fn explain(consumer: &str, more: &[&str]) -> support::Ran {
    let source = "synthetic://imagenet?records=10&pictures=2&bandwidth=5MB";
    let mut line = vec!["bench", "explain", source, "--consumer", consumer];
    line.extend(["--batch-size", "4", "--run-time", "20ms", "--runs", "1"]);
    line.extend(more);
    run(line)
}

#[test]
fn recorded_step_times_are_waited() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steps");
    let consumer = format!("recorded:{}", text(&file));
    std::fs::write(&file, "0.001\n\n0.003\n0.002\n").unwrap();
    let ran = explain(&consumer, &[]).done();
    assert!(
        ran.stdout.contains("2.0ms (median of 3 recorded steps)"),
        "{}",
        ran.stdout
    );
    for (content, why) in [
        ("", "it has no numbers"),
        ("0.1\nfast\n", "line 2: invalid number \"fast\""),
        ("0.1\n-1\n", "step 2 takes -1 s"),
        ("[0.1, 1e300]", "step 2 takes 1"),
        ("nan", "step 1 takes NaN s"),
        ("{\"steps\": []}", "cannot read step times"),
    ] {
        std::fs::write(&file, content).unwrap();
        let ran = explain(&consumer, &[]).code(1);
        assert!(ran.stderr.contains(why), "{content:?}: {}", ran.stderr);
    }
    std::fs::remove_file(&file).unwrap();
    assert!(explain(&consumer, &[]).code(1).stderr.contains("steps)"));
    assert!(
        explain("torch:alexnet", &[])
            .code(2)
            .stderr
            .contains("torch:resnet50")
    );
}

#[cfg(unix)]
#[test]
fn steps_of_a_training_are_recorded_in_another_process() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("python");
    let with = |script: &str| {
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        explain("torch:resnet18", &["--python", text(&program)])
    };
    // -c, the script, and its arguments.
    let line =
        r#"{"step_s": [0.002, 0.004, 0.003], "torch": "2.0", "device": "cpu", "threads": 2}"#;
    let ran = with(&format!(
        "[ \"$1 $3 $4 $5\" = \"-c resnet18 4 5\" ] || exit 9\necho a library says hello\necho '{line}'"
    ));
    let ran = ran.done();
    assert!(
        ran.stdout.contains("3.0ms (median of 3 recorded steps)"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("training resnet18"), "{}", ran.stderr);
    for (script, why) in [
        (
            "echo \"No module named 'torch'; pip install torch torchvision\" >&2; exit 1",
            "pip install torch torchvision",
        ),
        ("exit 7", "exit status: 7"),
        ("echo ready", "invalid output of the program"),
        (
            "echo '{\"step_s\": [], \"torch\": \"2\", \"device\": \"cpu\", \"threads\": 1}'",
            "no steps were run",
        ),
    ] {
        let ran = with(script).code(1);
        assert!(ran.stderr.contains(why), "{script}: {}", ran.stderr);
    }
    let missing = explain("torch:resnet50", &["--python", "/no/such/python"]).code(1);
    assert!(
        missing.stderr.contains("the interpreter does not exist"),
        "{}",
        missing.stderr
    );
}

#[test]
fn advice_has_its_arithmetic() {
    let source = "synthetic://imagenet?records=600&pictures=2";
    let quick = ["--run-time", "50ms", "--json"];
    let asked = [
        "advise",
        source,
        "--gpus",
        "8",
        "--model",
        "v100-resnet50-fp16",
    ];
    let ran = run(asked.into_iter().chain(quick)).done();
    let advice = event(&ran.stdout, "advice");
    assert_eq!(advice["demand"].as_f64(), Some(256.0 / 0.183 * 8.0));
    let texts = advice["advice"].to_string();
    assert!(
        texts.contains("8 GPUs x 1399 images/s = 11191 images/s"),
        "{texts}"
    );
    let ran = run(["advise", source, "--model", "v100"]).code(2);
    assert!(ran.stderr.contains("kth-alexnet"), "{}", ran.stderr);
    run(["advise", source, "--images-per-second", "-1"]).code(2);
}
