//! Requests of the page.

use std::sync::{Arc, LazyLock};
use std::thread;

use axum::Router;
use axum::extract::{Path, Query as Parameters, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use forebay_options::LoaderOptions;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use super::describe;
use super::picture;
use super::query::{self, LastResult, Query, Selection};
use super::scan::Catalog;
use crate::web::{JSON, Page, headers};

/// Maximum number of records in an answer.
const MAX_PAGE: usize = 1000;
/// Header of requests that change something. Pages from elsewhere cannot send it without asking.
const CHANGE_HEADER: &str = "x-forebay-view";

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    Page::new(
        include_str!("page/index.html"),
        include_str!("page/style.css"),
        include_str!("page/script.js"),
        "'self' data:",
        // Notebooks on this machine show the page in a frame.
        "http://localhost:* https://localhost:* http://127.0.0.1:* vscode-webview:",
    )
});

/// State shared by all requests.
pub(super) struct ViewState {
    pub(super) catalog: Arc<Catalog>,
    pub(super) last: LastResult,
    /// Permits of pictures: each decodes one image.
    pub(super) pictures: Arc<Semaphore>,
    /// Permits of passes over all records.
    pub(super) passes: Arc<Semaphore>,
    pub(super) threads: usize,
    pub(super) loader: LoaderOptions,
    /// Part of the address of pictures, since browsers keep them and another source may have the same numbers.
    pub(super) session: String,
}

type Shared = State<Arc<ViewState>>;

/// An answer, or why there is none: a bad request, as text.
type Answer<T = Response> = Result<T, (StatusCode, String)>;

/// Parameters of requests, apart from those of a [`Query`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Asked {
    /// The part of a selection.
    offset: usize,
    limit: usize,
    /// Whether a selection is to be made again.
    again: bool,
    /// Whether a list has one number a line.
    lines: bool,
    /// Whether records are to be read.
    run: bool,
    /// The record of a request for one.
    number: u64,
}

pub(super) fn router(state: Arc<ViewState>) -> Router {
    Router::new()
        .route("/", get(|| async { PAGE.response() }))
        .route("/api/summary", get(summary))
        .route("/api/progress", get(progress))
        .route("/api/records", get(records))
        .route("/api/histograms", get(histograms))
        .route("/api/record", get(record))
        .route("/api/export", get(export))
        .route("/api/scan", post(scan))
        .route("/picture/{kind}", get(picture))
        .with_state(state)
}

fn bad(what: impl ToString) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, what.to_string())
}

/// Runs work that takes longer than a few microseconds on a thread of its own, since stores refuse threads of a runtime. A permit
/// bounds how much runs at once; a client that leaves while it waits takes none.
async fn work<T: Send + 'static>(
    state: &Arc<ViewState>,
    permits: &Arc<Semaphore>,
    work: impl FnOnce(&ViewState) -> Result<T, String> + Send + 'static,
) -> Answer<T> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(bad)?;
    let state = Arc::clone(state);
    let (done, made) = oneshot::channel();
    // Without a thread, the sender is dropped.
    let _ = thread::Builder::new().spawn(move || {
        let _permit = permit;
        // The client may have left.
        let _ = done.send(work(&state));
    });
    let failed = |_| (StatusCode::INTERNAL_SERVER_ERROR, "it failed".to_owned());
    made.await.map_err(failed)?.map_err(bad)
}

fn answer(value: &Value) -> Response {
    (headers(JSON), value.to_string()).into_response()
}

async fn progress(State(state): Shared) -> Response {
    answer(&state.catalog.progress())
}

/// Facts about the source as a whole.
async fn summary(State(state): Shared) -> Answer {
    let made = work(&state, &state.passes, |state| {
        let mut summary = describe::summary(&state.catalog);
        summary["session"] = state.session.as_str().into();
        summary["loader"] = Value::Object(state.loader.given());
        Ok(summary)
    });
    Ok(answer(&made.await?))
}

async fn select(state: &Arc<ViewState>, query: Query, again: bool) -> Answer<Selection> {
    work(state, &state.passes, move |state| {
        state.last.get(&state.catalog, &query, again)
    })
    .await
}

async fn records(
    State(state): Shared,
    Parameters(query): Parameters<Query>,
    Parameters(asked): Parameters<Asked>,
) -> Answer {
    let selection = select(&state, query, asked.again).await?;
    let snapshot = state.catalog.table.snapshot();
    let numbers = selection.iter().skip(asked.offset);
    let numbers = numbers.take(asked.limit.min(MAX_PAGE));
    let rows = numbers.filter_map(|number| snapshot.row(*number));
    let rows: Vec<Value> = rows
        .map(|row| describe::row(&state.catalog, &snapshot, &row))
        .collect();
    Ok(answer(&json!({"total": selection.len(), "records": rows})))
}

async fn histograms(State(state): Shared, Parameters(query): Parameters<Query>) -> Answer {
    let made = work(&state, &state.passes, move |state| {
        let selection = state.last.get(&state.catalog, &query, false)?;
        let snapshot = state.catalog.table.snapshot();
        Ok(query::histograms(&selection, &snapshot))
    });
    Ok(answer(&made.await?))
}

/// One record in full.
async fn record(State(state): Shared, Parameters(asked): Parameters<Asked>) -> Answer {
    let made = work(&state, &state.pictures, move |state| {
        describe::record(&state.catalog, asked.number)
    });
    Ok(answer(&made.await?))
}

/// The numbers of a selection in its split, for the option `indices` of loaders.
async fn export(
    State(state): Shared,
    Parameters(query): Parameters<Query>,
    Parameters(asked): Parameters<Asked>,
) -> Answer {
    let source = &state.catalog.source;
    let first = match &query.split {
        None if source.splits.len() > 1 => {
            return Err(bad("choose a split: `indices` counts within one"));
        }
        None => 0,
        Some(name) => source.split(name).map_err(bad)?.records.start,
    };
    let selection = select(&state, query, true).await?;
    let numbers = selection.iter().map(|number| u64::from(*number) - first);
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    let (name, kind, text) = match asked.lines {
        true => {
            let lines: String = numbers.iter().map(|number| format!("{number}\n")).collect();
            ("attachment; filename=indices.txt", "text/plain", lines)
        }
        false => (
            "attachment; filename=indices.json",
            JSON,
            json!(numbers).to_string(),
        ),
    };
    Ok(([(CONTENT_DISPOSITION, name)], headers(kind), text).into_response())
}

/// Starts or stops reading records in the background.
async fn scan(
    State(state): Shared,
    head: HeaderMap,
    Parameters(asked): Parameters<Asked>,
) -> Answer {
    if !head.contains_key(CHANGE_HEADER) {
        let what = format!("the header {CHANGE_HEADER} is missing");
        return Err((StatusCode::FORBIDDEN, what));
    }
    match asked.run {
        true => state.catalog.start(state.threads),
        false => state.catalog.stop(),
    }
    Ok(progress(State(state)).await)
}

/// Browsers may keep pictures: their addresses have the session and all that they depend on.
async fn picture(
    State(state): Shared,
    Path(kind): Path<picture::Kind>,
    Parameters(asked): Parameters<picture::Asked>,
) -> Answer {
    let made = work(&state, &state.pictures, move |state| {
        picture::make(&state.catalog.source, kind, &asked)
    });
    let (bytes, kind) = made.await?;
    let mut response = (headers(kind), bytes).into_response();
    let kept = HeaderValue::from_static("private, max-age=3600");
    response.headers_mut().insert(CACHE_CONTROL, kept);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_viewer_is_self_contained() {
        PAGE.assert_self_contained();
    }
}
