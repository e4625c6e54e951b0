//! Runs the scripts of docs/how-to/slurm.md and of deploy/kubernetes/pack unchanged: with a `sbatch` that runs its jobs at once,
//! and without Kubernetes.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{images, run, text, tree};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/slurm.md");
const JOBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/pack");

/// Runs its script, one array task after the other, and prints a number as the job id.
const SBATCH: &str = r#"#!/bin/bash
set -euo pipefail
script= wrap= array=
for arg in "$@"; do
    case "$arg" in
    --wrap=*) wrap=${arg#--wrap=} ;;
    --dependency=afterok:*) [ -e "$JOBS/${arg#--dependency=afterok:}.ok" ] ;;
    --array=*) array=${arg#--array=} ;;
    --*) ;;
    *) script=$arg ;;
    esac
done
id=$(($(ls "$JOBS" | wc -l) + 1))
if [ -n "$wrap" ]; then
    bash -c "$wrap" >&2
else
    [ -n "$array" ] || array=$(sed -n 's/^#SBATCH --array=//p' "$script")
    for task in $(seq "${array%-*}" "${array#*-}"); do
        SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_PER_TASK=1 bash "$script" >&2
    done
fi
touch "$JOBS/$id.ok"
echo "$id"
"#;

/// Returns the scripts on the page, in order.
fn scripts() -> Vec<String> {
    let page = fs::read_to_string(PAGE).unwrap();
    let blocks = page.split("```bash\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

/// Returns the shell script in the `args` of a manifest.
fn script_of(manifest: &str) -> String {
    let (_, rest) = manifest.split_once("- |\n").unwrap();
    let indent = rest.len() - rest.trim_start().len();
    let lines = rest
        .lines()
        .take_while(|line| line.len() - line.trim_start().len() >= indent);
    lines.map(|line| format!("{}\n", &line[indent..])).collect()
}

/// Returns a shell that finds the command under test as `forebay`, without the variables of a cluster that this machine may be
/// in.
fn shell(bin: &Path) -> Command {
    let mut command = Command::new("bash");
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", text(bin)));
    command.env_remove("RANK").env_remove("WORLD_SIZE");
    command
}

fn executable(path: PathBuf, content: &str) {
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates a directory with the commands `forebay` and `sbatch`.
fn commands(root: &Path) -> PathBuf {
    let bin = root.join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), bin.join("forebay")).unwrap();
    executable(bin.join("sbatch"), SBATCH);
    bin
}

fn whole(root: &Path) -> PathBuf {
    let whole = root.join("whole");
    run([
        "pack",
        text(&images()),
        text(&whole),
        "--format",
        "tfrecord",
    ])
    .done();
    whole
}

#[test]
fn the_slurm_scripts_pack_a_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let bin = commands(dir.path());
    let scripts = scripts();
    let find = |word: &str| scripts.iter().find(|script| script.contains(word)).unwrap();
    fs::write(dir.path().join("pack.sbatch"), find("#SBATCH --array")).unwrap();
    fs::create_dir(dir.path().join("jobs")).unwrap();
    let dst = dir.path().join("dst");
    let output = shell(&bin)
        .arg("-c")
        .arg(find("afterok"))
        .current_dir(dir.path())
        .env("JOBS", dir.path().join("jobs"))
        .env("SRC", images())
        .env("DST", &dst)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n", "{stderr}");
    assert_eq!(tree(&whole(dir.path())), tree(&dst));
}

