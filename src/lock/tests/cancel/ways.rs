//! What is dropped, at any of its await points.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures_util::future::join_all;

use crate::{
    lock::{AcquireError, LockGuard, LockRequest, tests::SECOND},
    store::Store,
};

/// Of what is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moment {
    /// All is ready for it, and it is polled for the first time next.
    Begins,
    /// It has just been dropped.
    Dropped,
}

/// Polls `n` times, with all that is to be done in between, then drops; true if it was done before.
async fn poll_then_drop(n: usize, future: impl Future, between: Duration) -> bool {
    let mut future = pin!(future);
    for _ in 0..n {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready()));
        if polled.await {
            return true;
        }
        tokio::time::sleep(between).await;
    }
    false
}

/// What is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// Asking for a free lock, once or with a wait.
    Try,
    Wait,
    /// Waiting for one that another process has, and gives back meanwhile.
    WaitForOther,
    /// Waiting for one that this process has.
    WaitHere,
    Reader,
    Permit,
    /// Giving it back, to the store or past others who wait here.
    Release,
    Pass,
    Downgrade,
    /// Two locks, the first of which another process has and gives back meanwhile; and giving both back.
    Several,
    ReleaseSeveral,
    /// Asking again and again for one that another process has, and gives back meanwhile.
    Retry,
    /// Waiting for one that another process has, and for a record under it.
    UnderRecord,
    /// Readers of one place, let in together.
    Readers,
    /// Holding it while replicas are waited for, which a server without any has not.
    Replicas,
}

/// What takes no time on a real server.
pub(crate) const WAYS: [Way; 9] = [
    Way::Try,
    Way::Wait,
    Way::WaitForOther,
    Way::WaitHere,
    Way::Reader,
    Way::Permit,
    Way::Release,
    Way::Pass,
    Way::Downgrade,
];

/// The others.
pub(crate) const MORE: [Way; 6] =
    [Way::Several, Way::ReleaseSeveral, Way::Retry, Way::UnderRecord, Way::Readers, Way::Replicas];

/// Drops it after `n` polls; true if that was too late.
pub(crate) async fn drop_after(n: usize, way: Way, store: &Store, between: Duration) -> bool {
    drop_told(n, way, store, between, &|_| ()).await
}

/// The same, and says when.
pub(crate) async fn drop_told(
    n: usize,
    way: Way,
    store: &Store,
    between: Duration,
    tell: &dyn Fn(Moment),
) -> bool {
    let other = store.as_another_process();
    let drop_it = Drops { n, store, other: &other, between, tell };
    let done = match way {
        Way::Try | Way::Wait | Way::WaitForOther | Way::WaitHere => drop_it.asking(way).await,
        Way::Reader | Way::Permit | Way::Readers => drop_it.among_others(way).await,
        Way::Release | Way::Pass | Way::Downgrade => drop_it.ending(way).await,
        Way::Several | Way::ReleaseSeveral => drop_it.several(way).await,
        Way::Retry | Way::UnderRecord | Way::Replicas => drop_it.otherwise(way).await,
    };
    done.also_drained(&other).await
}

/// What is dropped, and when.
struct Drops<'a> {
    n: usize,
    store: &'a Store,
    other: &'a Store,
    between: Duration,
    tell: &'a dyn Fn(Moment),
}

fn plain(store: &Store) -> LockRequest {
    store.lock("x")
}

fn waiting(request: LockRequest) -> impl Future<Output = Result<LockGuard, AcquireError>> {
    request.wait(20 * SECOND).acquire()
}

impl Drops<'_> {
    async fn dropped(&self, future: impl Future) -> bool {
        (self.tell)(Moment::Begins);
        let done = poll_then_drop(self.n, future, self.between).await;
        (self.tell)(Moment::Dropped);
        done
    }

    /// The same, while somebody has the lock, and gives it back meanwhile.
    async fn dropped_behind(&self, holder: &Store, future: impl Future) -> bool {
        let (held, after) = (plain(holder).acquire().await.expect("it is free"), 3 * self.between);
        let releasing = crate::store::spawn(async move {
            tokio::time::sleep(after).await;
            held.release().await;
        });
        let done = self.dropped(future).await;
        releasing.await.expect("no panic");
        done
    }

    async fn asking(&self, way: Way) -> bool {
        let Self { store, other, .. } = self;
        match way {
            Way::Try => self.dropped(plain(store).acquire()).await,
            Way::Wait => self.dropped(waiting(plain(store))).await,
            Way::WaitForOther => self.dropped_behind(other, waiting(plain(store))).await,
            _ => self.dropped_behind(store, waiting(plain(store))).await,
        }
    }

    async fn among_others(&self, way: Way) -> bool {
        let Self { store, other, .. } = self;
        match way {
            Way::Reader => {
                let held = plain(other).shared().acquire().await.expect("it is free");
                let done = self.dropped(waiting(plain(store).shared())).await;
                drop(held);
                done
            }
            Way::Permit => {
                let held = plain(other).permits(2).acquire().await.expect("it is free");
                let done = self.dropped(waiting(plain(store).permits(2))).await;
                drop(held);
                done
            }
            _ => {
                let readers = (0..5).map(|_| waiting(plain(store).shared()));
                self.dropped_behind(other, join_all(readers)).await
            }
        }
    }

    async fn ending(&self, way: Way) -> bool {
        let store = self.store;
        match way {
            Way::Release => {
                let held = plain(store).acquire().await.expect("it is free");
                self.dropped(held.release()).await
            }
            Way::Pass => {
                // In strict order each release is a call that asks for the next.
                let strict = || plain(store).strict_order();
                let held = strict().acquire().await.expect("it is free");
                let next = crate::store::spawn(waiting(strict()));
                tokio::time::sleep(self.between).await;
                let done = self.dropped(held.release()).await;
                drop(next.await.expect("no panic").expect("served all the same"));
                done
            }
            _ => {
                let held = plain(store).acquire().await.expect("it is free");
                self.dropped(held.downgrade()).await
            }
        }
    }

    async fn several(&self, way: Way) -> bool {
        // The undo of the one call for both is in doubt for a lease.
        let both = self.store.locks(["x", "y"]).lease(2 * SECOND);
        if matches!(way, Way::Several) {
            return self.dropped_behind(self.other, both.wait(20 * SECOND).acquire()).await;
        }
        let held = both.acquire().await.expect("both are free");
        self.dropped(held.release()).await
    }

    async fn otherwise(&self, way: Way) -> bool {
        let Self { store, other, .. } = self;
        match way {
            Way::Retry => {
                let asked = plain(store).retry(1000, Duration::from_millis(10));
                self.dropped_behind(other, asked.acquire()).await
            }
            Way::UnderRecord => {
                let asked = plain(store).wait(20 * SECOND);
                self.dropped_behind(other, asked.acquire_with_record(Some("k".into()))).await
            }
            _ => self.dropped(plain(store).min_replicas(1).acquire()).await,
        }
    }
}

trait Drained: Sized {
    async fn also_drained(self, other: &Store) -> Self;
}

impl Drained for bool {
    async fn also_drained(self, other: &Store) -> Self {
        assert!(other.shutdown(20 * SECOND).await, "another process gives back too");
        self
    }
}
