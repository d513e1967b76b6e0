//! Quorum, and the request for one of its locks.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{lease_repair, quorum_guard::QuorumGuard, vote_request::VoteRequest};
use crate::{
    durations::MAX_DURATION,
    error::{Error, ErrorKind},
    key::Key,
    lock::AcquireError,
    store::{LeaseTerms, LockMode, Store},
};

/// Allowed numbers of stores. A single store has no majority, and each further one is one more call
/// for each lock.
const NODE_COUNTS: RangeInclusive<usize> = 3..=9;

/// Shortest lease, as for any lock.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// Longest wait, as for any lock.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Upper bounds of the random pause between two rounds of votes: after the first round, and the
/// maximum to which it doubles.
const RETRY_PAUSE_RANGE: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];

/// Several independent stores that decide by majority; see the [module](super). Cheap to clone.
#[derive(Debug, Clone)]
pub struct Quorum {
    nodes: Arc<[Store]>,
}

impl Store {
    /// Creates a quorum of 3, 5, 7 or 9 stores, which must be independent of each other. All users
    /// of its locks must name the same ones.
    ///
    /// # Errors
    ///
    /// Of kind `Config`: another number of stores, or one of them twice, also through two handles.
    /// (That is unknown for a handle that has not reached its server yet.)
    pub fn quorum(stores: impl IntoIterator<Item = Self>) -> Result<Quorum, Error> {
        let nodes: Arc<[Self]> = stores.into_iter().collect();
        if !NODE_COUNTS.contains(&nodes.len()) || nodes.len().is_multiple_of(2) {
            let count = nodes.len();
            return Err(Error::config(format!("a quorum has 3, 5, 7 or 9 stores, not {count}")));
        }
        let is_repeated = |(index, store): (usize, &Self)| {
            nodes.iter().skip(index + 1).any(|other| store.is_same_as(other) == Some(true))
        };
        if nodes.iter().enumerate().any(is_repeated) {
            return Err(Error::config("a store is named twice in a quorum and would vote twice"));
        }
        Ok(Quorum { nodes })
    }
}

impl Quorum {
    /// Creates a request for the lock of this key. Text becomes [`Key::custom`].
    pub fn lock(&self, key: impl Into<Key>) -> QuorumRequest {
        let terms = LeaseTerms {
            lease: Duration::from_secs(10),
            renews: true,
            max_hold: Duration::from_secs(60),
            job: None,
            mode: LockMode::Exclusive,
        };
        QuorumRequest {
            vote_request: VoteRequest { nodes: Arc::clone(&self.nodes), key: key.into(), terms },
            wait: None,
        }
    }

    /// Fails if a majority of the stores is unavailable; for health checks.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// The error of one unavailable store.
    pub async fn ping(&self) -> Result<(), Error> {
        let pings = futures_util::future::join_all(self.nodes.iter().map(Store::ping)).await;
        let mut errors = pings.into_iter().filter_map(Result::err);
        match errors.nth(self.nodes.len() / 2) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Request for a lock, created by [`Quorum::lock`].
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until it is awaited"]
pub struct QuorumRequest {
    vote_request: VoteRequest,
    wait: Option<Duration>,
}

impl QuorumRequest {
    /// Sets the lease: how long the lock outlives its process. It is renewed at a third of it.
    ///
    /// Default 10 s, as for a lock of one store. At least 100 ms. Each node has a tenth of it to
    /// answer, between 10 ms and 250 ms, and never more than its store's own call timeout.
    pub fn lease(mut self, lease: Duration) -> Self {
        (self.vote_request.terms.lease, self.vote_request.terms.renews) =
            (lease.clamp(MIN_LEASE, MAX_DURATION), true);
        self
    }

    /// Sets a lease that is never renewed: the lock ends after it in any case, or after
    /// [`max_hold`](Self::max_hold) if that is sooner.
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        (self.vote_request.terms.lease, self.vote_request.terms.renews) =
            (lease.clamp(MIN_LEASE, MAX_DURATION), false);
        self
    }

    /// Sets the longest time for which a live holder may have the lock. Default 60 s, which limits
    /// a task that never ends. At least 100 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.vote_request.terms.max_hold = max_hold.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Asks again for this long, after random pauses of at most 200 ms, while another holder has
    /// the lock or a majority is unavailable.
    ///
    /// Default: no wait. At most ten minutes; the last round may end later, by the timeout of a
    /// node. There is no queue, and so no order among the requests that wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait.min(MAX_WAIT));
        self
    }

    /// Acquires the lock. Each call is an owner of its own: two of one task exclude each other.
    ///
    /// Cancel safe: if the future is dropped, each grant that a node has made or will make for it
    /// is released in the background.
    ///
    /// # Errors
    ///
    /// - [`AcquireError::Busy`] if so many nodes have granted the lock to others that no majority
    ///   was left, after the wait if there is one
    /// - [`AcquireError::Fault`] if a majority could not be asked
    pub async fn acquire(self) -> Result<QuorumGuard, AcquireError> {
        let started = Instant::now();
        let mut max_pause = RETRY_PAUSE_RANGE[0];
        loop {
            let error = match self.vote_request.acquire_majority().await {
                Ok(hold) => {
                    lease_repair::spawn_repair(&self.vote_request, &hold);
                    return Ok(QuorumGuard::new(hold));
                }
                Err(error) => error,
            };
            let pause = random_pause(max_pause);
            max_pause = (max_pause * 2).min(RETRY_PAUSE_RANGE[1]);
            let allows_retry = |wait: &Duration| started.elapsed() + pause < *wait;
            if self.wait.filter(allows_retry).is_none() || is_permanent(&error) {
                return Err(self.with_wait_since(error, started));
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn with_wait_since(&self, error: AcquireError, started: Instant) -> AcquireError {
        match error {
            AcquireError::Busy(mut busy) => {
                busy.waited = self.wait.map(|_| started.elapsed());
                AcquireError::Busy(busy)
            }
            other => other,
        }
    }
}

impl IntoFuture for QuorumRequest {
    type Output = Result<QuorumGuard, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`acquire`](Self::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Returns true if a retry cannot help: so many nodes are misconfigured that the others are no
/// majority.
fn is_permanent(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Fault(error) if error.kind() == ErrorKind::Config)
}

/// Returns a random pause of at most `max_pause`: requests that kept each other from a majority
/// must not collide again.
fn random_pause(max_pause: Duration) -> Duration {
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    let micros = u64::try_from(max_pause.as_micros()).unwrap_or(u64::MAX).max(1);
    // The two top bits of that half of a UUID are not random. The bias of a remainder is small
    // enough.
    Duration::from_micros((random << 2 >> 2) % micros + 1)
}
