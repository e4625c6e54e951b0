//! `/api/images?name=NAME`: previews of samples of the last batch that was captured, as JSON.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::AdminState;
use crate::process::unix_s;
use crate::report::FORMAT;
use crate::web::{JSON, headers, parameter};
use forebay_server::Preview;

/// The last rendered JSON of each name, with the number of its batch, so that a repeated request
/// renders nothing.
#[derive(Default)]
pub(super) struct Album(Mutex<HashMap<String, (u64, Arc<str>)>>);

/// Previews of one batch.
#[derive(Serialize)]
struct Pictures<'a> {
    format: u32,
    name: &'a str,
    /// Number of the captured batch; 0, without images, before the first capture.
    number: u64,
    time_s: f64,
    rank: u64,
    epoch: u64,
    step: u64,
    images: Vec<Picture>,
}

#[derive(Serialize)]
struct Picture {
    sample: u64,
    label: i64,
    /// The title of the class, if the dataset names its classes.
    class: Option<String>,
    padding: bool,
    failed: bool,
    width: u32,
    height: u32,
    /// A JPEG as a `data:` URL; `None` if the sample is not a valid image.
    src: Option<String>,
}

pub(super) async fn images(State(room): State<Arc<AdminState>>, uri: Uri) -> Response {
    if !room.options.images {
        return (StatusCode::FORBIDDEN, "this server has no image previews\n").into_response();
    }
    let name = parameter(&uri, "name").unwrap_or_default().to_owned();
    if !room.status.serves(&name) {
        return (StatusCode::NOT_FOUND, "no such dataset or job\n").into_response();
    }
    let preview = room.status.previews(&name);
    let number = preview.as_ref().map_or(0, |preview| preview.number);
    if let Some(known) = room.album.known(&name, number) {
        return (headers(JSON), known.to_string()).into_response();
    }
    // The permit is released if the client disconnects while it waits here.
    let Ok(turn) = Arc::clone(&room.painter).acquire_owned().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // Rendering takes milliseconds, more for large images: it runs on a blocking thread so that
    // metrics and health checks do not wait.
    let painting = {
        let room = Arc::clone(&room);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            room.album.paint(&room, &name, preview.as_deref())
        })
    };
    match painting.await {
        Ok(painted) => (headers(JSON), painted.to_string()).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl Album {
    /// Returns the cached JSON of this batch. Does not wait for a request that is rendering.
    fn known(&self, name: &str, number: u64) -> Option<Arc<str>> {
        let album = self.0.try_lock().ok()?;
        let (of, painted) = album.get(name)?;
        (*of == number).then(|| Arc::clone(painted))
    }

    fn paint(&self, room: &AdminState, name: &str, preview: Option<&Preview>) -> Arc<str> {
        let number = preview.map_or(0, |preview| preview.number);
        // Requests that waited for this lock find the result of the first one.
        let mut album = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, painted)) = album.get(name)
            && *of == number
        {
            return Arc::clone(painted);
        }
        let limits = room.status.image_limits();
        let pictures = preview.map_or_else(Vec::new, |preview| {
            let picture = |sample| {
                let made = preview.thumbnail(sample, limits);
                let (width, height) = made.as_ref().map_or((0, 0), |m| (m.width, m.height));
                Picture {
                    sample: sample.sample,
                    label: sample.label,
                    class: sample.class.clone(),
                    padding: sample.padding,
                    failed: sample.failed,
                    width,
                    height,
                    src: made
                        .map(|m| format!("data:image/jpeg;base64,{}", STANDARD.encode(m.jpeg))),
                }
            };
            preview.samples.iter().map(picture).collect()
        });
        let pictures = Pictures {
            format: FORMAT,
            name,
            number,
            time_s: preview.map_or(0.0, |preview| unix_s(preview.at)),
            rank: preview.map_or(0, |preview| preview.rank),
            epoch: preview.map_or(0, |preview| preview.epoch),
            step: preview.map_or(0, |preview| preview.step),
            images: pictures,
        };
        // Only numbers and strings: serialization cannot fail.
        let painted: Arc<str> = serde_json::to_string(&pictures).unwrap_or_default().into();
        album.insert(name.to_owned(), (number, Arc::clone(&painted)));
        painted
    }
}
