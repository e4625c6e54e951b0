//! `forebay top --listen`: the page of several servers, over HTTP and in a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::thread;

use forebay_client::{Client, ClientOptions};
use serde_json::{Value, json};

use crate::browser;
use crate::serve::{Served, packed, spec};
use crate::support::{forebay, run};

/// The command, and the address that it printed.
struct Overview(Child, String);

impl Overview {
    fn start(servers: &[&str], listen: &str) -> Self {
        let mut command = forebay();
        command.arg("top").args(servers).args(["--listen", listen]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        Self(child, url.trim().to_owned())
    }

    /// Returns the head and the body of an answer.
    fn get(&self, path: &str, host: &str, more: &str) -> (String, String) {
        let (_, rest) = self.1.split_once("://").unwrap();
        let (_, port) = rest.split('/').next().unwrap().rsplit_once(':').unwrap();
        let mut socket = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{more}\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Overview {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_page_shows_two_servers_and_names_the_lost_one() {
    let (_dir, root) = packed();
    let ((first, a), (mut second, b)) = (Served::watched(&root), Served::watched(&root));
    let open = |served: &Served| {
        let client = Client::connect(&served.url, ClientOptions::default()).unwrap();
        let mut stream = client.open(spec(8)).unwrap();
        stream.next_batch().unwrap().unwrap();
        (client, stream)
    };
    let _streams = (open(&first), open(&second));
    let overview = Overview::start(&[&a, &b], "127.0.0.1:0");
    let (head, body) = overview.get("/api/status", "localhost", "");
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["connections"]["streams"], 2, "{status}");
    assert_eq!(status["servers"][1]["url"], format!("http://{b}/"));
    for path in ["/", "/api/status"] {
        let (head, _) = overview.get(path, "evil.example.org", "");
        assert!(head.starts_with("HTTP/1.0 421"), "{head}");
    }
    let (head, _) = overview.get("/", "localhost", "");
    assert!(head.contains("connect-src 'self'"), "{head}");

    let Some(program) = browser::find() else {
        println!("skipped: no Chromium was found (FOREBAY_CHROMIUM names one)");
        return;
    };
    let mut page = browser::Page::open(&program);
    page.resize(1280, 900, false);
    page.go(&overview.1);
    page.wait("document.querySelector('#state-text').textContent === 'serving'");
    page.wait("document.querySelector('#waits-sub').textContent === '2 streams'");
    page.wait("document.querySelectorAll('#strip i').length === 2");
    let rows = "[...document.querySelectorAll('#servers tr')].map((row) => row.querySelector('a').href + ' ' + row.cells[8].textContent).join()";
    assert_eq!(
        page.text(rows),
        format!("http://{a}/ shards,http://{b}/ shards")
    );
    let hidden = page.text("['silent', 'events', 'previews'].map((id) => document.getElementById(id).checkVisibility()).join()");
    assert_eq!(hidden, "false,false,false");
    page.press("Tab");
    page.press("Tab");
    assert_eq!(page.text("document.activeElement.textContent"), a);

    second.child.kill().unwrap();
    second.child.wait().unwrap();
    page.wait("document.querySelector('#state-text').textContent === '1 of 2 serving'");
    page.wait("document.querySelector('#waits-sub').textContent === '1 stream'");
    let silent = page.text("document.querySelector('#silent').innerText");
    assert!(silent.contains(&format!("cannot ask {b}: ")), "{silent}");
    assert_eq!(
        page.text("document.querySelectorAll('#servers tr')[1].cells[1].textContent"),
        "no answer"
    );
    for (width, name) in [(1280, "desktop"), (360, "phone")] {
        page.resize(width, 780, width < 600);
        page.wait(&format!("document.documentElement.clientWidth === {width}"));
        for colours in ["light", "dark"] {
            page.colours(colours);
            assert_eq!(
                page.text(browser::FAINT_TEXTS),
                "",
                "too little contrast at {width} in {colours}"
            );
            page.screenshot(&format!("overview-{name}-{colours}"));
        }
        let wide = page.number("Math.max(document.documentElement.scrollWidth, document.querySelector('#servers-panel .scroll').scrollWidth)");
        assert!(
            wide <= f64::from(width),
            "it is to be scrolled sideways: {wide} of {width}"
        );
    }
    drop(first);
    page.wait("document.querySelector('#state').dataset.state === 'lost'");
    page.wait(
        "document.querySelector('#bottleneck-text').textContent === 'None of 2 servers answers'",
    );
    assert!(page.complaints().is_empty(), "{:#?}", page.complaints());
}

#[test]
fn hostile_servers_run_no_script_in_the_page() {
    let Some(program) = browser::find() else {
        println!("skipped: no Chromium was found (FOREBAY_CHROMIUM names one)");
        return;
    };
    const HOSTILE: &str = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let said = json!({"text": HOSTILE, "heading": HOSTILE, "bound": HOSTILE});
    let served = json!({"name": HOSTILE, "kind": HOSTILE, "ranks": [{"peer": HOSTILE}]});
    let report = json!({"format": 1, "state": HOSTILE, "version": HOSTILE, "bottleneck": said, "served": [served]}).to_string();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut lines = BufReader::new(&socket).lines();
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let answer = format!("HTTP/1.0 200 OK\r\n\r\n{report}");
            let _ = socket.write_all(answer.as_bytes());
        }
    });
    let overview = Overview::start(&[&address], "127.0.0.1:0");
    let mut page = browser::Page::open(&program);
    page.resize(1280, 900, false);
    page.go(&overview.1);
    page.wait("document.querySelector('#servers tr')?.innerText.includes('onerror')");
    let alive = page.text("[typeof window.hacked, document.scripts.length, document.querySelectorAll('img').length].join()");
    assert_eq!(alive, "undefined,1,0");
}

#[test]
fn other_addresses_of_the_page_ask_for_the_token() {
    let (_dir, root) = packed();
    let (_served, address) = Served::watched(&root);
    let overview = Overview::start(&[&address], "0.0.0.0:0");
    let (_, token) = overview.1.split_once("/?token=").unwrap();
    for path in ["/", "/?token=x", "/api/status"] {
        let (head, _) = overview.get(path, "data-3", "");
        assert!(head.starts_with("HTTP/1.0 401"), "{path}: {head}");
    }
    let (head, _) = overview.get(&format!("/?token={token}"), "data-3", "");
    assert!(head.starts_with("HTTP/1.0 303"), "{head}");
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = format!("Cookie: {}\r\n", cookie.unwrap().split(';').next().unwrap());
    let (head, body) = overview.get("/api/status", "data-3", &cookie);
    assert!(
        head.starts_with("HTTP/1.0 200") && body.contains(&address),
        "{head}"
    );

    run(["top", &address, "--listen", &address]).failed_with(&["another"]);
    run(["top", &address, "--listen", "127.0.0.1:0", "--once"]).code(2);
}
