//! distributed-lock-redis: with one server its `acquire(timeout)` tries once and answers `Timeout`, so
//! the loop around `try_acquire` is ours.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use tokio::time::timeout;

use super::{Contestant, TTL, pause};
use crate::outcome::Outcome;

const TO_CONNECT: Duration = Duration::from_secs(5);
const TRIES: u32 = 3;

pub(crate) struct Dlr {
    provider: RedisLockProvider,
    pause: Duration,
}

impl Dlr {
    async fn provider(port: u16) -> Outcome<RedisLockProvider> {
        let provider = RedisLockProvider::builder()
            .url(format!("redis://127.0.0.1:{port}/"))
            .expiry(TTL)
            // Its defaults, scaled to this expiry.
            .extension_cadence(TTL / 3)
            .min_validity(TTL * 9 / 10)
            .build();
        Ok(provider.await?)
    }
}

impl Contestant for Dlr {
    type Lock = RedisDistributedLock;
    type Guard = RedisLockHandle;

    async fn connect(port: u16, pause: Duration) -> Outcome<Self> {
        // Its client (fred 9.4) looks whether it is connected, and subscribes to word of that afterwards: connected in
        // between, it waits for ever. Then another one is made.
        for _ in 1..TRIES {
            if let Ok(provider) = timeout(TO_CONNECT, Self::provider(port)).await {
                return Ok(Self { provider: provider?, pause });
            }
            eprintln!("distributed-lock-redis has not connected within {TO_CONNECT:?}: once more");
        }
        Ok(Self { provider: Self::provider(port).await?, pause })
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
