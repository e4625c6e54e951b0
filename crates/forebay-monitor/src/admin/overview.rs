//! The dashboard of several servers: the page of one server, with a report that the caller makes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::routing::get;
use forebay_server::{Error, Result};

use super::{AdminOptions, PAGE};
use crate::web::{Access, Deadlines, HEADER_TIMEOUT, JSON, Listening, headers};

/// A page that shows one report for several servers, until dropped.
pub struct Overview {
    listening: Listening,
    access: Access,
    report: Arc<Mutex<String>>,
}

impl Overview {
    /// Listens on `address`, and shows `report` until [`show`](Self::show) replaces it.
    ///
    /// # Errors
    ///
    /// As [`Admin::start`](super::Admin::start).
    pub fn start(address: SocketAddr, report: String) -> Result<Overview> {
        let access = Access::random().map_err(|source| Error::System {
            doing: "making a random token",
            source,
        })?;
        let report = Arc::new(Mutex::new(report));
        let deadlines = Deadlines {
            header: HEADER_TIMEOUT,
            lifetime: AdminOptions::default().connection_lifetime,
        };
        let serve = |bound: SocketAddr| {
            let shown = Arc::clone(&report);
            let status = async move || {
                let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                (headers(JSON), shown.clone())
            };
            let router = Router::new()
                .route("/", get(|| async { PAGE.response() }))
                .route("/api/status", get(status));
            (access.protect(router, bound), std::future::pending())
        };
        let listening = Listening::start("forebay-overview", address, deadlines, serve)?;
        Ok(Overview {
            listening,
            access,
            report,
        })
    }

    /// Replaces the report: a [`Report`](crate::report::Report) as JSON, with a list `servers`.
    pub fn show(&self, report: String) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Returns the address of the page, with the token if one is needed.
    #[must_use]
    pub fn url(&self) -> String {
        self.access.url(self.listening.addr())
    }
}
