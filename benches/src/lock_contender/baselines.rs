//! Baselines without a lock.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::{LockContender, raw_redis};
use crate::bench_result::BenchResult;

/// Round trip without a lock. Absolute times are only meaningful beside it.
pub(crate) struct PingContender(MultiplexedConnection);

impl LockContender for PingContender {
    type Lock = ();
    type Guard = ();

    async fn connect(port: u16, _: Duration) -> BenchResult<Self> {
        Ok(Self(raw_redis::connect_multiplexed(port).await?))
    }

    fn prepare_lock(&self, _: &str) {}

    async fn acquire(&self, (): &()) -> BenchResult<()> {
        let mut connection = self.0.clone();
        Ok(redis::cmd("PING").query_async(&mut connection).await?)
    }

    async fn release(&self, (): ()) -> BenchResult<()> {
        Ok(())
    }
}

/// No lock and no round trip: one task that works without a pause is the ideal of a lock.
pub(crate) struct NoLockContender;

impl LockContender for NoLockContender {
    type Lock = ();
    type Guard = ();

    async fn connect(_: u16, _: Duration) -> BenchResult<Self> {
        Ok(Self)
    }

    fn prepare_lock(&self, _: &str) {}

    async fn acquire(&self, (): &()) -> BenchResult<()> {
        Ok(())
    }

    async fn release(&self, (): ()) -> BenchResult<()> {
        Ok(())
    }
}
