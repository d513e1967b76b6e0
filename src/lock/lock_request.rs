//! Request for a lock, and its settings.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{
    acquire_options::{AcquireOptions, MAX_WAIT},
    held_lock_view::HeldLocks,
    lock_guard::LockGuard,
    lock_outcome::AcquireError,
    lock_retry::LockRetry,
};
use crate::{
    error::{Error, expect_setting},
    key::Key,
    store::{LockMode, Store},
};

/// Request for a lock, created by [`Store::lock`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockgate::AcquireError> {
/// # use std::time::Duration;
/// # use lockgate::Store;
/// let store = Store::memory();
/// let request = store
///     .lock("order:7")
///     .lease(Duration::from_secs(5))
///     .wait(Duration::from_secs(2));
/// let guard = request.acquire().await?;
/// assert!(guard.remaining() <= Duration::from_secs(5));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until it is awaited"]
pub struct LockRequest {
    pub(super) store: Store,
    pub(super) key: Key,
    pub(super) options: AcquireOptions,
    pub(super) wait: Option<Duration>,
    pub(super) retry: Option<LockRetry>,
}

impl Store {
    /// Creates a request for the lock of this key. Text becomes [`Key::custom`];
    /// [`Key::path_param`] is the key of a `LockLayer`, so that jobs and handlers can share its
    /// lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use lockgate::{AcquireError, Store};
    /// let store = Store::memory();
    /// let guard = store.lock("order:7").acquire().await?;
    ///
    /// let second = store.lock("order:7").acquire().await;
    /// assert!(matches!(second, Err(AcquireError::Busy(_))));
    /// guard.release().await;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, key: impl Into<Key>) -> LockRequest {
        LockRequest::new(self, &key.into(), AcquireOptions::default(), None)
    }
}

impl LockRequest {
    pub(super) fn new(
        store: &Store,
        key: &Key,
        options: AcquireOptions,
        wait: Option<Duration>,
    ) -> Self {
        Self { store: store.clone(), key: key.clone(), options, wait, retry: None }
    }

