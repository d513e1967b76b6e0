//! The order service behind the layers: it simulates work and records the runs of each order.

use std::{
    collections::{HashMap, VecDeque},
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use actix_web::{
    HttpRequest, HttpResponse, Responder,
    error::ErrorBadRequest,
    http::{StatusCode, header::ACCESS_CONTROL_ALLOW_ORIGIN},
    web::{Bytes, Data, Json, Path, Query},
};
use lockgate_actix_web::{CurrentJob, CurrentLock, HeldLock, Store};
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

type OrderRequest =
    (Data<OrderLog>, Path<String>, Query<WorkQuery>, CurrentLock, Option<CurrentJob>, Data<Store>);

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
    check_path_encoding(&request)?;
    let order = order.into_inner();
    let events = orders.journal().events.get(&order).cloned().unwrap_or_default();
    Ok(Json(json!({ "order": order, "events": events })))
}

/// Live state of an order, for the page. Pages of other processes, at other ports, may read it too.
pub(crate) async fn show_live(
    orders: Data<OrderLog>,
    order: Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, actix_web::Error> {
    check_path_encoding(&request)?;
    let allowed_origin = (ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    Ok(HttpResponse::Ok().insert_header(allowed_origin).json(orders.live_runs(&order)))
}

/// Rejects invalid UTF-8, which actix replaces with U+FFFD. Different paths would be one order.
pub(crate) fn check_path_encoding(request: &HttpRequest) -> Result<(), actix_web::Error> {
    percent_decode_str(request.path()).decode_utf8().map_err(ErrorBadRequest)?;
    Ok(())
}

async fn run_work(op: &'static str, request: OrderRequest, note: Option<String>) -> HttpResponse {
    let (orders, order, Query(work), CurrentLock(lock), job, store) = request;
    let order = order.into_inner();
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
        // These statuses have no body. actix would send it anyway, and the client would read it as
        // the next response.
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => {
            HttpResponse::new(status)
        }
        _ => HttpResponse::build(status).json(event),
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
