//! Observing a server: the report, images, metrics, the dashboard in a browser.

mod exposition;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::browser;
use crate::request::{Answer, get};
use crate::support::{LONG, Log, given, options};
use forebay_cache::{Cache, CacheOptions};
use forebay_client::{Client, ClientOptions};
use forebay_image::{EvalTransform, Transform};
use forebay_loader::Options;
use forebay_monitor::report::{FORMAT, Report};
use forebay_monitor::{Admin, AdminOptions};
use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_server::{JobOptions, Server, ServerHandle};
use forebay_shard::Dataset;

const LOCAL: &str = "127.0.0.1:0";
/// Polling interval.
const LOOK: Duration = Duration::from_millis(20);

/// A server with a dataset, a job and an admin address.
struct Watched {
    server: ServerHandle,
    admin: Admin,
    _dir: tempfile::TempDir,
}

impl Watched {
    fn start(images: bool) -> Watched {
        let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("set");
        let mut packing = PackOptions::new(pictures.as_path(), root.as_path());
        packing.format = DatasetFormat::INDEXED;
        pack(&packing, &(), &Cancel::new()).unwrap();
        let mut server = Server::bind(options(&Log::default())).unwrap();
        let dataset = Dataset::open(&root).unwrap();
        server.add_dataset("pictures", &dataset).unwrap();
        let mut spec = Options::new(4, Transform::Eval(EvalTransform::new(112, 96)))
            .to_schema()
            .with_split("train");
        spec.world_size = Some(2);
        let job = JobOptions {
            dataset: "pictures".to_owned(),
            options: spec,
        };
        server.add_job("resnet", job).unwrap();
        let server = server.spawn().unwrap();
        let cache = Cache::open(&CacheOptions {
            memory_bytes: 1 << 30,
            ..CacheOptions::default()
        });
        let shown = AdminOptions {
            images,
            cache: Some(Arc::new(cache.unwrap())),
            ..AdminOptions::default()
        };
        Watched {
            admin: Admin::start(LOCAL.parse().unwrap(), server.status(), shown).unwrap(),
            server,
            _dir: dir,
        }
    }

    fn get(&self, path: &str) -> Answer {
        get(self.admin.addr(), path, "localhost")
    }

    /// Returns the first report for which `is_right` holds.
    fn report_when(&self, is_right: impl Fn(&Report) -> bool) -> Report {
        let end = Instant::now() + LONG;
        loop {
            let answer = self.get("/api/status");
            assert_eq!(answer.status, 200);
            let report: Report = serde_json::from_str(&answer.body).unwrap();
            if is_right(&report) {
                return report;
            }
            assert!(Instant::now() < end, "{report:#?}");
            thread::sleep(LOOK);
        }
    }
}

