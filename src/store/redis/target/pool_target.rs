//! Connections out of a pool of the application's.
//!
//! Each is taken for as long as it lives. A shared one would be in the way of whoever has checked it out:
//! a transaction, a blocking call or another database is meant for them alone.
//!
//! A pool keeps a connection to a master that has been demoted: it only asks whether somebody answers. Where it
//! gives out one to a replica, a new one is made instead, beside the pool, to where its address leads by now.

use std::{sync::Arc, time::Duration};

use bb8_redis::{
    RedisConnectionManager,
    bb8::{self, PooledConnection, RunError},
};
use futures_util::{StreamExt as _, stream};
use redis::aio::MultiplexedConnection;
use tokio::{sync::oneshot, time::sleep};

use super::{ConnectError, ConnectionSettings, ConnectionTarget, MessageStream, RedisConnection};
use crate::clock::MAX_DURATION;

/// How long a check of the pool's may go on when nobody waits for it any more: longer than its `PING` may take.
const CHECKOUT_GRACE: Duration = Duration::from_secs(1);

pub(in super::super) type ApplicationPool = bb8::Pool<RedisConnectionManager>;

/// A connection that goes back when the last of those that share it has ended.
#[derive(Clone)]
pub(in super::super) struct CheckedOutConnection {
    pub(super) connection: MultiplexedConnection,
    /// `None` if it was made beside the pool.
    _pool_slot: Option<Arc<PooledConnection<'static, RedisConnectionManager>>>,
    _runtime_watch: Arc<oneshot::Sender<()>>,
}

#[derive(Clone)]
pub(in super::super) struct PoolTarget {
    pub(super) pool: ApplicationPool,
    pub(super) message_target: Option<Arc<ConnectionTarget>>,
}

impl PoolTarget {
    pub(super) async fn open(
        &self,
        settings: &ConnectionSettings,
    ) -> Result<RedisConnection, ConnectError> {
        let taken = self.checkout().await?;
        let mut one = without_response_timeout((*taken).clone());
        if is_replica(&mut one).await {
            drop(taken);
            let made = self.pool.dedicated_connection().await;
            let made = made.map_err(|error| ConnectError::from_redis(&error))?;
            let watched = disconnect_with_runtime(settings);
            let one = without_response_timeout(made);
            return Ok(RedisConnection::Pooled(CheckedOutConnection {
                connection: one,
                _pool_slot: None,
                _runtime_watch: watched,
            }));
        }
        let place = Some(Arc::new(taken));
        let watched = disconnect_with_runtime(settings);
        Ok(RedisConnection::Pooled(CheckedOutConnection {
            connection: one,
            _pool_slot: place,
            _runtime_watch: watched,
        }))
    }

    /// In a task of its own: whoever waits may give up before the pool has found out that a connection is half open,
    /// and then that would be put back.
    async fn checkout(
        &self,
    ) -> Result<PooledConnection<'static, RedisConnectionManager>, ConnectError> {
        let (waits, left) = oneshot::channel::<()>();
        let pool = self.pool.clone();
        let taking = tokio::spawn(async move {
            let left = async {
                let _ = left.await;
                sleep(CHECKOUT_GRACE).await;
            };
            tokio::select! {
                taken = pool.get_owned() => taken,
                () = left => Err(RunError::TimedOut),
            }
        });
        let taken = taking.await.unwrap_or(Err(RunError::TimedOut));
        drop(waits);
        taken.map_err(|error| match error {
            RunError::User(error) => ConnectError::from_redis(&error),
            RunError::TimedOut => ConnectError::Unavailable,
        })
    }

    /// Silence, if nobody has said where messages come from.
    pub(super) async fn subscribe(
        &self,
        channels: &[String],
    ) -> Result<MessageStream, ConnectError> {
        match &self.message_target {
            Some(target) => Box::pin(target.subscribe(channels)).await,
            None => Ok(stream::pending().boxed()),
        }
    }
}

/// Marks the connection as gone when this runtime ends, or the sender is dropped.
///
/// The driver of a pool's connection is a task of the pool's, and tells nobody of its end. It is on the runtime that had
/// it made, which is this one unless the application has used the pool on another.
fn disconnect_with_runtime(settings: &ConnectionSettings) -> Arc<oneshot::Sender<()>> {
    let (watched, dropped) = oneshot::channel::<()>();
    let driver = settings.driver_guard();
    tokio::spawn(async move {
        let _driver = driver;
        let _ = dropped.await;
    });
    Arc::new(watched)
}

/// Deadlines of calls are ours, around each; the library's own is shorter than most. Other clones keep theirs.
fn without_response_timeout(mut connection: MultiplexedConnection) -> MultiplexedConnection {
    connection.set_response_timeout(MAX_DURATION);
    connection
}

/// False where that is not told.
async fn is_replica(connection: &mut MultiplexedConnection) -> bool {
    let told = redis::cmd("INFO").arg("replication").query_async::<String>(connection).await;
    told.is_ok_and(|text| text.lines().any(|line| line.trim_end() == "role:slave"))
}
