//! A lane's one connection: a pool of one, which makes another when it is dead.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    TrackedConnection,
    connection_factory::{ConnectFailures, ConnectionFactory},
};
use crate::error::Error;

/// A pool of one, and word of the connections that could not be made: `bb8` makes them in a task of its
/// own, and would leave those who wait to their timeout.
pub(in super::super) struct ConnectionLane {
    pool: Mutex<LanePool>,
    /// The pool's one connection, once it is known.
    connection: Mutex<Option<TrackedConnection>>,
    failures: Arc<ConnectFailures>,
}

/// A pool, and what tells it from those that were there before.
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

    /// Its connection, if it has one.
    pub(in super::super) fn current_connection(&self) -> Option<TrackedConnection> {
        self.connection.lock().clone()
    }

    /// Why the server takes no connection, if it said so.
    pub(in super::super) fn last_refusal(&self) -> Option<Error> {
        self.failures.last_refusal()
    }

    /// Its connection. While that lives, this asks nobody and does not wait.
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

    /// Takes a socket for the lane's; not one of a pool that was given up: a lane has one at a time, which
    /// is what orders its calls.
    fn adopt_connection(
        &self,
        socket: &TrackedConnection,
        number: u64,
    ) -> Option<TrackedConnection> {
        let pool = self.pool.lock();
        (pool.generation == number).then(|| {
            let before = self.connection.lock().replace(socket.clone());
            // Also where nobody waited on it: what was sent there may be delivered yet, after what goes here.
            if before.is_some_and(|before| before.checkout().is_none()) {
                socket.record_replacement();
            }
            socket.clone()
        })
    }

    /// `bb8` connects on the runtime of whoever asked first. If that ends meanwhile, the pool waits for ever
    /// for a connection that nobody makes.
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

    /// It has no connection and nobody makes one, or who makes it should have ended long ago: its runtime
    /// stands still.
    fn is_stalled(&self) -> bool {
        let begun = *self.factory.attempt_started_at.lock();
        let stands = |begun: Instant| begun.elapsed() > self.factory.deadline * 3;
        self.pool.state().connections == 0 && begun.is_none_or(stands)
    }
}