/// Trainers that take a batch at intervals until dropped.
struct Trainers {
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Trainers {
    fn join(server: &ServerHandle, ranks: u64) -> Trainers {
        let mut trainers = Trainers {
            stop: Vec::new(),
            threads: Vec::new(),
        };
        for rank in 0..ranks {
            let url = format!("forebay://{}/resnet", server.addr());
            let (stop, stopped) = mpsc::channel::<()>();
            trainers.stop.push(stop);
            trainers.threads.push(thread::spawn(move || {
                let client = Client::connect(&url, ClientOptions::default()).unwrap();
                let spec = given(&format!(r#"{{"rank": {rank}}}"#));
                let mut stream = client.open(spec).unwrap();
                // A training step lasts until the test ends it.
                let step = Duration::from_millis(15);
                while stopped.recv_timeout(step) == Err(RecvTimeoutError::Timeout) {
                    stream.next_batch().unwrap();
                }
            }));
        }
        trainers
    }
}

impl Drop for Trainers {
    fn drop(&mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "a trainer failed");
        }
    }
}

#[test]
fn the_report_follows_what_is_sent() {
    let watched = Watched::start(true);
    let before = watched.report_when(|_| true);
    assert_eq!((before.format, before.state.as_str()), (FORMAT, "serving"));
    assert_eq!(before.bottleneck.bound, "idle");
    let names: Vec<&str> = before.served.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["pictures", "resnet"]);
    let trainers = Trainers::join(&watched.server, 2);
    let report = watched.report_when(|report| {
        let job = &report.served[1];
        job.ranks.len() == 2 && job.ranks.iter().all(|rank| rank.images_per_s > 0.0)
    });
    let job = &report.served[1];
    assert_eq!(job.kind, "job");
    assert_eq!(job.dataset.as_deref(), Some("pictures"));
    assert!(report.now.images_per_s > 0.0 && report.now.payload_bytes_per_s > 0.0);
    assert!(job.totals.images > 0 && job.totals.read_bytes > 0);
    let ranks: Vec<u64> = job.ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(ranks, [0, 1]);
    for rank in &job.ranks {
        assert_eq!(
            (rank.world_size, rank.batch_size, rank.split.as_str()),
            (2, 4, "train")
        );
        assert!(rank.steps > 0 && rank.step < rank.steps);
        assert!((0.0..=1.0).contains(&rank.waits));
    }
    let stages: Vec<&str> = job.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(stages, ["fetch", "decode", "transform", "send"]);
    for (name, parts) in [("fetch", 0..1), ("decode", 1..3), ("send", 3..4)] {
        let parts = job.stages[parts].iter();
        let sum: f64 = parts.map(|s| s.busy + s.starved + s.blocked).sum();
        assert!((sum - 1.0).abs() < 0.01, "{name}: {sum}");
    }
    assert!(!job.bottleneck.text.is_empty() && job.bottleneck.bound != "idle");
    assert_eq!(report.cache.as_ref().unwrap().tiers[0].tier, "memory");
    let opened = |report: &Report| {
        report
            .events
            .iter()
            .any(|e| e.text.contains("streams resnet"))
    };
    assert!(opened(&report), "{:#?}", report.events);
    // Chart lines begin after two ticks.
    watched.report_when(|report| !report.history.images_per_s.is_empty());
    drop(trainers);
    let after = watched.report_when(|report| report.served[1].ranks.is_empty());
    assert!(after.served[1].totals.images >= job.totals.images);
}

#[test]
fn metrics_are_valid_and_cover_dashboards_and_alerts() {
    let watched = Watched::start(false);
    let trainers = Trainers::join(&watched.server, 2);
    watched.report_when(|report| report.served[1].ranks.len() == 2 && report.totals.batches > 4);
    let answer = watched.get("/metrics");
    assert!(
        answer
            .head
            .contains("content-type: text/plain; version=0.0.4")
    );
    let families = exposition::parse(&answer.body);
    let value = |name: &str, labels: &[(&str, &str)]| {
        let lines = families.values().flat_map(|family| &family.lines);
        let mut found = lines.filter(|line| {
            line.name == name
                && labels
                    .iter()
                    .all(|(k, v)| line.labels.get(*k).is_some_and(|l| l == v))
        });
        found
            .next()
            .unwrap_or_else(|| panic!("no {name} {labels:?}"))
            .value
    };
    assert_eq!(value("forebay_ready", &[]), 1.0);
    assert_eq!(value("forebay_streams", &[("name", "resnet")]), 2.0);
    assert!(value("forebay_batches_total", &[("name", "resnet")]) > 4.0);
    assert!(value("forebay_read_seconds_count", &[("name", "resnet")]) > 0.0);
    assert!(
        value(
            "forebay_stage_seconds_total",
            &[("stage", "decode"), ("state", "busy")]
        ) > 0.0
    );
    assert!(
        value(
            "forebay_queue_batches",
            &[("name", "resnet"), ("queue", "ready")]
        ) >= 0.0
    );
    assert!(value("forebay_memory_bytes", &[("name", "resnet")]) > 0.0);
    assert!(value("forebay_cache_limit_bytes", &[("tier", "memory")]) > 0.0);
    assert_eq!(
        value(
            "forebay_build_info",
            &[("version", env!("CARGO_PKG_VERSION"))]
        ),
        1.0
    );
    if cfg!(target_os = "linux") {
        assert!(value("process_resident_memory_bytes", &[]) > 1e6);
        assert!(value("process_cpu_seconds_total", &[]) > 0.0);
    }
    drop(trainers);

    let known: BTreeSet<&str> = families.keys().map(String::as_str).collect();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for (file, least) in [
        ("grafana/forebay.json", 35),
        ("prometheus/forebay.rules.yml", 10),
    ] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        let used = exposition::names_in(&text);
        assert!(used.len() >= least, "{file}: {used:?}");
        for name in used {
            let family = exposition::family_of(&name, |family| known.contains(family));
            assert!(
                family.is_some(),
                "{file} asks for {name}, which there is not"
            );
        }
    }
    let board: serde_json::Value = serde_json::from_str(
        &std::fs::read_to_string(deploy.join("grafana/forebay.json")).unwrap(),
    )
    .unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let asks = panel["targets"].as_array().map_or(0, Vec::len);
        assert!(asks > 0 || panel["type"] == "row", "{panel}");
    }
    // The table in the documentation lists every metric.
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serving.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for family in known {
        assert!(
            docs.contains(&format!("`{family}`")),
            "{family} is not in docs/serving.md"
        );
    }
}

