//! A headless Chromium, controlled over pipes with the DevTools protocol:
//! <https://chromedevtools.github.io/devtools-protocol/>.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than a browser needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Names of the executable.
const NAMES: [&str; 8] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "chrome-headless-shell",
    "chromium-headless-shell",
    "headless_shell",
];

/// JavaScript that lists texts whose contrast ratio by WCAG 2 is below 4.5, or 3 for large text.
pub(crate) const FAINT_TEXTS: &str = r"
(() => {
  const rgba = (text) => {
    const canvas = new OffscreenCanvas(1, 1).getContext('2d');
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest('noscript, script, style, .unseen, .skip')) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgba(style.color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    if (contrast < least) faint.push(node.className + ' ' + JSON.stringify(node.textContent.slice(0, 20)) + ' ' + contrast.toFixed(2));
  }
  return [...new Set(faint)].join('; ');
})()";

/// Finds a browser on this machine.
pub(crate) fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FOREBAY_CHROMIUM") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).flat_map(|dir| NAMES.map(|name| dir.join(name)));
    if let Some(found) = installed.into_iter().find(|program| program.is_file()) {
        return Some(found);
    }
    // The directory of browsers that playwright downloads: chromium-1234/chrome-linux/chrome.
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/ms-playwright"));
    let downloads = std::env::var_os("PLAYWRIGHT_BROWSERS_PATH").map(PathBuf::from);
    let below = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let roots = downloads.into_iter().chain(home);
    let mut programs = roots
        .flat_map(below)
        .filter(|version| version.to_string_lossy().contains("chromium"))
        .flat_map(below)
        .flat_map(|dir| NAMES.map(|name| dir.join(name)));
    programs.find(|program| program.is_file())
}

/// A page in its own browser process.
pub(crate) struct Page {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    calls: u64,
    session: Option<String>,
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Page {
    pub(crate) fn open(program: &Path) -> Page {
        let profile = tempfile::tempdir().unwrap();
        let directory = format!("--user-data-dir={}", profile.path().display());
        // The browser expects its pipes at descriptors 3 and 4, which a shell can set up.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(program)
            .args([
                "--headless",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-extensions",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
            ])
            .args([&directory, "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (said, from) = mpsc::channel();
        let mut pipe = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let mut frame = Vec::new();
            while pipe.read_until(0, &mut frame).is_ok_and(|n| n > 0) {
                let message = serde_json::from_slice(frame.strip_suffix(&[0]).unwrap_or(&frame));
                if said.send(message.unwrap_or_default()).is_err() {
                    break;
                }
                frame.clear();
            }
        });
        let mut page = Page {
            to: child.stdin.take().unwrap(),
            child,
            from,
            calls: 0,
            session: None,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = page.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", attach);
        page.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(message.to_string().as_bytes()).unwrap();
        self.to.write_all(&[0]).unwrap();
        self.to.flush().unwrap();
        let call = self.calls;
        loop {
            let answer = self.heard(method);
            if answer["id"] == call {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    /// Reads the next message of the browser.
    fn heard(&mut self, while_doing: &str) -> Value {
        let said = self.from.recv_timeout(PATIENCE);
        let said = said.unwrap_or_else(|e| panic!("the browser is silent in {while_doing}: {e}"));
        let complaint = match said["method"].as_str() {
            Some("Log.entryAdded") => Some(&said["params"]["entry"]),
            Some("Runtime.exceptionThrown") => Some(&said["params"]),
            _ => None,
        };
        self.complaints.extend(complaint.map(Value::to_string));
        said
    }

    /// Sets the size of the window, in CSS pixels.
    pub(crate) fn resize(&mut self, width: u32, height: u32, mobile: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the color scheme that the user prefers: `light` or `dark`.
    pub(crate) fn colours(&mut self, colours: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": colours}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    pub(crate) fn go(&mut self, url: &str) {
        let went = self.call("Page.navigate", json!({"url": url}));
        assert!(went["errorText"].is_null(), "{went}");
        // The event of the preceding empty page arrives earlier.
        while self.heard("loading")["method"] != "Page.loadEventFired" {}
    }

    fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", asked);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Evaluates an expression to a string.
    pub(crate) fn text(&mut self, expression: &str) -> String {
        let value = self.value(expression);
        value
            .as_str()
            .unwrap_or_else(|| panic!("{expression}: {value}"))
            .to_owned()
    }

    /// Evaluates an expression to a number.
    pub(crate) fn number(&mut self, expression: &str) -> f64 {
        let value = self.value(expression);
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{expression}: {value}"))
    }

    /// Presses a key, as its name in `KeyboardEvent.key` says.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            " " => 32,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Tab" => 9,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            one if one.chars().count() == 1 => one,
            _ => "",
        };
        let down =
            json!({"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", down);
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Returns role and name of everything that a screen reader finds on the page.
    pub(crate) fn spoken(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let text = |node: &Value, field: &str| {
            node[field]["value"].as_str().unwrap_or_default().to_owned()
        };
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let nodes = nodes.filter(|node| node["ignored"] != true);
        nodes
            .map(|node| (text(node, "role"), text(node, "name")))
            .collect()
    }

    /// Waits until a condition holds.
    pub(crate) fn wait(&mut self, condition: &str) {
        let waiting = format!(
            "new Promise((done) => {{ const end = Date.now() + 60000; const look = () => {{ \
             const holds = Boolean({condition}); \
             if (holds || Date.now() > end) done(holds); else setTimeout(look, 50); }}; look(); }})"
        );
        if self.value(&waiting) != true {
            let text = self.text("document.body.innerText");
            panic!(
                "never: {condition}; the page says\n{text}\n{:#?}",
                self.complaints
            );
        }
    }

    /// Returns the errors so far: failing scripts and violations of the page's policy.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Saves a screenshot of the whole page if FOREBAY_SCREENSHOTS=DIRECTORY is set.
    pub(crate) fn screenshot(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("FOREBAY_SCREENSHOTS") else {
            return;
        };
        let asked = json!({"format": "png", "captureBeyondViewport": true});
        let taken = self.call("Page.captureScreenshot", asked);
        let png = decoded(taken["data"].as_str().unwrap());
        std::fs::write(Path::new(&dir).join(format!("{name}.png")), png).unwrap();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes Base64.
fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap()
}
