//! distributed-lock-redis. With one server, its `acquire(timeout)` tries once and returns
//! `Timeout`. The loop around `try_acquire` is therefore part of this benchmark.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use tokio::time::timeout;

use super::{LOCK_TTL, LockContender, sleep_before_retry};
use crate::bench_result::BenchResult;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_ATTEMPTS: u32 = 3;

pub(crate) struct DistributedLockContender {
    provider: RedisLockProvider,
    retry_delay: Duration,
}

impl DistributedLockContender {
    async fn connect_provider(port: u16) -> BenchResult<RedisLockProvider> {
        let provider = RedisLockProvider::builder()
            .url(format!("redis://127.0.0.1:{port}/"))
            .expiry(LOCK_TTL)
            // Defaults of the library, scaled to this expiry.
            .extension_cadence(LOCK_TTL / 3)
            .min_validity(LOCK_TTL * 9 / 10)
            .build();
        Ok(provider.await?)
    }
}

impl LockContender for DistributedLockContender {
    type Lock = RedisDistributedLock;
    type Guard = RedisLockHandle;

    async fn connect(port: u16, retry_delay: Duration) -> BenchResult<Self> {
        // Its client (fred 9.4) checks whether it is connected and subscribes to that event
        // afterwards. If it connects in between, it waits forever; a new client is created then.
        for _ in 1..CONNECT_ATTEMPTS {
            if let Ok(provider) = timeout(CONNECT_TIMEOUT, Self::connect_provider(port)).await {
                return Ok(Self { provider: provider?, retry_delay });
            }
            eprintln!(
                "distributed-lock-redis did not connect within {CONNECT_TIMEOUT:?}; trying again"
            );
        }
        Ok(Self { provider: Self::connect_provider(port).await?, retry_delay })
    }

    fn prepare_lock(&self, name: &str) -> RedisDistributedLock {
        self.provider.create_lock(name)
    }

    async fn acquire(&self, lock: &RedisDistributedLock) -> BenchResult<RedisLockHandle> {
        loop {
            if let Some(handle) = lock.try_acquire().await? {
                return Ok(handle);
            }
            sleep_before_retry(self.retry_delay).await;
        }
    }

    async fn release(&self, handle: RedisLockHandle) -> BenchResult<()> {
        handle.release().await?;
        Ok(())
    }
}
