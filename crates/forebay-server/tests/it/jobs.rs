//! Jobs: ranks join by name, and the server defines the options.

use crate::support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{
    Client, ClientOptions, Error, LoaderOptions, RemoteKind, StreamOptions, Transport,
};
use forebay_monitor::{Admin, AdminOptions, metrics};
use forebay_server::{JobOptions, Pixels, Server, ServerHandle, Synthetic};
use support::{LONG, Log, connect, epochs, given, options, spec};

/// A server with the job `job`: batches of 16 samples for each of two ranks, seed 7.
fn with_job() -> ServerHandle {
    let mut server = Server::bind(options(&Log::default())).unwrap();
    let source = Synthetic::new(100, Pixels::Pattern);
    server.add_source("set", Arc::new(source)).unwrap();
    let job = JobOptions {
        dataset: "set".to_owned(),
        options: given(r#"{"batch_size": 16, "world_size": 2, "seed": 7}"#).or(&spec()),
    };
    server.add_job("job", job.clone()).unwrap();
    assert!(server.add_job("set", job.clone()).is_err(), "a taken name");
    let of_job = JobOptions {
        dataset: "job".to_owned(),
        ..job.clone()
    };
    assert!(server.add_job("other", of_job).is_err(), "a job of a job");
    let mut large = job;
    large.options.batch_size = Some(51);
    let e = server.add_job("large", large).unwrap_err().to_string();
    assert!(e.contains("job large") && e.contains("102"), "{e}");
    server.spawn().unwrap()
}

#[test]
fn weights_need_a_served_name() {
    let mut limited = options(&Log::default());
    limited.bandwidth = 1 << 30;
    let mut server = Server::bind(limited).unwrap();
    let source = Synthetic::new(100, Pixels::Pattern);
    server.add_source("set", Arc::new(source)).unwrap();
    server.set_weight("set", 2.5).unwrap();
    for (name, weight) in [
        ("set", 0.0),
        ("set", f64::NAN),
        ("set", -1.0),
        ("other", 1.0),
    ] {
        let e = server.set_weight(name, weight).unwrap_err().to_string();
        assert!(e.contains("weight"), "{e}");
    }
    assert!(server.job("set").is_none(), "it is no job");
    // A server with limits and weights serves all batches.
    let server = server.spawn().unwrap();
    let mut stream = connect(server.addr(), Transport::Tcp)
        .open(epochs(1))
        .unwrap();
    let mut batches = 0;
    while stream.next_batch().unwrap().is_some() {
        batches += 1;
    }
    assert_eq!(batches, 12);
}

fn join(server: &ServerHandle) -> Client {
    let url = format!("forebay://{}/job", server.addr());
    Client::connect(&url, ClientOptions::default()).unwrap()
}

#[test]
fn ranks_join_a_job_and_get_its_options() {
    let server = with_job();
    let client = join(&server);
    assert_eq!(client.job().unwrap().batch_size, Some(16));
    let mut samples = Vec::new();
    for rank in 0..2 {
        let open = StreamOptions {
            epochs: 1,
            ..StreamOptions::from(given(&format!(r#"{{"rank": {rank}}}"#)))
        };
        let mut stream = client.open(open).unwrap();
        let info = stream.info();
        assert_eq!((info.batch_size(), info.rank()), (16, rank));
        assert_eq!(info.options.seed, Some(7));
        while let Some(batch) = stream.next_batch().unwrap() {
            assert_eq!(batch.len(), 16);
            samples.extend(batch.samples);
        }
    }
    samples.sort_unstable();
    assert_eq!(samples, (0..96).collect::<Vec<u64>>());
    // Clients of a plain dataset choose all options.
    let plain = connect(server.addr(), Transport::Auto);
    assert!(plain.job().is_none());
    assert!(plain.open(epochs(1)).is_ok());
}

#[test]
fn options_that_contradict_a_job_are_refused() {
    let server = with_job();
    let client = join(&server);
    let refused = |json: &str| match client.open(given(json)) {
        Ok(_) => panic!("opened"),
        Err(Error::Remote { kind, message, .. }) => {
            assert_eq!(kind, RemoteKind::Invalid, "{message}");
            message
        }
        Err(e) => panic!("{e}"),
    };
    let message = refused(r#"{"batch_size": 32}"#);
    let expected = "batch_size: job job has 16, this client asks for 32";
    assert!(message.contains(expected), "{message}");
    let message = refused(r#"{"world_size": 4}"#);
    assert!(
        message.contains("job job has 2, this client asks for 4"),
        "{message}"
    );
    let message = refused(r#"{"seed": 0}"#);
    assert!(
        message.contains("seed: job job has 7, this client asks for 0"),
        "{message}"
    );
    let message = refused(r#"{"label_base": "stored"}"#);
    let expected = "label_base: job job has 0, this client asks for \"stored\"";
    assert!(message.contains(expected), "{message}");
    let message = refused(r#"{"limit": 3}"#);
    assert!(message.contains("limit: job job has none"), "{message}");
    // Options that agree with the job are accepted in any equivalent form.
    let same = r#"{"batch_size": 16, "seed": 7, "shuffle": false, "transform": {"kind": "TrainTransform", "size": 8}}"#;
    client.open(given(same)).unwrap();
}

#[test]
fn a_slow_trainer_slows_nobody_else() {
    let server = with_job();
    let client = join(&server);
    // Takes one batch and then pauses, while its rank's batches wait.
    let mut slow = client.open(LoaderOptions::default()).unwrap();
    slow.next_batch().unwrap().unwrap();
    let mut quick = client.open(given(r#"{"rank": 1}"#)).unwrap();
    for _ in 0..50 {
        while quick.next_batch().unwrap().is_some() {}
    }
    let status = server.status();
    assert!(status.is_ready());
    let page = metrics(&status);
    let number = |line: &str| {
        let found = page.lines().find_map(|found| found.strip_prefix(line));
        found
            .unwrap_or_else(|| panic!("no {line} in\n{page}"))
            .trim()
            .to_owned()
    };
    assert_eq!(number("forebay_streams{name=\"job\"}"), "2");
    assert_eq!(number("forebay_streams_total{name=\"set\"}"), "0");
    let lag: u64 = number("forebay_job_lag_batches{name=\"job\",rank=\"0\"}")
        .parse()
        .unwrap();
    assert!(lag > 100, "{lag}");
    assert_eq!(
        number("forebay_job_lag_batches{name=\"job\",rank=\"1\"}"),
        "0"
    );
    // The paused stream continues where it was.
    assert_eq!(slow.next_batch().unwrap().unwrap().step, 1);
    drop((slow, quick, client));
    server.shutdown();
    let page = metrics(&status);
    assert!(page.contains("forebay_ready 0"), "{page}");
    let sent = "forebay_batches_total{name=\"job\"} ";
    let sent: u64 = page
        .lines()
        .find_map(|line| line.strip_prefix(sent))
        .unwrap()
        .parse()
        .unwrap();
    assert!(sent > 150, "{sent}");
}

#[test]
fn health_and_metrics_are_pages() {
    use std::io::{Read, Write};
    let server = with_job();
    let admin = Admin::start(
        "127.0.0.1:0".parse().unwrap(),
        server.status(),
        AdminOptions::default(),
    )
    .unwrap();
    let ask = |address: SocketAddr, path: &str| -> std::io::Result<String> {
        let mut socket = std::net::TcpStream::connect(address)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let get = |path: &str| ask(admin.addr(), path).unwrap();
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(get("/readyz").contains("ready"));
    assert!(get("/metrics").contains("forebay_ready 1"));
    assert!(get("/elsewhere").starts_with("HTTP/1.1 404"));
    // Silent connections do not keep others out forever.
    let brief = AdminOptions {
        connection_lifetime: Duration::from_millis(200),
        header_timeout: Duration::from_millis(200),
        ..AdminOptions::default()
    };
    let brief = Admin::start("127.0.0.1:0".parse().unwrap(), server.status(), brief).unwrap();
    let _silent: Vec<_> = (0..40)
        .map(|_| std::net::TcpStream::connect(brief.addr()).unwrap())
        .collect();
    // On a busy machine an answer may take longer than the lifetime of a connection.
    let end = Instant::now() + LONG;
    while !ask(brief.addr(), "/healthz").is_ok_and(|answer| answer.contains("ok")) {
        assert!(Instant::now() < end, "they keep everybody out");
    }
    let taken = Admin::start(admin.addr(), server.status(), AdminOptions::default());
    assert!(taken.is_err_and(|e| e.to_string().contains("taken")));
    let status = server.status();
    server.shutdown();
    assert!(!status.is_ready());
    assert!(get("/readyz").starts_with("HTTP/1.1 503"));
}
