//! This library, by its public API.

use std::{marker::PhantomData, time::Duration};

use lockgate::{LockGuard, LockRequest, Released, Store};

use super::{Contestant, TTL};
use crate::outcome::Outcome;

/// Longer than any window.
const WAIT: Duration = Duration::from_secs(600);

pub(crate) struct Lockgate<R> {
    store: Store,
    release: PhantomData<R>,
}

/// How a guard is given back.
pub(crate) trait Release: Send + Sync + 'static {
    fn release(guard: LockGuard) -> impl Future<Output = Outcome<()>> + Send;
}

/// The caller sends the release, and waits for its answer, as every peer does.
pub(crate) struct Awaited;

/// The caller goes on at once.
pub(crate) struct InBackground;

impl Release for Awaited {
    async fn release(guard: LockGuard) -> Outcome<()> {
        match guard.release().await {
            Released::Released => Ok(()),
            other => Err(format!("released: {other:?}").into()),
        }
    }
}

impl Release for InBackground {
    async fn release(guard: LockGuard) -> Outcome<()> {
        release_in_background(guard);
        Ok(())
    }
}

/// What `LockLayer::release_in_background` does: dropping the guard sends the release at once.
fn release_in_background(guard: LockGuard) {
    drop(guard);
}

/// A store of the benchmark's own namespace.
pub(crate) async fn connect(port: u16) -> Outcome<Store> {
    let store = Store::connect(&format!("redis://127.0.0.1:{port}/?ns=bench")).await?;
    // `connect` does not fail on a server that is away.
    store.ping().await?;
    Ok(store)
}

impl<R: Release> Contestant for Lockgate<R> {
    type Lock = LockRequest;
    type Guard = LockGuard;

    async fn connect(port: u16, _: Duration) -> Outcome<Self> {
        Ok(Self { store: connect(port).await?, release: PhantomData })
    }

    fn lock(&self, name: &str) -> LockRequest {
        self.store.lock(name).lease(TTL).wait(WAIT)
    }

    async fn acquire(&self, lock: &LockRequest) -> Outcome<LockGuard> {
        Ok(lock.clone().acquire().await?)
    }

    async fn release(&self, guard: LockGuard) -> Outcome<()> {
        R::release(guard).await
    }
}
