//! The rows, and what they have in common.

pub(crate) mod accepting;
pub(crate) mod body_deadline;
pub(crate) mod client;
pub(crate) mod crowded;
pub(crate) mod defer;
pub(crate) mod elsewhere;
pub(crate) mod end_of_lock;
pub(crate) mod hold_until;
pub(crate) mod idempotency;
pub(crate) mod kept;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod line;
pub(crate) mod lock;
pub(crate) mod not_deferred;
pub(crate) mod odd_keys;
pub(crate) mod on_loss;
pub(crate) mod outage;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod recovery;
pub(crate) mod remembered;
pub(crate) mod replay;
pub(crate) mod status;
pub(crate) mod told;
pub(crate) mod users;
pub(crate) mod wiring;
pub(crate) mod within;

use std::time::{Duration, Instant};

use lockgate::{AcquireError, Key, Store};
use lockgate_tests::{Answer, Site, eventually, within};
use parking_lot::Mutex;
use serde_json::Value;

/// Far less than a lease, far more than a machine under load needs: what has to happen at once.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Of [`ROUNDS`] most have to be faster than this: less than an accept window, a look at the line, or a tick of
/// renewal, any of which would mend it if nobody gave anything back at once.
const MOSTLY: Duration = Duration::from_millis(300);

/// An odd number.
const ROUNDS: usize = 5;

/// An accepted request.
struct Job {
    id: String,
    location: String,
}

/// Tokens and ids are runs of hex digits; nothing else in our answers is, but the hash of a document in its `ETag`.
/// `but`: the id that it is about.
#[track_caller]
fn tells_no_token(answer: &Answer, but: &str) {
    let fields = answer.headers.iter().filter(|(name, _)| *name != "etag");
    let whole = format!("{:?} {}", Vec::from_iter(fields), answer.text()).replace(but, "");
    let runs = whole.split(|c: char| !c.is_ascii_hexdigit());
    assert!(runs.max_by_key(|run| run.len()).is_none_or(|run| run.len() < 12), "{whole}");
}

/// Reads a 202, with everything that is promised of one.
#[track_caller]
fn accepted(answer: Answer) -> Job {
    let answer = answer.expect(202);
    let _ = answer.retry_after();
    assert_eq!(answer.field("cache-control"), "no-store", "{answer:?}");
    let document = answer.json();
    let id = document["id"].as_str().expect("an id").to_owned();
    assert!(document["state"].is_string(), "{answer:?}");
    let location = answer.field("location").to_owned();
    assert!(location.starts_with('/'), "{answer:?}");
    assert!(location.ends_with(&format!("/{id}")), "{answer:?}");
    tells_no_token(&answer, &id);
    Job { id, location }
}

impl Job {
    /// Its status document.
    async fn document(&self, site: &Site) -> Value {
        site.get(&self.location).send().await.expect(200).json()
    }

    /// The status document, when it is no longer pending: told by the site.
    async fn ended(&self, site: &Site) -> Value {
        within("the job to end", async {
            loop {
                let wait = site.get(&self.location).header("prefer", "wait=10");
                let document = wait.send().await.expect(200).json();
                if !matches!(document["state"].as_str(), Some("queued" | "running")) {
                    return document;
                }
            }
        })
        .await
    }

    /// Looks until the status document is as it should be.
    async fn becomes(&self, site: &Site, so: impl Fn(&Value) -> bool) -> Value {
        let document = Mutex::new(Value::Null);
        eventually("the job to become what it should", async || {
            *document.lock() = self.document(site).await;
            so(&document.lock())
        })
        .await;
        document.into_inner()
    }

    /// Waits until it is done; the document of what its handler saw.
    async fn done(&self, site: &Site) -> Value {
        let document = self.ended(site).await;
        assert_eq!(document["state"], "done", "{document}");
        document["response"]["body"].clone()
    }

    /// Waits until it is dead, of this.
    async fn dead(&self, site: &Site, reason: &str) -> Value {
        let document = self.ended(site).await;
        assert_eq!(document["state"], "dead", "{document}");
        let told = document["reason"].as_str().unwrap_or_default();
        assert!(told.contains(reason), "{document}");
        document
    }
}

/// The fence that a handler saw.
#[track_caller]
fn fence(answer: &Answer) -> u64 {
    let fence = &answer.json()["fence"];
    fence.as_u64().unwrap_or_else(|| panic!("no fence: {answer:?}"))
}

/// The number of places in the line of an order that is locked.
async fn line(store: &Store, order: &str) -> u64 {
    match store.lock(Key::path_param("id", order)).acquire().await {
        Err(AcquireError::Busy(busy)) => busy.queue_length,
        other => panic!("expected a lock that is held: {other:?}"),
    }
}

/// Waits until so many places are in the line of an order.
async fn line_is(store: &Store, order: &str, length: u64) {
    eventually("the line to have that length", async || line(store, order).await == length).await;
}

/// As [`line_is`], of somebody who has just left: a place that nobody gives back stands for as long as its waiter would
/// have waited, which is longer.
async fn left_at_once(store: &Store, order: &str, length: u64) -> Duration {
    let left = Instant::now();
    line_is(store, order, length).await;
    let took = left.elapsed();
    println!("figure: longest until a place is given back {} ms", took.as_millis());
    assert!(took < AT_ONCE, "the place was there for {took:?}");
    took
}

/// Passes through a lock that should be free, or free in a moment.
async fn passes_at_once(site: &Site, order: &str) -> Duration {
    let asked = Instant::now();
    let answer = site.post(&format!("/orders/{order}/ship")).send().await;
    let waited = asked.elapsed();
    let _ = answer.expect(200);
    println!("figure: longest until the lock is free {} ms", waited.as_millis());
    assert!(waited < AT_ONCE, "the lock came free after {waited:?}");
    waited
}

/// Most of them: the others may meet a machine that has other things to do.
#[track_caller]
fn mostly_at_once(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let median = took[took.len() / 2];
    println!("figure: median until {what} {} ms", median.as_millis());
    assert!(median < MOSTLY, "until {what}: {took:?}");
}