    /// Sets the lease: how long the lock outlives its process. It is renewed at a third of it.
    ///
    /// Default 10 s: long enough to survive pauses and short outages, short enough to wait for. At
    /// least 100 ms, and never longer than [`max_hold`](Self::max_hold).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use std::time::Duration;
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let guard = store.lock("report").lease(Duration::from_secs(30)).acquire().await?;
    /// assert!(guard.remaining() > Duration::from_secs(20));
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease, true);
        self
    }

    /// Sets a lease that is never renewed: the lock ends after it in any case.
    ///
    /// At least 100 ms, and never longer than [`max_hold`](Self::max_hold), 60 s by default; set
    /// that too for a longer one. Resources that check the fence stay protected after it.
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease, false);
        self
    }

    /// Sets the longest time for which a live holder may have the lock. Default 60 s, which limits
    /// a handler that never ends. At least 100 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.set_max_hold(max_hold);
        self
    }

    /// Waits at most this long, ten minutes at most. Default: no wait. Replaces
    /// [`retry`](Self::retry).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let guard = store.lock("order:7").acquire().await?;
    /// let fence = guard.fence();
    ///
    /// let request = store.lock("order:7").wait(Duration::from_secs(5));
    /// let waiter = tokio::spawn(request.acquire());
    /// guard.release().await;
    /// assert!(waiter.await??.fence() > fence);
    /// # Ok(()) }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.wait, self.retry) = (Some(wait.min(MAX_WAIT)), None);
        self
    }

    /// Sets the retries. With `None`, the wait applies.
    pub(super) fn with_retry(mut self, retry: Option<LockRetry>) -> Self {
        (self.wait, self.retry) = (self.wait.filter(|_| retry.is_none()), retry);
        self
    }

    /// Sets the limits on handovers within this process: at most `max_handovers` after each
    /// answer of the store, within `window` of its request.
    ///
    /// Default 16 handovers within 10 ms: one call for 17 acquisitions of a contended lock, even if
    /// several processes want it. At most 32, because each needs a fence that is reserved with the
    /// grant.
    ///
    /// Later waiters of this process may thus overtake a waiter of another process, up to these
    /// limits and as a rule only once before it gets the lock. A handover never overtakes a
    /// deferred request known to be older. [`strict_order`](Self::strict_order) disables handovers.
    pub fn handover_limits(mut self, max_handovers: u32, window: Duration) -> Self {
        self.options.set_handover_limits(max_handovers, window);
        self
    }

    /// Disables handovers within this process. The order of arrival then holds across processes, as
    /// far as times within a round trip can be told apart, at the cost of a call for each
    /// acquisition.
    pub fn strict_order(self) -> Self {
        self.handover_limits(0, Duration::ZERO)
    }

    /// Requires that `replicas` replicas have each grant. Otherwise the lock is released, and the
    /// error is that of an unavailable store.
    ///
    /// Default 0. Costs another round trip for each grant (`WAIT`).
    /// `StoreBuilder::replicas_on_disk` sets whether the grant must be on their disks. A reentrant
    /// acquire also waits for the replicas of the grant that the request already holds.
    ///
    /// It makes the loss of a grant in a failover less likely, but does not rule it out: if one of
    /// two replicas has it, the other may be promoted. Only the fence keeps a late writer out.
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.options.replicas = replicas;
        self
    }

    /// Limits the waiters for this lock in this process. Beyond it the lock is reported as busy at
    /// once, without a call. With 0, no request waits.
    ///
    /// Default 1024: in a longer queue, most callers would have left before they are served. A
    /// request that asks the store for all later arrivals is no waiter yet; it becomes one if the
    /// answer is busy. All locks of a store and its clones together have at most 16,384 waiters,
    /// which is not a setting.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.options.max_waiters = max_waiters;
        self
    }

    /// Acquires the lock together with any number of other shared holders. Shared and exclusive
    /// holders exclude each other.
    ///
    /// A shared request that arrives while an exclusive one waits queues behind it. There is one
    /// exception: if its process has shared waiters that arrived before the exclusive one, it may
    /// be admitted with them, within 300 ms.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let first_reader = store.lock("catalog").shared().acquire().await?;
    /// let second_reader = store.lock("catalog").shared().acquire().await?;
    /// assert!(store.lock("catalog").acquire().await.is_err());
    /// # drop((first_reader, second_reader));
    /// # Ok(()) }
    /// ```
    pub fn shared(mut self) -> Self {
        self.options.terms.mode = LockMode::Shared;
        self
    }

    /// Acquires one of `max_holders` permits, with no exclusive or shared holder beside them.
    ///
    /// Each request has its own number, and one with a smaller number waits for longer. Inside a
    /// request that has a permit, a smaller number fails with [`AcquireError::WouldDeadlock`], and
    /// the same or a larger one shares that permit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let first_permit = store.lock("printer").permits(2).acquire().await?;
    /// let second_permit = store.lock("printer").permits(2).acquire().await?;
    /// assert!(store.lock("printer").permits(2).acquire().await.is_err());
    /// # drop((first_permit, second_permit));
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If `max_holders` is 0, because no request would ever be admitted. For a number from a
    /// configuration use [`try_permits`](Self::try_permits).
    pub fn permits(self, max_holders: u32) -> Self {
        expect_setting(self.try_permits(max_holders))
    }

    /// Like [`permits`](Self::permits), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `max_holders` is 0.
    pub fn try_permits(mut self, max_holders: u32) -> Result<Self, Error> {
        if max_holders == 0 {
            return Err(Error::setting(
                "LockRequest::permits: the number of permits must be at least 1",
            ));
        }
        self.options.terms.mode = LockMode::Permits(max_holders);
        Ok(self)
    }

    /// Acquires the lock.
    ///
    /// Inside a `LockLayer` that holds this lock, or within [`LockGuard::scope`], it returns
    /// another guard on the same grant without a call to the store. The lease and `max_hold` are
    /// those of the first guard. This applies to any handle on the same server, database and
    /// namespace. (A clone of a server's data counts as the same server.) Anywhere else each call
    /// is an owner of its own, and two of one task exclude each other.
    ///
    /// Cancel safe: if the future is dropped, it leaves the queue, and a grant that the store has
    /// made or will make for it is released.
    ///
    /// # Errors
    ///
    /// - [`AcquireError::Busy`] if another holder has the lock, after the wait if there is one
    /// - [`AcquireError::WouldDeadlock`] if this request itself keeps it from being granted
    /// - [`AcquireError::Fault`] if the store is unavailable
    pub async fn acquire(self) -> Result<LockGuard, AcquireError> {
        let held_locks = HeldLocks::current();
        if held_locks.is_empty() {
            return self.acquire_non_reentrant().await;
        }
        match Box::pin(self.acquire_reentrant(&self.key, &held_locks)).await? {
            Some(guard) => Ok(guard),
            None => self.acquire_non_reentrant().await,
        }
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<LockGuard, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`acquire`](Self::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
