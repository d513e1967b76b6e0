//! Connections out of a pool of the application's.
//!
//! Each is taken for as long as it lives. A shared one would be in the way of whoever has checked it out:
//! a transaction, a blocking call or another database is meant for them alone.
//!
//! A pool keeps a connection to a master that has been demoted: it only asks whether somebody answers. Where it
//! gives out one to a replica, a new one is made instead, beside the pool, to where its address leads by now.

use std::sync::Arc;

use bb8_redis::{
    RedisConnectionManager,
    bb8::{self, PooledConnection, RunError},
};
use futures_util::{StreamExt as _, stream};
use redis::aio::MultiplexedConnection;

use super::{Connection, Failure, Messages, Target};

pub(in super::super) type Pool = bb8::Pool<RedisConnectionManager>;

/// A connection that goes back when the last of those that share it has ended.
#[derive(Clone)]
pub(in super::super) struct Taken {
    pub(super) one: MultiplexedConnection,
    _place: Arc<PooledConnection<'static, RedisConnectionManager>>,
}

#[derive(Clone)]
pub(in super::super) struct Pooled {
    pub(super) pool: Pool,
    pub(super) messages: Option<Arc<Target>>,
}

impl Pooled {
    pub(super) async fn open(&self) -> Result<Connection, Failure> {
        let taken = self.pool.get_owned().await.map_err(|error| match error {
            RunError::User(error) => Failure::of(&error),
            RunError::TimedOut => Failure::Away,
        })?;
        let mut one = (*taken).clone();
        if is_replica(&mut one).await {
            drop(taken);
            let made = self.pool.dedicated_connection().await;
            return made.map(Connection::One).map_err(|error| Failure::of(&error));
        }
        Ok(Connection::Taken(Taken { one, _place: Arc::new(taken) }))
    }

    /// Silence, if nobody has said where messages come from.
    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<Messages, Failure> {
        match &self.messages {
            Some(target) => Box::pin(target.subscribe(channels)).await,
            None => Ok(stream::pending().boxed()),
        }
    }
}

/// False where that is not told.
async fn is_replica(connection: &mut MultiplexedConnection) -> bool {
    let told = redis::cmd("INFO").arg("replication").query_async::<String>(connection).await;
    told.is_ok_and(|text| text.lines().any(|line| line.trim_end() == "role:slave"))
}
