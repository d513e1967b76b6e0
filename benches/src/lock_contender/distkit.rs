//! distkit: a mutex that polls at the ticks of an interval.

use std::{sync::Arc, time::Duration};

use distkit::{
    DistkitRedisKey,
    lock::{LockOptions, Mutex, MutexGuard},
};
use redis::{Client, aio::ConnectionManager};

use super::{LOCK_TTL, LockContender};
use crate::bench_result::BenchResult;

pub(crate) struct DistkitContender {
    connection: ConnectionManager,
    retry_delay: Duration,
}

impl LockContender for DistkitContender {
    type Lock = Arc<Mutex>;
    type Guard = MutexGuard;

    async fn connect(port: u16, retry_delay: Duration) -> BenchResult<Self> {
        let connection = Client::open(("127.0.0.1", port))?.get_connection_manager().await?;
        Ok(Self { connection, retry_delay })
    }

    /// Creates a mutex per task, since a mutex is one owner.
    fn prepare_lock(&self, name: &str) -> Arc<Mutex> {
        let key = DistkitRedisKey::new_or_panic(name.to_owned());
        let options = LockOptions::builder(key, self.connection.clone());
        Mutex::new(options.ttl(LOCK_TTL).retry_interval(self.retry_delay).build())
    }

    async fn acquire(&self, mutex: &Arc<Mutex>) -> BenchResult<MutexGuard> {
        Ok(mutex.lock().await?)
    }

    async fn release(&self, guard: MutexGuard) -> BenchResult<()> {
        guard.release().await?;
        Ok(())
    }
}
