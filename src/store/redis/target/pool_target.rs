//! Connections from a pool of the application.
//!
//! Each connection is checked out for its whole life. A shared one would disturb its other users
//! with transactions, blocking calls or another database.
//!
//! The pool keeps connections to a demoted master, because its check only tests for an answer. If
//! it returns a connection to a replica, a new connection is made outside the pool, to the server
//! at its address by now.

use std::{sync::Arc, time::Duration};

use bb8_redis::{
    RedisConnectionManager,
    bb8::{self, PooledConnection, RunError},
};
use futures_util::{StreamExt as _, stream};
use redis::aio::MultiplexedConnection;
use tokio::{sync::oneshot, time::sleep};

use super::{
    ConnectError, ConnectionTarget, MessageStream, RedisConnection, TimeoutAndDisconnectFlag,
};
use crate::durations::MAX_DURATION;

/// Time for which a checkout of the pool continues after its caller was dropped; longer than its
/// `PING` may take.
const CHECKOUT_GRACE: Duration = Duration::from_secs(1);

pub(in super::super) type ApplicationPool = bb8::Pool<RedisConnectionManager>;

/// Connection that returns to the pool when its last clone is dropped.
#[derive(Clone)]
pub(in super::super) struct CheckedOutConnection {
    pub(super) connection: MultiplexedConnection,
    /// `None` if the connection was made outside the pool.
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
        settings: &TimeoutAndDisconnectFlag,
    ) -> Result<RedisConnection, ConnectError> {
        let checked_out = self.checkout().await?;
        let mut connection = without_response_timeout((*checked_out).clone());
        if is_replica(&mut connection).await {
            drop(checked_out);
            let dedicated = self.pool.dedicated_connection().await;
            let dedicated = dedicated.map_err(|error| ConnectError::from_redis(&error))?;
            let runtime_watch = disconnect_with_runtime(settings);
            let connection = without_response_timeout(dedicated);
            return Ok(RedisConnection::Pooled(CheckedOutConnection {
                connection,
                _pool_slot: None,
                _runtime_watch: runtime_watch,
            }));
        }
        let pool_slot = Some(Arc::new(checked_out));
        let runtime_watch = disconnect_with_runtime(settings);
        Ok(RedisConnection::Pooled(CheckedOutConnection {
            connection,
            _pool_slot: pool_slot,
            _runtime_watch: runtime_watch,
        }))
    }

    /// Checks out a connection, in a task of its own. If the caller were to cancel the checkout
    /// itself before the pool has detected a half-open connection, that connection would return to
    /// the pool.
    async fn checkout(
        &self,
    ) -> Result<PooledConnection<'static, RedisConnectionManager>, ConnectError> {
        let (caller_waiting, caller_dropped) = oneshot::channel::<()>();
        let pool = self.pool.clone();
        let checkout_task = tokio::spawn(async move {
            let caller_dropped = async {
                let _ = caller_dropped.await;
                sleep(CHECKOUT_GRACE).await;
            };
            tokio::select! {
                checked_out = pool.get_owned() => checked_out,
                () = caller_dropped => Err(RunError::TimedOut),
            }
        });
        let checked_out = checkout_task.await.unwrap_or(Err(RunError::TimedOut));
        drop(caller_waiting);
        checked_out.map_err(|error| match error {
            RunError::User(error) => ConnectError::from_redis(&error),
            RunError::TimedOut => ConnectError::Unreachable(
                "the application's pool gave no connection in time".to_owned(),
            ),
        })
    }

    /// Subscribes through `message_target`; without one, the stream never yields a message.
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

/// Marks the connection as disconnected when this runtime ends or the returned sender is dropped.
///
/// The driver of a pooled connection is a task of the pool and does not report its end. It runs on
/// the runtime that made the connection, which is this one unless the application has used the pool
/// on another.
fn disconnect_with_runtime(settings: &TimeoutAndDisconnectFlag) -> Arc<oneshot::Sender<()>> {
    let (sender, dropped) = oneshot::channel::<()>();
    let driver = settings.driver_guard();
    tokio::spawn(async move {
        let _driver = driver;
        let _ = dropped.await;
    });
    Arc::new(sender)
}

/// Disables the response timeout of redis-rs, which is shorter than most deadlines: every call has
/// its own deadline. Other clones keep their timeout.
fn without_response_timeout(mut connection: MultiplexedConnection) -> MultiplexedConnection {
    connection.set_response_timeout(MAX_DURATION);
    connection
}

/// Returns true if the server reports that it is a replica; false if it reports nothing.
async fn is_replica(connection: &mut MultiplexedConnection) -> bool {
    let role_report = redis::cmd("INFO").arg("replication").query_async::<String>(connection).await;
    role_report.is_ok_and(|text| text.lines().any(|line| line.trim_end() == "role:slave"))
}
