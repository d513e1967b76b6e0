//! What a careful user writes by hand: `SET NX PX` with a token of one's own, and a script that deletes
//! the key if the token is still there, on one multiplexed connection.

use std::{
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redis::{AsyncCommands as _, Client, Script, SetOptions, aio::MultiplexedConnection};

use super::{Contestant, TTL, pause};
use crate::{clock, outcome::Outcome};

const COMPARE_AND_DELETE: &str = r#"
if redis.call("GET", KEYS[1]) == ARGV[1] then
  return redis.call("DEL", KEYS[1])
else
  return 0
end
"#;

pub(crate) struct Raw {
    connection: MultiplexedConnection,
    script: Script,
    pause: Duration,
    tokens: AtomicU64,
}

pub(crate) struct Guard {
    key: String,
    token: String,
}

pub(crate) async fn connect(port: u16) -> Outcome<MultiplexedConnection> {
    let client = Client::open(("127.0.0.1", port))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

impl Contestant for Raw {
    type Lock = String;
    type Guard = Guard;

    async fn connect(port: u16, pause: Duration) -> Outcome<Self> {
        let connection = connect(port).await?;
        let script = Script::new(COMPARE_AND_DELETE);
        Ok(Self { connection, script, pause, tokens: AtomicU64::new(clock::now()) })
    }

    fn lock(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn acquire(&self, key: &String) -> Outcome<Guard> {
        let mut connection = self.connection.clone();
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let token = format!("{}-{token}", process::id());
        let millis = clock::nanos(TTL) / 1_000_000;
        let options = SetOptions::default()
            .conditional_set(redis::ExistenceCheck::NX)
            .with_expiration(redis::SetExpiry::PX(millis));
        loop {
            let set: Option<String> = connection.set_options(key, &token, options.clone()).await?;
            if set.is_some() {
                return Ok(Guard { key: key.clone(), token });
            }
            pause(self.pause).await;
        }
    }

    async fn release(&self, guard: Guard) -> Outcome<()> {
        let mut connection = self.connection.clone();
        let deleted: u64 =
            self.script.key(guard.key).arg(guard.token).invoke_async(&mut connection).await?;
        if deleted == 1 { Ok(()) } else { Err("the lock was not there any more".into()) }
    }
}
