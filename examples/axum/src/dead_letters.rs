//! Dead letters: deferred requests that were given up. They are listed, and can be redriven.

use std::cmp::Reverse;

use axum::{
    Extension, Json,
    extract::Path,
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse as _, Response},
};
use lockgate_axum::{DeferredJobs, Error, JobCursor, JobId, Store};
use serde_json::{Value, json};

/// Most dead letters that the listing has; `DeferredJobs::dead` allows no more in one call.
const MAX_LISTED: usize = 100;

pub(crate) async fn list(Extension(store): Extension<Store>) -> Response {
    match list_dead(&store.deferred_jobs()).await {
        Ok(letters) => Json(letters).into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Puts a dead letter back at the tail of its queue, with all attempts renewed.
pub(crate) async fn redrive(
    Extension(store): Extension<Store>,
    Path(id): Path<String>,
) -> Response {
    let Ok(id) = id.parse::<JobId>() else { return StatusCode::NOT_FOUND.into_response() };
    match store.deferred_jobs().redrive(&id).await {
        Ok(Some(state)) if state.is_pending() => {
            let location = [(LOCATION, format!("/deferred/{id}"))];
            let document = json!({ "id": id.as_str(), "state": state.as_str() });
            (StatusCode::ACCEPTED, location, Json(document)).into_response()
        }
        // It has ended in another way, or its request is no longer retained.
        Ok(Some(_)) => StatusCode::CONFLICT.into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Lists dead letters, the last one first.
async fn list_dead(jobs: &DeferredJobs) -> Result<Value, Error> {
    let mut dead = jobs.dead(JobCursor::default(), MAX_LISTED).await?.jobs;
    dead.sort_by_key(|job| Reverse(job.ended));
    let mut letters = Vec::new();
    for job in dead {
        // `None` if the job was redriven or purged meanwhile.
        if let Some(head) = jobs.peek(&job.id).await? {
            letters.push(json!({
                "id": job.id.as_str(),
                "method": head.method,
                "path": head.path,
                "reason": job.reason,
                "attempts": job.attempts,
            }));
        }
    }
    Ok(json!({ "jobs": letters }))
}
