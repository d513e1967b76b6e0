//! The order service behind the layers: it simulates work and records the runs of each order.

use std::{
    collections::{HashMap, VecDeque},
    process,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::Bytes,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use lockgate_axum::{CurrentJob, CurrentLock};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Recorded runs of each order in this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct OrderLog(Arc<Mutex<OrderJournal>>);

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
    (State<OrderLog>, Path<String>, Query<WorkQuery>, CurrentLock, Option<CurrentJob>);

pub(crate) async fn pay(request: OrderRequest) -> Response {
    run_work("pay", request, None).await
}

pub(crate) async fn ship(request: OrderRequest) -> Response {
    run_work("ship", request, None).await
}

pub(crate) async fn refund(
    state: State<OrderLog>,
    order: Path<String>,
    query: Query<WorkQuery>,
    lock: CurrentLock,
    job: Option<CurrentJob>,
    body: Bytes,
) -> Response {
    let note = (!body.is_empty()).then(|| String::from_utf8_lossy(&body).into_owned());
    run_work("refund", (state, order, query, lock, job), note).await
}

pub(crate) async fn list_events(
    State(orders): State<OrderLog>,
    Path(order): Path<String>,
) -> Json<Value> {
    let orders = orders.0.lock().unwrap_or_else(PoisonError::into_inner);
    let events = orders.events.get(&order).cloned().unwrap_or_default();
    Json(json!({ "order": order, "events": events }))
}

async fn run_work(op: &'static str, request: OrderRequest, note: Option<String>) -> Response {
    let (State(orders), Path(order), Query(work), CurrentLock(lock), job) = request;
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
        // These statuses have no body. hyper would send the body of a 205 anyway, and axum would
        // set `content-length` on the others.
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => {
            status.into_response()
        }
        _ => (status, Json(event)).into_response(),
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
