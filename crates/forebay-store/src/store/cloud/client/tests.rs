use super::*;
use crate::store::cloud::runtime::wait_for;
use forebay_rigs::Scripted;

const LOOPBACK: Admission = Admission {
    scheme: "http",
    address: |address| address.is_loopback(),
};

/// The response to a request with credentials in headers that must not be passed on.
fn ask(client: &Following, url: &str) -> HttpResponse {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = url.parse().unwrap();
    for (name, value) in [
        ("authorization", "Bearer MARKED"),
        ("x-amz-security-token", "MARKED"),
        ("x-ms-copy-source", "MARKED"),
        ("cookie", "MARKED"),
        ("referer", "https://host/?sig=MARKED"),
        ("range", "bytes=1-3"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    wait_for(async { Ok(client.call(request).await.unwrap()) }).unwrap()
}

fn client(admission: Admission, has_proxy: bool) -> Following {
    let options = ClientOptions::new().with_allow_http(true);
    Following::with(&options, admission, has_proxy).unwrap()
}

#[test]
fn another_origin_receives_no_credentials_and_no_referer() {
    let other = Scripted::start(|_, _| (200, Vec::new(), Vec::new()));
    for host in ["127.0.0.1", "localhost"] {
        let target = format!("http://user:MARKED@{host}:{}/b", other.address().port());
        let first =
            Scripted::start(move |_, _| (302, vec![("Location", target.clone())], Vec::new()));
        let url = format!("http://{}/a?sig=MARKED", first.address());
        let answer = ask(&client(LOOPBACK, false), &url);
        assert_eq!(answer.status(), 200, "{host}");
        let received = other.take();
        assert_eq!(received.len(), 1);
        assert!(received[0].contains("range: bytes=1-3"), "{received:?}");
        assert!(!received[0].contains("MARKED"), "{received:?}");

        let answer = ask(&client(LOOPBACK, true), &url);
        assert_eq!(answer.status(), 302);
        assert_eq!(other.take().len(), 0);
    }
}

/// The check uses the address that the connection is made to; the name is not resolved a second time.
#[test]
fn names_of_refused_addresses_are_refused() {
    let refuse = Admission {
        scheme: "http",
        address: |_| false,
    };
    let other = Scripted::start(|_, _| (200, Vec::new(), Vec::new()));
    let target = format!("http://localhost:{}/b", other.address().port());
    let first = Scripted::start(move |_, _| (302, vec![("Location", target.clone())], Vec::new()));
    // The origin that the user named is not checked.
    let url = format!("http://localhost:{}/a", first.address().port());
    let answer = ask(&client(refuse, false), &url);
    assert_eq!(answer.status(), 302);
    assert!(answer.extensions().get::<NotFollowed>().is_some());
    assert_eq!((first.take().len(), other.take().len()), (1, 0));
}

/// A private address may only be named by the user: another server may not redirect back to it.
#[test]
fn a_redirect_back_to_the_first_origin_is_checked() {
    static FIRST: std::sync::OnceLock<u16> = std::sync::OnceLock::new();
    let other = Scripted::start(|_, _| {
        let back = format!("http://localhost:{}/secret", FIRST.get().unwrap());
        (302, vec![("Location", back)], Vec::new())
    });
    let target = format!("http://{}/b", other.address());
    let first = Scripted::start(move |_, _| (302, vec![("Location", target.clone())], Vec::new()));
    FIRST.set(first.address().port()).unwrap();
    static NAMES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let literal_only = Admission {
        scheme: "http",
        // Admits only the first check, which is of the literal address of the other server.
        address: |_| NAMES.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0,
    };
    let url = format!("http://localhost:{}/a", first.address().port());
    let answer = ask(&client(literal_only, false), &url);
    assert!(answer.extensions().get::<NotFollowed>().is_some());
    assert_eq!((first.take().len(), other.take().len()), (1, 1));
}

#[test]
fn only_addresses_of_the_internet_are_public() {
    for (address, expected) in [
        ("8.8.8.8", true),
        ("172.32.0.1", true),
        ("100.128.0.1", true),
        ("0.0.0.0", false),
        ("10.1.2.3", false),
        ("127.9.9.9", false),
        ("100.64.0.1", false),
        ("169.254.169.254", false),
        ("172.31.0.1", false),
        ("192.0.0.8", false),
        ("192.168.0.1", false),
        ("198.19.0.1", false),
        ("168.63.129.16", false),
        ("224.0.0.1", false),
        ("255.255.255.255", false),
        ("2606:4700::1111", true),
        ("64:ff9b::8.8.8.8", true),
        ("64:ff9b::10.0.0.1", false),
        ("::", false),
        ("::1", false),
        ("::ffff:8.8.8.8", true),
        ("::ffff:169.254.169.254", false),
        ("::127.0.0.1", false),
        ("fe80::1", false),
        ("fd00:ec2::254", false),
        ("ff02::1", false),
        ("2001::1", false),
        ("2001:db8::1", false),
        ("2002:7f00:1::", false),
    ] {
        assert_eq!(is_public(address.parse().unwrap()), expected, "{address}");
    }
}

#[test]
fn settings_that_are_not_valid_are_named() {
    let options = ClientOptions::new().with_config(ClientConfigKey::ReadTimeout, "MARKED");
    let error = Direct::new(&options).unwrap_err();
    let shown = format!("{error:?}");
    assert!(
        shown.contains("read_timeout") && !shown.contains("MARKED"),
        "{shown}"
    );
}