#[test]
fn previews_of_the_last_batch_are_served_on_request() {
    let watched = Watched::start(true);
    let ask = || -> serde_json::Value {
        let answer = watched.get("/api/images?name=resnet");
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.head.contains("cache-control: no-store"));
        serde_json::from_str(&answer.body).unwrap()
    };
    assert_eq!(ask()["number"], 0);
    let trainers = Trainers::join(&watched.server, 2);
    let end = Instant::now() + LONG;
    let shot = loop {
        let shot = ask();
        if shot["number"] != 0 {
            break shot;
        }
        assert!(Instant::now() < end, "no batch was kept");
        thread::sleep(LOOK);
    };
    let images = shot["images"].as_array().unwrap();
    assert_eq!(images.len(), 4, "a batch of four");
    let packed = Dataset::open(watched._dir.path().join("set")).unwrap();
    let split = packed.split("train").unwrap();
    for image in images {
        let src = image["src"].as_str().unwrap();
        assert!(src.starts_with("data:image/jpeg;base64,/9j/"), "{src:.40}");
        assert_eq!(
            (&image["width"], &image["height"]),
            (&96.into(), &96.into())
        );
        let label = image["label"].as_u64().unwrap() as usize;
        assert_eq!(image["class"], split.classes()[label].title());
        let record = image["sample"].as_u64().unwrap();
        assert_eq!(split.label(record), Some(label as i64 + split.label_base()));
    }
    assert_eq!(watched.get("/api/images?name=nobody").status, 404);
    assert_eq!(watched.get("/api/images").status, 404);
    drop(trainers);
    let private = Watched::start(false);
    assert_eq!(private.get("/api/images?name=resnet").status, 403);
    assert!(!private.report_when(|_| true).images);
}

#[test]
fn the_page_has_a_policy_and_is_for_this_host_only() {
    let watched = Watched::start(true);
    let page = watched.get("/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html; charset=utf-8"));
    let policy = page
        .head
        .lines()
        .find(|line| line.starts_with("content-security-policy:"))
        .unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    for (path, host, status) in [
        ("/", "127.0.0.1:7071", 200),
        ("/", "evil.example.org", 421),
        ("/api/status", "evil.example.org:7071", 421),
        ("/api/images?name=resnet", "evil.example.org", 421),
        // Probes use several host names.
        ("/healthz", "evil.example.org", 200),
        ("/metrics", "data-3", 200),
        ("/elsewhere", "localhost", 404),
    ] {
        let answer = get(watched.admin.addr(), path, host);
        assert_eq!(answer.status, status, "{path} of {host}");
    }
}

