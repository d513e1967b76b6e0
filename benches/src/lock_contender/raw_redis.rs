//! Hand-written lock on one multiplexed connection: `SET NX PX` with a unique token, and a script
//! that deletes the key if it still has that token.

use std::{
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redis::{AsyncCommands as _, Client, Script, SetOptions, aio::MultiplexedConnection};

use super::{LOCK_TTL, LockContender, sleep_before_retry};
use crate::{bench_result::BenchResult, clock};

const COMPARE_AND_DELETE: &str = r#"
if redis.call("GET", KEYS[1]) == ARGV[1] then
  return redis.call("DEL", KEYS[1])
else
  return 0
end
"#;

pub(crate) struct RawRedisContender {
    connection: MultiplexedConnection,
    script: Script,
    retry_delay: Duration,
    next_token: AtomicU64,
}

pub(crate) struct RawRedisGuard {
    key: String,
    token: String,
}

pub(crate) async fn connect_multiplexed(port: u16) -> BenchResult<MultiplexedConnection> {
    let client = Client::open(("127.0.0.1", port))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

impl LockContender for RawRedisContender {
    type Lock = String;
    type Guard = RawRedisGuard;

    async fn connect(port: u16, retry_delay: Duration) -> BenchResult<Self> {
        let connection = connect_multiplexed(port).await?;
        let script = Script::new(COMPARE_AND_DELETE);
        Ok(Self { connection, script, retry_delay, next_token: AtomicU64::new(clock::now()) })
    }

    fn prepare_lock(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn acquire(&self, key: &String) -> BenchResult<RawRedisGuard> {
        let mut connection = self.connection.clone();
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let token = format!("{}-{token}", process::id());
        let millis = clock::duration_nanos(LOCK_TTL) / 1_000_000;
        let options = SetOptions::default()
            .conditional_set(redis::ExistenceCheck::NX)
            .with_expiration(redis::SetExpiry::PX(millis));
        loop {
            let set: Option<String> = connection.set_options(key, &token, options.clone()).await?;
            if set.is_some() {
                return Ok(RawRedisGuard { key: key.clone(), token });
            }
            sleep_before_retry(self.retry_delay).await;
        }
    }

    async fn release(&self, guard: RawRedisGuard) -> BenchResult<()> {
        let mut connection = self.connection.clone();
        let deleted: u64 =
            self.script.key(guard.key).arg(guard.token).invoke_async(&mut connection).await?;
        if deleted == 1 { Ok(()) } else { Err("the lock was lost before its release".into()) }
    }
}
