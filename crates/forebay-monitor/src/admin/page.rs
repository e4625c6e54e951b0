//! The dashboard: a single page without external resources.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// The assembled page and its content security policy.
struct Page {
    html: String,
    policy: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let html = HTML
        .replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", SCRIPT);
    // Only the inline script and style are allowed, and the page may contact this server only.
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        sha256(SCRIPT),
        sha256(STYLE)
    );
    Page {
        html,
        policy: HeaderValue::from_str(&policy).expect("ASCII"),
    }
});

fn sha256(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    STANDARD.encode(digest)
}

pub(super) fn response() -> Response {
    let mut response = Response::new(Body::from(PAGE.html.as_str()));
    let headers = response.headers_mut();
    let fixed = HeaderValue::from_static;
    headers.insert(CONTENT_TYPE, fixed("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, PAGE.policy.clone());
    // A server of another version has another page, so browsers must revalidate it.
    headers.insert(CACHE_CONTROL, fixed("no-cache"));
    headers.insert("x-content-type-options", fixed("nosniff"));
    headers.insert("referrer-policy", fixed("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_complete_and_self_contained() {
        let html = &PAGE.html;
        assert!(html.contains(STYLE) && html.contains(SCRIPT));
        assert!(!html.contains("/*STYLE*/") && !html.contains("/*SCRIPT*/"));
        // The policy refuses inline styles and handlers, and text is never parsed as markup.
        for forbidden in [
            " style=",
            " onclick=",
            " onload=",
            "innerHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        let elsewhere = html
            .matches("http://")
            .chain(html.matches("https://"))
            .count();
        let namespaces = html.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(elsewhere, namespaces, "nothing is loaded from elsewhere");
    }
}
