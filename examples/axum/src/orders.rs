//! The order service behind the layers: it simulates work and records the runs of each order.

use std::{
    collections::{HashMap, VecDeque},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, Query, State},
    http::{StatusCode, header::ACCESS_CONTROL_ALLOW_ORIGIN},
    response::{IntoResponse as _, Response},
};
use lockgate_axum::{CurrentJob, CurrentLock, HeldLock, Store};
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
    active_runs: Vec<ActiveRun>,
    last_run_number: u64,
}

/// A run that has not ended.
#[derive(Debug)]
struct ActiveRun {
    number: u64,
    order: String,
    op: &'static str,
    started_us: u64,
    lock: HeldLock,
    deferred: Option<Value>,
}

/// Removes an active run when it is dropped: at its end, by a panic, or by a disconnect.
struct ActiveRunGuard<'a> {
    orders: &'a OrderLog,
    number: u64,
}

impl Drop for ActiveRunGuard<'_> {
    fn drop(&mut self) {
        self.orders.journal().active_runs.retain(|run| run.number != self.number);
    }
}

/// Most ended runs in the answer for the page, which asks several times a second.
const MAX_LIVE_EVENTS: usize = 30;

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

/// Options of the simulated work: its time, the status of the response, and panics in the middle.
#[derive(Debug, Deserialize)]
pub(crate) struct WorkQuery {
    #[serde(default = "default_ms")]
    ms: u64,
    #[serde(default = "default_status")]
    status: u16,
    #[serde(default)]
    panic: u8,
    /// Number of runs that panic, of a deferred request. The next run, after a redrive, succeeds.
    #[serde(default)]
    fails: usize,
}

fn default_ms() -> u64 {
    100
}

fn default_status() -> u16 {
    200
}

type OrderRequest = (
    State<OrderLog>,
    Path<String>,
    Query<WorkQuery>,
    CurrentLock,
    Option<CurrentJob>,
    Extension<Store>,
);

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
    store: Extension<Store>,
    body: Bytes,
) -> Response {
    let note = (!body.is_empty()).then(|| String::from_utf8_lossy(&body).into_owned());
    run_work("refund", (state, order, query, lock, job, store), note).await
}

pub(crate) async fn list_events(
    State(orders): State<OrderLog>,
    Path(order): Path<String>,
) -> Json<Value> {
    let events = orders.journal().events.get(&order).cloned().unwrap_or_default();
    Json(json!({ "order": order, "events": events }))
}

/// Live state of an order, for the page. Pages of other processes, at other ports, may read it too.
pub(crate) async fn show_live(
    State(orders): State<OrderLog>,
    Path(order): Path<String>,
) -> Response {
    ([(ACCESS_CONTROL_ALLOW_ORIGIN, "*")], Json(orders.live_runs(&order))).into_response()
}

async fn run_work(op: &'static str, request: OrderRequest, note: Option<String>) -> Response {
    let (State(orders), Path(order), Query(work), CurrentLock(lock), job, Extension(store)) =
        request;
    let deferred = job
        .as_ref()
        .map(|CurrentJob(job)| json!({ "id": job.id.as_str(), "attempt": job.attempt }));
    let started_us = now_us();
    let _active_run = orders.start_run(&order, op, started_us, &lock, deferred.as_ref());
    let earlier_runs =
        if work.fails > 0 { count_earlier_runs(&store, job.as_ref()).await } else { 0 };
    tokio::time::sleep(Duration::from_millis(work.ms.min(60_000))).await;
    assert!(work.panic == 0 && earlier_runs >= work.fails, "asked to panic");
    let event = OrderEvent {
        order,
        op,
        fence: lock.fence(),
        started_us,
        finished_us: now_us(),
        pid: process::id(),
        deferred,
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

/// Counts the earlier runs of a deferred request. Unknown ones do not count.
async fn count_earlier_runs(store: &Store, job: Option<&CurrentJob>) -> usize {
    let Some(CurrentJob(job)) = job else { return 0 };
    match store.deferred_jobs().get(&job.id).await {
        Ok(Some(job)) => job.runs.len(),
        _ => 0,
    }
}

impl OrderLog {
    fn journal(&self) -> MutexGuard<'_, OrderJournal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_run(
        &self,
        order: &str,
        op: &'static str,
        started_us: u64,
        lock: &HeldLock,
        deferred: Option<&Value>,
    ) -> ActiveRunGuard<'_> {
        let mut journal = self.journal();
        journal.last_run_number += 1;
        let number = journal.last_run_number;
        journal.active_runs.push(ActiveRun {
            number,
            order: order.to_owned(),
            op,
            started_us,
            lock: lock.clone(),
            deferred: deferred.cloned(),
        });
        ActiveRunGuard { orders: self, number }
    }

    /// Returns the active and the last ended runs of an order in this process. Active ones have the
    /// time that their lease lasts without a renewal.
    fn live_runs(&self, order: &str) -> Value {
        let journal = self.journal();
        let running: Vec<_> = journal
            .active_runs
            .iter()
            .filter(|run| run.order == order)
            .map(|run| {
                json!({
                    "op": run.op,
                    "fence": run.lock.fence(),
                    "started_us": run.started_us,
                    "lease_ms": u64::try_from(run.lock.remaining().as_millis()).unwrap_or(u64::MAX),
                    "deferred": run.deferred,
                })
            })
            .collect();
        let events = journal.events.get(order).map(Vec::as_slice).unwrap_or_default();
        let events: Vec<_> =
            events.iter().skip(events.len().saturating_sub(MAX_LIVE_EVENTS)).collect();
        json!({
            "order": order,
            "pid": process::id(),
            "now_us": now_us(),
            "running": running,
            "events": events,
        })
    }

    /// Keeps the last 100 events of an order and the last 1000 orders, so that requests cannot
    /// exhaust the memory.
    fn record(&self, mut event: OrderEvent) {
        event.note = event.note.map(|note| note.chars().take(200).collect());
        let mut journal = self.journal();
        let OrderJournal { events, orders, .. } = &mut *journal;
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
        let journal = orders.journal();
        assert_eq!((journal.events.len(), journal.orders.len()), (1000, 1000));
        assert!(!journal.events.contains_key("0"), "the oldest order is dropped");
        let events = &journal.events["1000"];
        assert_eq!(events.len(), 100);
        assert_eq!(events[0].note, Some("é".repeat(200)));
    }
}
