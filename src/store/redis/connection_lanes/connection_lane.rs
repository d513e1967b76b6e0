//! Lane of one connection: a pool of one, which makes a new connection when the old one is dead.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    TrackedConnection,
    connection_factory::{ConnectFailures, ConnectionFactory},
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
    pub(super) fn new(manager: ConnectionFactory) -> Self {
        let failures = Arc::clone(&manager.failures);
        Self { pool: Mutex::new(LanePool::new(manager, 0)), connection: Mutex::new(None), failures }
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
        let Self { pool, connection: known, failures } = self;
        if let Some(socket) = known.lock().as_ref().and_then(TrackedConnection::checkout) {
            return Ok(socket);
        }
        if let Some(mistake) = failures.config_error() {
            return Err(mistake);
        }
        let LanePool { pool, generation: number, .. } = pool.lock().clone();
        let mut failed = std::pin::pin!(failures.failure_notify.notified());
        failed.as_mut().enable();
        tokio::select! {
            biased;
            socket = pool.get() => match socket {
                Ok(socket) => self.adopt_connection(&socket, number).ok_or_else(|| failures.last_error()),
                Err(_) => {
                    self.replace_stalled_pool(number);
                    Err(failures.last_error())
                }
            },
            () = failed => Err(failures.last_error()),
        }
    }

    /// Makes a socket the lane's connection, unless it belongs to a replaced pool. A lane has one
    /// connection at a time, which orders its calls.
    fn adopt_connection(
        &self,
        socket: &TrackedConnection,
        number: u64,
    ) -> Option<TrackedConnection> {
        let pool = self.pool.lock();
        (pool.generation == number).then(|| {
            let before = self.connection.lock().replace(socket.clone());
            // Also if no call waited on the old one: calls sent there may be delivered after those
            // sent here.
            if before.is_some_and(|before| before.checkout().is_none()) {
                socket.record_replacement();
            }
            socket.clone()
        })
    }

    /// Replaces a stalled pool. `bb8` connects on the runtime of its first caller; if that runtime
    /// ends, the pool waits for ever.
    fn replace_stalled_pool(&self, number: u64) {
        let mut pool = self.pool.lock();
        if pool.generation == number && pool.is_stalled() {
            *pool = LanePool::new(pool.factory.clone(), number + 1);
        }
    }
}

impl LanePool {
    fn new(manager: ConnectionFactory, number: u64) -> Self {
        let manager = ConnectionFactory { attempt_started_at: Arc::default(), ..manager };
        let pool = bb8::Pool::builder()
            .max_size(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .connection_timeout(manager.deadline)
            .build_unchecked(manager.clone());
        Self { pool, factory: manager, generation: number }
    }

    /// Returns true if the pool has no connection and no attempt is in progress, or the attempt is
    /// overdue because its runtime is blocked.
    fn is_stalled(&self) -> bool {
        let begun = *self.factory.attempt_started_at.lock();
        let stands = |begun: Instant| begun.elapsed() > self.factory.deadline * 3;
        self.pool.state().connections == 0 && begun.is_none_or(stands)
    }
}
