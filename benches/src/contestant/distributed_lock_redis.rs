//! distributed-lock-redis: with one server its `acquire(timeout)` tries once and answers `Timeout`, so
//! the loop around `try_acquire` is ours.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};

use super::{Contestant, TTL, pause};
use crate::outcome::Outcome;

pub(crate) struct Dlr {
    provider: RedisLockProvider,
    pause: Duration,
}

impl Contestant for Dlr {
    type Lock = RedisDistributedLock;
    type Guard = RedisLockHandle;

    async fn connect(port: u16, pause: Duration) -> Outcome<Self> {
        let provider = RedisLockProvider::builder()
            .url(format!("redis://127.0.0.1:{port}/"))
            .expiry(TTL)
            // Its defaults, scaled to this expiry.
            .extension_cadence(TTL / 3)
            .min_validity(TTL * 9 / 10)
            .build()
            .await?;
        Ok(Self { provider, pause })
    }

    fn lock(&self, name: &str) -> RedisDistributedLock {
        self.provider.create_lock(name)
    }

    async fn acquire(&self, lock: &RedisDistributedLock) -> Outcome<RedisLockHandle> {
        loop {
            if let Some(handle) = lock.try_acquire().await? {
                return Ok(handle);
            }
            pause(self.pause).await;
        }
    }

    async fn release(&self, handle: RedisLockHandle) -> Outcome<()> {
        handle.release().await?;
        Ok(())
    }
}