#[test]
fn the_kubernetes_jobs_pack_a_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let bin = commands(dir.path());
    let [plan, parts, finish, settings] = ["plan", "parts", "finish", "kustomization"]
        .map(|name| fs::read_to_string(format!("{JOBS}/{name}.yaml")).unwrap());
    let options = settings
        .lines()
        .find_map(|line| line.trim().strip_prefix("- OPTIONS="));
    let dst = dir.path().join("dst");
    let pod = |manifest: &str, index: Option<u32>| {
        let mut shell = shell(&bin);
        shell.arg("-c").arg(script_of(manifest));
        shell
            .env("SRC", images())
            .env("DST", &dst)
            .env("OPTIONS", options.unwrap())
            .env("PARTS", "16");
        if let Some(index) = index {
            shell.env("JOB_COMPLETION_INDEX", index.to_string());
        }
        let output = shell.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let completions: u32 = parts
        .lines()
        .find_map(|line| line.trim().strip_prefix("completions: "))
        .unwrap()
        .parse()
        .unwrap();
    assert!(parts.contains(&format!("{{name: PARTS, value: \"{completions}\"}}")));
    let (code, stderr) = pod(&plan, None);
    assert_eq!(code, Some(0), "{stderr}");
    // A finish before all parts are done reports what is missing.
    let (code, stderr) = pod(&finish, None);
    assert_eq!(code, Some(1), "{stderr}");
    for index in (0..completions).rev() {
        let (code, stderr) = pod(&parts, Some(index));
        assert_eq!(code, Some(0), "{index}: {stderr}");
    }
    let (code, stderr) = pod(&finish, None);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(tree(&whole(dir.path())), tree(&dst));
}

#[test]
fn files_that_parts_leave_out_are_reported_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for (path, bytes) in tree(&images()) {
        let to = src.join(path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    let class = fs::read_dir(src.join("train"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(class.join("bad.jpg"), "bad").unwrap();
    let dst = dir.path().join("dst");
    let pack = |step: &[&str], more: &[&str]| {
        let paths = [text(&src), text(&dst)];
        let options = ["--format", "indexed", "--shards", "3", "--json"];
        run([&["pack"], step, &paths, &options, more].concat())
    };
    let plan = pack(&["--plan"], &[]).done().summary();
    assert_eq!(
        (&plan["shards"], &plan["was_there"]),
        (&6.into(), &false.into())
    );
    assert_eq!(pack(&["--plan"], &[]).done().summary()["was_there"], true);
    let skipped: u64 = (1..=2)
        .map(|number| {
            let summary = pack(&["--part", &format!("{number}/2")], &[])
                .done()
                .summary();
            assert_eq!(summary["shards"], 3);
            summary["skipped"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(skipped, 1);
    for (step, more, said) in [
        (&["--part", "0/2"][..], &[][..], "numbered from 1"),
        (&["--part", "1/2"], &["--overwrite"], "--overwrite"),
        (&["--finish", "--part", "1/2"], &[], "--finish"),
        (&["--plan", "--dry-run"], &[], "--dry-run"),
    ] {
        let stderr = pack(step, more).code(2).stderr;
        assert!(stderr.contains(said), "{stderr}");
    }
    pack(&["--finish"], &["--seed", "4"]).failed_with(&["seed: then 0, now 4"]);
    let finished = run(["pack", "--finish", text(&dst), "--json"]);
    assert_eq!(finished.code, 3);
    assert_eq!(finished.summary()["skipped"], 1);
    // Every file is in one record, or reported as left out.
    let verified = run([
        "verify",
        text(&dst),
        "--compare-source",
        text(&src),
        "--json",
    ])
    .done()
    .summary();
    assert_eq!(verified["against"]["left_out"], 1);
    assert_eq!(verified["against"]["verbatim"], verified["records"]);
    fs::write(class.join("new.jpg"), "new").unwrap();
    run(["verify", text(&dst), "--compare-source", text(&src)]).failed_with(&["1 missing"]);
    assert!(
        run(["verify", text(&dst), "--compare-source", text(&src)])
            .stdout
            .contains("new.jpg")
    );
    let two = run([
        "verify",
        text(&dst),
        text(&dst),
        "--compare-source",
        text(&src),
    ])
    .code(2);
    two.explains("error: ", &["one dataset"]);
}

#[test]
fn directories_may_be_named_like_a_step_of_pack() {
    for arguments in [
        &["pack", "plan", "part"][..],
        &["pack", "finish", "plan"],
        &["pack", "--finish", "finish"],
    ] {
        let arguments = ["forebay"].iter().chain(arguments);
        forebay_cli::command()
            .try_get_matches_from(arguments)
            .unwrap();
    }
}
