//! lockgate, through its public API.

use std::{marker::PhantomData, time::Duration};

use lockgate::{LockGuard, LockRequest, ReleaseStatus, Store};

use super::{LOCK_TTL, LockContender};
use crate::bench_result::BenchResult;

/// Longer than any window, so that no acquire times out.
const MAX_WAIT: Duration = Duration::from_secs(600);

pub(crate) struct LockgateContender<R> {
    store: Store,
    release_mode: PhantomData<R>,
}

/// Way of releasing a guard.
pub(crate) trait ReleaseMode: Send + Sync + 'static {
    fn release(guard: LockGuard) -> impl Future<Output = BenchResult<()>> + Send;
}

/// Release whose answer the caller awaits, as every peer does.
pub(crate) struct AwaitedRelease;

/// Release in the background; the caller continues at once.
pub(crate) struct BackgroundRelease;

impl ReleaseMode for AwaitedRelease {
    async fn release(guard: LockGuard) -> BenchResult<()> {
        match guard.release().await {
            ReleaseStatus::Released => Ok(()),
            other => Err(format!("unexpected release status: {other:?}").into()),
        }
    }
}

impl ReleaseMode for BackgroundRelease {
    async fn release(guard: LockGuard) -> BenchResult<()> {
        release_in_background(guard);
        Ok(())
    }
}

/// Releases like `LockLayer::release_in_background`: dropping the guard sends the release.
fn release_in_background(guard: LockGuard) {
    drop(guard);
}

/// Connects a store in the namespace of the benchmark.
pub(crate) async fn connect_store(port: u16) -> BenchResult<Store> {
    let store = Store::connect(&format!("redis://127.0.0.1:{port}/?ns=bench")).await?;
    // `connect` succeeds even if the server is unavailable.
    store.ping().await?;
    Ok(store)
}

impl<R: ReleaseMode> LockContender for LockgateContender<R> {
    type Lock = LockRequest;
    type Guard = LockGuard;

    async fn connect(port: u16, _: Duration) -> BenchResult<Self> {
        Ok(Self { store: connect_store(port).await?, release_mode: PhantomData })
    }

    fn prepare_lock(&self, name: &str) -> LockRequest {
        self.store.lock(name).lease(LOCK_TTL).wait(MAX_WAIT)
    }

    async fn acquire(&self, lock: &LockRequest) -> BenchResult<LockGuard> {
        Ok(lock.clone().acquire().await?)
    }

    async fn release(&self, guard: LockGuard) -> BenchResult<()> {
        R::release(guard).await
    }
}
