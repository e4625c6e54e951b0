//! Admission to a page: requests of this machine on a loopback address, elsewhere those with the token of the page.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{COOKIE, LOCATION, SET_COOKIE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::local_only;

/// A random number for one page.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// Part of the name of the cookie that holds the token, since all pages of a host share cookies. It is no secret.
    pub(crate) session: String,
    token: String,
}

impl Access {
    pub(crate) fn random() -> io::Result<Self> {
        let secret = u128::from_le_bytes(forebay_wire::transport::random_bytes()?);
        let secret = format!("{secret:032x}");
        let (session, token) = secret.split_at(8);
        Ok(Self {
            session: session.to_owned(),
            token: token.to_owned(),
        })
    }

    /// Puts the checks of requests before a router that is bound to an address.
    pub(crate) fn protect(&self, router: Router, bound: SocketAddr) -> Router {
        match bound.ip().is_loopback() {
            true => router.layer(middleware::from_fn(local_only)),
            false => {
                let access = Arc::new(self.clone());
                router.route_layer(middleware::from_fn_with_state(access, admit))
            }
        }
    }

    /// Returns the address of the page, with the token if one is needed.
    pub(crate) fn url(&self, bound: SocketAddr) -> String {
        match bound.ip().is_loopback() {
            true => format!("http://{bound}/"),
            false => format!("http://{bound}/?token={}", self.token),
        }
    }
}

/// Admits requests that have the token. The address with the token, which the command prints, sets a cookie.
async fn admit(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let token = &access.token;
    let is_equal = |given: &str, wanted: &str| {
        let (given, wanted) = (given.as_bytes(), wanted.as_bytes());
        bool::from(given.ct_eq(wanted))
    };
    let kept = format!("forebay_{}={token}", access.session);
    let is_admitted = {
        let cookies = request.headers().get_all(COOKIE).iter();
        let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
        let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
        cookies.any(|cookie| is_equal(cookie.trim(), &kept))
    };
    let query = request.uri().query().unwrap_or_default();
    if is_admitted {
        next.run(request).await
    } else if request.uri().path() == "/" && is_equal(query, &format!("token={token}")) {
        let cookie = format!("{kept}; HttpOnly; SameSite=Lax; Path=/");
        let to = [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)];
        (StatusCode::SEE_OTHER, to).into_response()
    } else {
        let text = "open the address that the command printed, with its token\n";
        (StatusCode::UNAUTHORIZED, text).into_response()
    }
}
