//! The order service behind the layers: it simulates work and records the runs of each order.

use std::{
    collections::{HashMap, VecDeque},
    process,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use actix_web::{
    HttpRequest, HttpResponse, Responder,
    error::ErrorBadRequest,
    http::StatusCode,
    web::{Bytes, Data, Json, Path, Query},
};
use lockgate_actix_web::{CurrentJob, CurrentLock};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Recorded runs of each order in this process.
#[derive(Debug, Default)]
pub(crate) struct OrderLog(Mutex<OrderJournal>);

#[derive(Debug, Default)]
struct OrderJournal {
    events: HashMap<String, Vec<OrderEvent>>,
    /// Orders, oldest first.
    orders: VecDeque<String>,
}

#[derive(Debug, Clone, Serialize)]
struct OrderEvent {
    order: String,
    op: &'static str,
    fence: Option<u64>,
    started_us: u64,
    finished_us: u64,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    deferred: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Options of the simulated work.
#[derive(Debug, Deserialize)]
pub(crate) struct WorkQuery {
    #[serde(default = "default_ms")]
    ms: u64,
    #[serde(default = "default_status")]
    status: u16,
    #[serde(default)]
    panic: u8,
}

fn default_ms() -> u64 {
    100
}

fn default_status() -> u16 {
    200
}

type OrderRequest =
    (Data<OrderLog>, Path<String>, Query<WorkQuery>, CurrentLock, Option<CurrentJob>);

pub(crate) async fn pay(request: OrderRequest) -> HttpResponse {
    run_work("pay", request, None).await
}

pub(crate) async fn ship(request: OrderRequest) -> HttpResponse {
    run_work("ship", request, None).await
}

pub(crate) async fn refund(request: OrderRequest, body: Bytes) -> HttpResponse {
    let note = (!body.is_empty()).then(|| String::from_utf8_lossy(&body).into_owned());
    run_work("refund", request, note).await
}

pub(crate) async fn list_events(
    orders: Data<OrderLog>,
    order: Path<String>,
    request: HttpRequest,
) -> Result<impl Responder, actix_web::Error> {
    // actix replaces invalid UTF-8 with U+FFFD, which would map different paths to one order.
    percent_decode_str(request.path()).decode_utf8().map_err(ErrorBadRequest)?;
    let (order, orders) = (order.into_inner(), orders.0.lock());
    let orders = orders.unwrap_or_else(PoisonError::into_inner);
    let events = orders.events.get(&order).cloned().unwrap_or_default();
    Ok(Json(json!({ "order": order, "events": events })))
}

async fn run_work(op: &'static str, request: OrderRequest, note: Option<String>) -> HttpResponse {
    let (orders, order, Query(work), CurrentLock(lock), job) = request;
    let order = order.into_inner();
    let started_us = now_us();
    tokio::time::sleep(Duration::from_millis(work.ms.min(60_000))).await;
    assert!(work.panic == 0, "asked to panic");
    let event = OrderEvent {
        order,
        op,
        fence: lock.fence(),
        started_us,
        finished_us: now_us(),
        pid: process::id(),
        deferred: job
            .map(|CurrentJob(job)| json!({ "id": job.id.as_str(), "attempt": job.attempt })),
        note,
    };
    orders.record(event.clone());
    // An informational status is not a final response.
    let status = StatusCode::from_u16(work.status).ok().filter(|status| !status.is_informational());
    let status = status.unwrap_or(StatusCode::BAD_REQUEST);
    match status {
        // These statuses have no body. actix would send it anyway, and the client would read it as
        // the next response.
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => {
            HttpResponse::new(status)
        }
        _ => HttpResponse::build(status).json(event),
    }
}

impl OrderLog {
    /// Keeps the last 100 events of an order and the last 1000 orders, so that requests cannot
    /// exhaust the memory.
    fn record(&self, mut event: OrderEvent) {
        event.note = event.note.map(|note| note.chars().take(200).collect());
        let mut journal = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let OrderJournal { events, orders } = &mut *journal;
        if !events.contains_key(&event.order) {
            orders.push_back(event.order.clone());
        }
        if orders.len() > 1000
            && let Some(oldest) = orders.pop_front()
        {
            events.remove(&oldest);
        }
        let events = events.entry(event.order.clone()).or_default();
        if events.len() == 100 {
            events.remove(0);
        }
        events.push(event);
    }
}

fn now_us() -> u64 {
    let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(unix_time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_orders_are_bounded() {
        let orders = OrderLog::default();
        for order in (0..1001).chain([1000; 100]) {
            orders.record(OrderEvent {
                order: order.to_string(),
                op: "refund",
                fence: None,
                started_us: 0,
                finished_us: 0,
                pid: 0,
                deferred: None,
                note: Some("é".repeat(201)),
            });
        }
        let journal = orders.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!((journal.events.len(), journal.orders.len()), (1000, 1000));
        assert!(!journal.events.contains_key("0"), "the oldest order is dropped");
        let events = &journal.events["1000"];
        assert_eq!(events.len(), 100);
        assert_eq!(events[0].note, Some("é".repeat(200)));
    }
}
