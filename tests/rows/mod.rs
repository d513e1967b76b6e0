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

/// Far less than a lease, far more than a machine under load needs: what has to happen at once.
const MAX_RELEASE_DELAY: Duration = Duration::from_secs(8);

/// Limit of the median of [`ROUND_COUNT`] releases. It is below the offer timeout, the poll
/// interval of a waiter and the renewal interval, each of which would hide a missing release.
const MAX_MEDIAN_RELEASE_DELAY: Duration = Duration::from_millis(300);

/// An odd number.
const ROUND_COUNT: usize = 5;

/// An accepted request.
struct JobReceipt {
    id: String,
    location: String,
}

/// Tokens and ids are runs of hex digits; nothing else in our answers is, but the hash of a document in its `ETag`.
/// `but`: the id that it is about.
#[track_caller]
fn assert_no_token(answer: &TestResponse, but: &str) {
    let fields = answer.headers.iter().filter(|(name, _)| *name != "etag");
    let whole = format!("{:?} {}", Vec::from_iter(fields), answer.text()).replace(but, "");
    let runs = whole.split(|c: char| !c.is_ascii_hexdigit());
    assert!(runs.max_by_key(|run| run.len()).is_none_or(|run| run.len() < 12), "{whole}");
}

/// Reads a 202, with everything that is promised of one.
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
    /// Its status document.
    async fn status_document(&self, site: &TestSite) -> Value {
        site.get(&self.location).send().await.expect_status(200).json()
    }

    /// The status document, when it is no longer pending: told by the site.
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

    /// Looks until the status document is as it should be.
    async fn wait_for_status(&self, site: &TestSite, so: impl Fn(&Value) -> bool) -> Value {
        let document = Mutex::new(Value::Null);
        eventually("the job to become what it should", async || {
            *document.lock() = self.status_document(site).await;
            so(&document.lock())
        })
        .await;
        document.into_inner()
    }

    /// Waits until it is done; the document of what its handler saw.
    async fn wait_until_done(&self, site: &TestSite) -> Value {
        let document = self.wait_for_final_status(site).await;
        assert_eq!(document["state"], "done", "{document}");
        document["response"]["body"].clone()
    }

    /// Waits until it is dead, of this.
    async fn wait_until_dead(&self, site: &TestSite, reason: &str) -> Value {
        let document = self.wait_for_final_status(site).await;
        assert_eq!(document["state"], "dead", "{document}");
        let told = document["reason"].as_str().unwrap_or_default();
        assert!(told.contains(reason), "{document}");
        document
    }
}

/// The fence that a handler saw.
#[track_caller]
fn response_fence(answer: &TestResponse) -> u64 {
    let fence = &answer.json()["fence"];
    fence.as_u64().unwrap_or_else(|| panic!("no fence: {answer:?}"))
}

/// The number of places in the line of an order that is locked.
async fn queue_length(store: &Store, order: &str) -> u64 {
    match store.lock(Key::path_param("id", order)).acquire().await {
        Err(AcquireError::Busy(busy)) => busy.queue_length,
        other => panic!("expected a lock that is held: {other:?}"),
    }
}

/// Waits until so many places are in the line of an order.
async fn wait_for_queue_length(store: &Store, order: &str, length: u64) {
    eventually("the line to have that length", async || queue_length(store, order).await == length)
        .await;
}

/// As [`wait_for_queue_length`], of somebody who has just left: a place that nobody gives back stands for as long as its waiter would
/// have waited, which is longer.
async fn measure_queue_leave(store: &Store, order: &str, length: u64) -> Duration {
    let left = Instant::now();
    wait_for_queue_length(store, order, length).await;
    let took = left.elapsed();
    println!("figure: longest until a place is given back {} ms", took.as_millis());
    assert!(took < MAX_RELEASE_DELAY, "the place was there for {took:?}");
    took
}

/// Passes through a lock that should be free, or free in a moment.
async fn measure_acquire(site: &TestSite, order: &str) -> Duration {
    let asked = Instant::now();
    let answer = site.post(&format!("/orders/{order}/ship")).send().await;
    let waited = asked.elapsed();
    let _ = answer.expect_status(200);
    println!("figure: longest until the lock is free {} ms", waited.as_millis());
    assert!(waited < MAX_RELEASE_DELAY, "the lock came free after {waited:?}");
    waited
}

/// Most of them: the others may meet a machine that has other things to do.
#[track_caller]
fn assert_median_delay(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let median = took[took.len() / 2];
    println!("figure: median until {what} {} ms", median.as_millis());
    assert!(median < MAX_MEDIAN_RELEASE_DELAY, "until {what}: {took:?}");
}
