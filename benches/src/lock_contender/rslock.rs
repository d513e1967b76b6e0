//! rslock: attempts after random pauses below the retry delay.

use std::time::Duration;

use rslock::{Lock, LockManager};

use super::{LOCK_TTL, LockContender};
use crate::bench_result::BenchResult;

pub(crate) struct RslockContender(LockManager);

/// Creates a lock manager that retries without a limit; the default is 3 attempts. A delay of 1 ms
/// draws a pause from 0..1, which is a busy loop. A smaller delay would panic with an empty range.
pub(crate) fn rslock_manager(port: u16, retry_delay: Duration) -> LockManager {
    let mut manager = LockManager::new(vec![format!("redis://127.0.0.1:{port}/")]);
    manager.set_retry(u32::MAX, retry_delay.max(Duration::from_millis(1)));
    manager
}

impl LockContender for RslockContender {
    type Lock = String;
    type Guard = Lock;

    async fn connect(port: u16, retry_delay: Duration) -> BenchResult<Self> {
        Ok(Self(rslock_manager(port, retry_delay)))
    }

    fn prepare_lock(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn acquire(&self, key: &String) -> BenchResult<Lock> {
        Ok(self.0.lock(key.as_str(), LOCK_TTL).await?)
    }

    async fn release(&self, lock: Lock) -> BenchResult<()> {
        self.0.unlock(&lock).await;
        Ok(())
    }
}
