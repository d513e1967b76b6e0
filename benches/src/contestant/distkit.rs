//! distkit: a mutex that polls on the ticks of an interval.

use std::{sync::Arc, time::Duration};

use distkit::{
    DistkitRedisKey,
    lock::{LockOptions, Mutex, MutexGuard},
};
use redis::{Client, aio::ConnectionManager};

use super::{Contestant, TTL};
use crate::outcome::Outcome;

pub(crate) struct Distkit {
    connection: ConnectionManager,
    pause: Duration,
}

impl Contestant for Distkit {
    type Lock = Arc<Mutex>;
    type Guard = MutexGuard;

    async fn connect(port: u16, pause: Duration) -> Outcome<Self> {
        let connection = Client::open(("127.0.0.1", port))?.get_connection_manager().await?;
        Ok(Self { connection, pause })
    }

    /// Each task has a mutex, and so an owner, of its own.
    fn lock(&self, name: &str) -> Arc<Mutex> {
        let key = DistkitRedisKey::new_or_panic(name.to_owned());
        let options = LockOptions::builder(key, self.connection.clone());
        Mutex::new(options.ttl(TTL).retry_interval(self.pause).build())
    }

    async fn acquire(&self, mutex: &Arc<Mutex>) -> Outcome<MutexGuard> {
        Ok(mutex.lock().await?)
    }

    async fn release(&self, guard: MutexGuard) -> Outcome<()> {
        guard.release().await?;
        Ok(())
    }
}
