//! Pages over HTTP: of a server the dashboard, its report, health, readiness and metrics; of a source its samples.
//!
//! [`Admin`] and [`Health`] answer requests with what a [`ServerStatus`](forebay_server::ServerStatus) tells. `admin` keeps
//! a `history` of snapshots; from both, `report` makes what the dashboard and `forebay top` show, and `metrics` the page for
//! Prometheus. [`Overview`] shows the report of several servers on the dashboard's page.
//!
//! [`Viewer`] shows the records of a [`ViewSource`] in a browser. `web` has the listener and the policy of both pages.

mod admin;
mod environment;
mod history;
mod metrics;
mod process;
pub mod report;
mod view;
mod web;

pub use admin::{Admin, AdminOptions, Health, Overview};
pub use view::{ViewOptions, ViewSource, Viewer};

use environment::Environment;
use forebay_server::ServerStatus;

/// Returns all metrics of a server in the Prometheus text format. docs/serving.md lists names and labels.
#[must_use]
pub fn metrics(status: &ServerStatus) -> String {
    metrics::render(&status.snapshot(), &Environment::look(None))
}
