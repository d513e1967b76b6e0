//! The rows of the scenarios, and their common helpers.

pub(crate) mod body_deadline;
pub(crate) mod client_identity;
pub(crate) mod defer;
pub(crate) mod defer_options;
pub(crate) mod direct_runs;
pub(crate) mod hold_until;
pub(crate) mod idempotency;
pub(crate) mod job_status;
pub(crate) mod key_encoding;
pub(crate) mod lock;
pub(crate) mod lock_keys;
pub(crate) mod lock_policy;
pub(crate) mod lock_release;
pub(crate) mod misconfiguration;
pub(crate) mod not_deferred;
pub(crate) mod on_loss;
pub(crate) mod outage;
pub(crate) mod quota;
pub(crate) mod rate_headers;
pub(crate) mod rate_policies;
pub(crate) mod recovery;
pub(crate) mod reentrant_locks;
pub(crate) mod remote_replay;
pub(crate) mod replay;
pub(crate) mod retention;
pub(crate) mod shard_fairness;
pub(crate) mod user_scoping;
pub(crate) mod wait_queue;

use std::time::{Duration, Instant};

use lockgate::{AcquireError, Key, Store};
use lockgate_tests::{TestResponse, TestSite, eventually, with_timeout};
use parking_lot::Mutex;
use serde_json::Value;

/// Maximum delay of an immediate release: far below a lease, far above the delays of a loaded
/// machine.
const MAX_RELEASE_DELAY: Duration = Duration::from_secs(8);

/// Limit of the median of [`ROUND_COUNT`] releases. It is below the offer timeout, the poll
/// interval of a waiter and the renewal interval, each of which would hide a missing release.
const MAX_MEDIAN_RELEASE_DELAY: Duration = Duration::from_millis(300);

/// Odd, so that the median is one of the values.
const ROUND_COUNT: usize = 5;

/// Id and status URL of an accepted request.
struct JobReceipt {
    id: String,
    location: String,
}

/// Expects no token in a response. Tokens and ids are runs of hex digits; apart from `job_id` and
/// the hash in the `ETag`, a response has none.
#[track_caller]
fn assert_no_token(answer: &TestResponse, job_id: &str) {
    let fields = answer.headers.iter().filter(|(name, _)| *name != "etag");
    let text = format!("{:?} {}", Vec::from_iter(fields), answer.text()).replace(job_id, "");
    let runs = text.split(|c: char| !c.is_ascii_hexdigit());
    assert!(runs.max_by_key(|run| run.len()).is_none_or(|run| run.len() < 12), "{text}");
}

/// Reads a 202 and checks all promised headers and members.
#[track_caller]
fn expect_accepted(answer: TestResponse) -> JobReceipt {
    let answer = answer.expect_status(202);
    let _ = answer.retry_after_seconds();
    assert_eq!(answer.header("cache-control"), "no-store", "{answer:?}");
    let document = answer.json();
    let id = document["id"].as_str().expect("an id").to_owned();
    assert!(document["state"].is_string(), "{answer:?}");
    let location = answer.header("location").to_owned();
    assert!(location.starts_with('/'), "{answer:?}");
    assert!(location.ends_with(&format!("/{id}")), "{answer:?}");
    assert_no_token(&answer, &id);
    JobReceipt { id, location }
}

impl JobReceipt {
    /// Returns the current status document.
    async fn status_document(&self, site: &TestSite) -> Value {
        site.get(&self.location).send().await.expect_status(200).json()
    }

    /// Waits for the end of the job by long polls and returns the status document.
    async fn wait_for_final_status(&self, site: &TestSite) -> Value {
        with_timeout("the job to end", async {
            loop {
                let wait = site.get(&self.location).header("prefer", "wait=10");
                let document = wait.send().await.expect_status(200).json();
                if !matches!(document["state"].as_str(), Some("queued" | "running")) {
                    return document;
                }
            }
        })
        .await
    }

    /// Polls until the status document fulfils the condition.
    async fn wait_for_status(&self, site: &TestSite, condition: impl Fn(&Value) -> bool) -> Value {
        let document = Mutex::new(Value::Null);
        eventually("the job to reach the expected state", async || {
            *document.lock() = self.status_document(site).await;
            condition(&document.lock())
        })
        .await;
        document.into_inner()
    }

    /// Waits until the job is done. Returns the request as its handler saw it.
    async fn wait_until_done(&self, site: &TestSite) -> Value {
        let document = self.wait_for_final_status(site).await;
        assert_eq!(document["state"], "done", "{document}");
        document["response"]["body"].clone()
    }

    /// Waits until the job is dead for this reason.
    async fn wait_until_dead(&self, site: &TestSite, reason: &str) -> Value {
        let document = self.wait_for_final_status(site).await;
        assert_eq!(document["state"], "dead", "{document}");
        let actual_reason = document["reason"].as_str().unwrap_or_default();
        assert!(actual_reason.contains(reason), "{document}");
        document
    }
}

/// Returns the fence that the handler saw.
#[track_caller]
fn response_fence(answer: &TestResponse) -> u64 {
    let fence = &answer.json()["fence"];
    fence.as_u64().unwrap_or_else(|| panic!("no fence: {answer:?}"))
}

/// Returns the number of queue entries of an order whose lock is held.
async fn queue_length(store: &Store, order: &str) -> u64 {
    match store.lock(Key::path_param("id", order)).acquire().await {
        Err(AcquireError::Busy(busy)) => busy.queue_length,
        other => panic!("expected a lock that is held: {other:?}"),
    }
}

/// Waits until the wait queue of the order has this length.
async fn wait_for_queue_length(store: &Store, order: &str, length: u64) {
    eventually("the line to have that length", async || queue_length(store, order).await == length)
        .await;
}

/// Measures [`wait_for_queue_length`] after a waiter has left. A queue entry that is not removed
/// lasts for the remaining wait of its waiter, which is longer than the limit.
async fn measure_queue_leave(store: &Store, order: &str, length: u64) -> Duration {
    let started = Instant::now();
    wait_for_queue_length(store, order, length).await;
    let elapsed = started.elapsed();
    println!("figure: longest until a queue entry is removed {} ms", elapsed.as_millis());
    assert!(elapsed < MAX_RELEASE_DELAY, "the queue entry was there for {elapsed:?}");
    elapsed
}

/// Acquires and releases a lock that is free or about to be released.
async fn measure_acquire(site: &TestSite, order: &str) -> Duration {
    let started = Instant::now();
    let answer = site.post(&format!("/orders/{order}/ship")).send().await;
    let elapsed = started.elapsed();
    let _ = answer.expect_status(200);
    println!("figure: longest until the lock is free {} ms", elapsed.as_millis());
    assert!(elapsed < MAX_RELEASE_DELAY, "the lock came free after {elapsed:?}");
    elapsed
}

/// Only the median is checked: single delays may come from a loaded machine.
#[track_caller]
fn assert_median_delay(action: &str, mut delays: Vec<Duration>) {
    delays.sort_unstable();
    let median = delays[delays.len() / 2];
    println!("figure: median until {action} {} ms", median.as_millis());
    assert!(median < MAX_MEDIAN_RELEASE_DELAY, "until {action}: {delays:?}");
}
