//! A lane's one connection: a pool of one, which makes another when it is dead.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Socket,
    manager::{Failures, Manager},
};
use crate::error::Error;

/// A pool of one, and word of the connections that could not be made: `bb8` makes them in a task of its
/// own, and would leave those who wait to their timeout.
pub(in super::super) struct Lane {
    pool: Mutex<Pool>,
    /// The pool's one connection, once it is known.
    socket: Mutex<Option<Socket>>,
    failures: Arc<Failures>,
}

/// A pool, and what tells it from those that were there before.
#[derive(Clone)]
struct Pool {
    pool: bb8::Pool<Manager>,
    manager: Manager,
    number: u64,
}

impl Lane {
    pub(super) fn new(manager: Manager) -> Self {
        let failures = Arc::clone(&manager.failures);
        Self { pool: Mutex::new(Pool::new(manager, 0)), socket: Mutex::new(None), failures }
    }

    /// Its connection, if it has one.
    pub(in super::super) fn known(&self) -> Option<Socket> {
        self.socket.lock().clone()
    }

    /// Why the server takes no connection, if it said so.
    pub(in super::super) fn refusal(&self) -> Option<Error> {
        self.failures.refusal()
    }

    /// Its connection. While that lives, this asks nobody and does not wait.
    pub(in super::super) async fn socket(&self) -> Result<Socket, Error> {
        let Self { pool, socket: known, failures } = self;
        if let Some(socket) = known.lock().as_ref().and_then(Socket::give) {
            return Ok(socket);
        }
        if let Some(mistake) = failures.mistake() {
            return Err(mistake);
        }
        let Pool { pool, number, .. } = pool.lock().clone();
        let mut failed = std::pin::pin!(failures.bell.notified());
        failed.as_mut().enable();
        tokio::select! {
            biased;
            socket = pool.get() => match socket {
                Ok(socket) => self.keep(&socket, number).ok_or_else(|| failures.last()),
                Err(_) => {
                    self.revive(number);
                    Err(failures.last())
                }
            },
            () = failed => Err(failures.last()),
        }
    }

    /// Takes a socket for the lane's; not one of a pool that was given up: a lane has one at a time, which
    /// is what orders its calls.
    fn keep(&self, socket: &Socket, number: u64) -> Option<Socket> {
        let pool = self.pool.lock();
        (pool.number == number).then(|| {
            let before = self.socket.lock().replace(socket.clone());
            // Also where nobody waited on it: what was sent there may be delivered yet, after what goes here.
            if before.is_some_and(|before| before.give().is_none()) {
                socket.took_over();
            }
            socket.clone()
        })
    }

    /// `bb8` connects on the runtime of whoever asked first. If that ends meanwhile, the pool waits for ever
    /// for a connection that nobody makes.
    fn revive(&self, number: u64) {
        let mut pool = self.pool.lock();
        if pool.number == number && pool.is_forsaken() {
            *pool = Pool::new(pool.manager.clone(), number + 1);
        }
    }
}

impl Pool {
    fn new(manager: Manager, number: u64) -> Self {
        let manager = Manager { making: Arc::default(), ..manager };
        let pool = bb8::Pool::builder()
            .max_size(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .connection_timeout(manager.deadline)
            .build_unchecked(manager.clone());
        Self { pool, manager, number }
    }

    /// It has no connection and nobody makes one, or who makes it should have ended long ago: its runtime
    /// stands still.
    fn is_forsaken(&self) -> bool {
        let begun = *self.manager.making.lock();
        let stands = |begun: Instant| begun.elapsed() > self.manager.deadline * 3;
        self.pool.state().connections == 0 && begun.is_none_or(stands)
    }
}
