//! Lane of one connection: a pool of one, which makes a new connection when the old one is dead.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    TrackedConnection, connect_failures::ConnectFailures, connection_factory::ConnectionFactory,
};
use crate::error::Error;

/// Pool of one connection, with a notification of failed attempts. `bb8` connects in a task of its
/// own, and would let the callers wait until their timeout.
pub(in super::super) struct ConnectionLane {
    pool: Mutex<LanePool>,
    /// The pool's one connection, once it is known.
    connection: Mutex<Option<TrackedConnection>>,
    failures: Arc<ConnectFailures>,
}

/// Pool with its generation, which tells it from earlier pools of the lane.
#[derive(Clone)]
struct LanePool {
    pool: bb8::Pool<ConnectionFactory>,
    factory: ConnectionFactory,
    generation: u64,
}

impl ConnectionLane {
    pub(super) fn new(factory: ConnectionFactory) -> Self {
        let failures = Arc::clone(&factory.failures);
        Self { pool: Mutex::new(LanePool::new(factory, 0)), connection: Mutex::new(None), failures }
    }

    /// Returns the current connection, if any.
    pub(in super::super) fn current_connection(&self) -> Option<TrackedConnection> {
        self.connection.lock().clone()
    }

    /// Returns the reason with which the server refuses connections, if it gave one.
    pub(in super::super) fn last_refusal(&self) -> Option<Error> {
        self.failures.last_refusal()
    }

    /// Returns the connection, without a call or a wait while it is alive.
    pub(in super::super) async fn connection(&self) -> Result<TrackedConnection, Error> {
        let Self { pool, connection: current, failures } = self;
        if let Some(connection) = current.lock().as_ref().and_then(TrackedConnection::checkout) {
            return Ok(connection);
        }
        if let Some(error) = failures.config_error() {
            return Err(error);
        }
        let LanePool { pool, generation, .. } = pool.lock().clone();
        let mut failure = std::pin::pin!(failures.failure_notify.notified());
        failure.as_mut().enable();
        tokio::select! {
            biased;
            pooled = pool.get() => match pooled {
                Ok(connection) => self
                    .adopt_connection(&connection, generation)
                    .ok_or_else(|| failures.last_error()),
                Err(_) => {
                    self.replace_stalled_pool(generation);
                    Err(failures.last_error())
                }
            },
            () = failure => Err(failures.last_error()),
        }
    }

    /// Makes a connection that of the lane, unless it belongs to a replaced pool. A lane has one
    /// connection at a time, which orders its calls.
    fn adopt_connection(
        &self,
        connection: &TrackedConnection,
        generation: u64,
    ) -> Option<TrackedConnection> {
        let pool = self.pool.lock();
        (pool.generation == generation).then(|| {
            let replaced = self.connection.lock().replace(connection.clone());
            // Also if no call waited on the old one: calls sent there may be delivered after those
            // sent here.
            if replaced.is_some_and(|replaced| replaced.checkout().is_none()) {
                connection.record_replacement();
            }
            connection.clone()
        })
    }

    /// Replaces a stalled pool. `bb8` connects on the runtime of its first caller; if that runtime
    /// ends, the pool waits for ever.
    fn replace_stalled_pool(&self, generation: u64) {
        let mut pool = self.pool.lock();
        if pool.generation == generation && pool.is_stalled() {
            *pool = LanePool::new(pool.factory.clone(), generation + 1);
        }
    }
}

impl LanePool {
    fn new(factory: ConnectionFactory, generation: u64) -> Self {
        let factory = ConnectionFactory { attempt_started_at: Arc::default(), ..factory };
        let pool = bb8::Pool::builder()
            .max_size(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .connection_timeout(factory.deadline)
            .build_unchecked(factory.clone());
        Self { pool, factory, generation }
    }

    /// Returns true if the pool has no connection and no attempt is in progress, or the attempt is
    /// overdue because its runtime is blocked.
    fn is_stalled(&self) -> bool {
        let started_at = *self.factory.attempt_started_at.lock();
        let is_overdue = |started_at: Instant| started_at.elapsed() > self.factory.deadline * 3;
        self.pool.state().connections == 0 && started_at.is_none_or(is_overdue)
    }
}
