//! A page without external resources: HTML with its style and script inside, and a policy that allows only these.

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The assembled page and its content security policy.
pub(crate) struct Page {
    html: Bytes,
    policy: HeaderValue,
}

impl Page {
    /// Puts style and script at their marks in the HTML. Images may come from `images`, and pages of `frames` may show this
    /// one; both are sources of the policy.
    pub(crate) fn new(html: &str, style: &str, script: &str, images: &str, frames: &str) -> Page {
        let html = html
            .replace("/*STYLE*/", style)
            .replace("/*SCRIPT*/", script);
        // Only the inline script and style are allowed, and the page may contact this server only.
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src {images}; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors {frames}",
            sha256(script),
            sha256(style)
        );
        Page {
            html: html.into(),
            policy: HeaderValue::from_str(&policy).expect("ASCII"),
        }
    }

    pub(crate) fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.html.clone()));
        let headers = response.headers_mut();
        let fixed = HeaderValue::from_static;
        headers.insert(CONTENT_TYPE, fixed("text/html; charset=utf-8"));
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        // A server of another version has another page, so browsers must revalidate it.
        headers.insert(CACHE_CONTROL, fixed("no-cache"));
        headers.insert("x-content-type-options", fixed("nosniff"));
        headers.insert("referrer-policy", fixed("no-referrer"));
        response
    }

    /// Checks that style and script are in the page, that its policy covers everything, and that nothing is loaded from
    /// elsewhere.
    #[cfg(test)]
    pub(crate) fn assert_self_contained(&self) {
        let html = std::str::from_utf8(&self.html).unwrap();
        assert!(html.contains("<style>") && html.contains("<script>"));
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

fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    STANDARD.encode(digest)
}