#[test]
fn the_dashboard_works_in_a_browser() {
    let Some(program) = browser::find() else {
        println!("skipped: no Chromium was found (FOREBAY_CHROMIUM names one)");
        return;
    };
    let watched = Watched::start(true);
    let trainers = Trainers::join(&watched.server, 2);
    watched.report_when(|report| report.served[1].ranks.len() == 2 && report.totals.batches > 4);
    let mut page = browser::Page::open(&program);
    page.resize(1280, 900, false);
    page.colours("light");
    page.go(&format!("http://{}/", watched.admin.addr()));
    page.wait("document.querySelector('#state').dataset.state === 'serving'");
    page.wait("document.querySelectorAll('#served tbody tr').length === 2");
    page.wait("document.querySelectorAll('#pictures img').length >= 4");
    page.wait(
        "[...document.querySelectorAll('#pictures img')].every((image) => image.naturalWidth > 0)",
    );
    page.wait("document.querySelector('#images-line .stroke').getAttribute('d').length > 20");
    let text = page.text("document.body.innerText");
    for part in [
        "resnet",
        "job of pictures",
        "images/s",
        "Connections",
        "streams resnet/train",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    // The layout does not shift when numbers arrive. Sum of layout shifts, with the value, element
    // and positions of each.
    let shifts = page.text(
        "new Promise((done) => { let sum = 0; const seen = []; \
         const side = (rect) => `${Math.round(rect.y)}+${Math.round(rect.height)}`; \
         const moved = ({ node, previousRect, currentRect }) => \
         `${node?.id || node?.nodeName} ${side(previousRect)} to ${side(currentRect)}`; \
         new PerformanceObserver((list) => { for (const { value, sources } of list.getEntries()) \
         { sum += value; seen.push(`${value.toFixed(4)}: ${sources.map(moved)}`); } }) \
         .observe({ type: 'layout-shift', buffered: true }); \
         setTimeout(() => done(`${sum} ${seen.join('; ')}`), 1200); })",
    );
    let (shift, what) = shifts.split_once(' ').unwrap();
    let shift: f64 = shift.parse().unwrap();
    assert!(shift < 0.02, "the page jumps by {shift}: {what}");
    page.screenshot("light");
    let light = page.text("getComputedStyle(document.body).backgroundColor");
    page.colours("dark");
    page.wait(&format!(
        "getComputedStyle(document.body).backgroundColor !== '{light}'"
    ));
    page.screenshot("dark");
    for (width, name) in [(360, "phone"), (820, "tablet")] {
        page.resize(width, 780, true);
        page.wait(&format!("document.documentElement.clientWidth === {width}"));
        let wide = page.number("document.documentElement.scrollWidth");
        assert_eq!(wide, f64::from(width), "it is to be scrolled sideways");
        page.screenshot(name);
    }
    page.colours("light");
    page.resize(360, 780, true);
    page.screenshot("phone-light");
    // All texts have enough contrast in both color schemes.
    for colours in ["light", "dark"] {
        page.colours(colours);
        let faint = page.text(browser::FAINT_TEXTS);
        assert_eq!(faint, "", "too little contrast in {colours} colours");
    }
    let said = page.complaints();
    assert!(said.is_empty(), "{said:#?}");
    // The page reports when the server disappears, and recovers when it returns.
    let address = watched.admin.addr();
    let Watched {
        server,
        admin,
        _dir,
    } = watched;
    drop(admin);
    page.wait("document.querySelector('#state').dataset.state === 'lost'");
    let state = page.text("document.querySelector('#state').innerText");
    assert!(state.starts_with("connection lost since "), "{state}");
    page.screenshot("lost");
    let _admin = Admin::start(address, server.status(), AdminOptions::default()).unwrap();
    page.wait("document.querySelector('#state').dataset.state === 'serving'");
    drop(trainers);
    page.wait("document.querySelector('#bottleneck').dataset.bound === 'idle'");
    page.wait("document.querySelector('#served .quiet')?.innerText.includes('no trainer now')");
}
