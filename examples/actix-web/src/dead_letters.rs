//! Dead letters: deferred requests that were given up. They are listed, and can be redriven.

use std::cmp::Reverse;

use actix_web::{
    HttpRequest, HttpResponse,
    http::{StatusCode, header::LOCATION},
    web::{Data, Path},
};
use lockgate_actix_web::{DeferredJobs, Error, JobCursor, JobId, Store};
use serde_json::{Value, json};

use crate::orders::check_path_encoding;

/// Most dead letters that the listing has; `DeferredJobs::dead` allows no more in one call.
const MAX_LISTED: usize = 100;

pub(crate) async fn list(store: Data<Store>) -> HttpResponse {
    match list_dead(&store.deferred_jobs()).await {
        Ok(letters) => HttpResponse::Ok().json(letters),
        Err(_) => HttpResponse::new(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// Puts a dead letter back at the tail of its queue, with all attempts renewed.
pub(crate) async fn redrive(
    store: Data<Store>,
    id: Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, actix_web::Error> {
    check_path_encoding(&request)?;
    let Ok(id) = id.parse::<JobId>() else {
        return Ok(HttpResponse::new(StatusCode::NOT_FOUND));
    };
    Ok(match store.deferred_jobs().redrive(&id).await {
        Ok(Some(state)) if state.is_pending() => {
            let location = (LOCATION, format!("/deferred/{id}"));
            let document = json!({ "id": id.as_str(), "state": state.as_str() });
            HttpResponse::Accepted().insert_header(location).json(document)
        }
        // It has ended in another way, or its request is no longer retained.
        Ok(Some(_)) => HttpResponse::new(StatusCode::CONFLICT),
        Ok(None) => HttpResponse::new(StatusCode::NOT_FOUND),
        Err(_) => HttpResponse::new(StatusCode::SERVICE_UNAVAILABLE),
    })
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
