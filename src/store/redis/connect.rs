//! Connections: a few sockets, many requests on each.
//!
//! A lane is a `bb8` pool of one multiplexed connection. A call checks it out, clones the handle and
//! gives it back at once, so calls pipeline. All calls about one shard go through one lane: that is
//! what orders an undo after the call it undoes. Validity is a flag that is read, never a `PING`: it
//! is set by the disconnect push, by a run of timeouts, and by answers of a server that is no master.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, ErrorKind as RedisErrorKind, PushInfo, PushKind, RedisError,
    ServerErrorKind,
    aio::{MultiplexedConnection, SendError},
};

use super::Keys;
use crate::{
    error::{Error, ErrorKind},
    key::SHARDS,
};

/// Timeouts in a row after which a socket counts as dead: a half-open one would time out for ever.
const TIMEOUTS: u32 = 3;

/// One connection and its flags.
#[derive(Clone)]
pub(super) struct Socket {
    pub(super) connection: MultiplexedConnection,
    dead: Arc<AtomicBool>,
    timeouts: Arc<AtomicU32>,
}

impl Socket {
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(super) fn condemn(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(super) fn answered(&self) {
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn timed_out(&self) {
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
            self.condemn();
        }
    }
}

pub(super) struct Lanes(Vec<bb8::Pool<Manager>>);

impl Lanes {
    pub(super) fn new(client: &Client, keys: &Keys, number: usize, deadline: Duration) -> Self {
        let lane = |_| {
            let manager = Manager {
                client: client.clone(),
                meta: keys.meta(),
                deadline,
            };
            bb8::Pool::builder()
                .max_size(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .retry_connection(false)
                .connection_timeout(deadline)
                .build_unchecked(manager)
        };
        Self((0..number).map(lane).collect())
    }

    /// A connection for calls about this shard.
    pub(super) async fn socket(&self, shard: u16) -> Result<Socket, Error> {
        let lane = &self.0[usize::from(shard) % self.0.len()];
        match lane.get().await {
            Ok(socket) => Ok(socket.clone()),
            Err(bb8::RunError::User(error)) => Err(error),
            Err(bb8::RunError::TimedOut) => Err(Error::new(ErrorKind::Unavailable, "connect")),
        }
    }
}

pub(super) struct Manager {
    client: Client,
    meta: String,
    deadline: Duration,
}

impl bb8::ManageConnection for Manager {
    type Connection = Socket;
    type Error = Error;

    async fn connect(&self) -> Result<Socket, Error> {
        let dead = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&dead);
        let on_push = move |push: PushInfo| -> Result<(), SendError> {
            if push.kind == PushKind::Disconnection {
                flag.store(true, Ordering::Release);
            }
            Ok(())
        };
        // Deadlines are ours, around each call: the library's own would only answer later.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.deadline))
            .set_response_timeout(None)
            .set_push_sender(on_push);
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(refused)?;
        self.check_layout(&mut connection).await?;
        Ok(Socket {
            connection,
            dead,
            timeouts: Arc::default(),
        })
    }

    async fn is_valid(&self, socket: &mut Socket) -> Result<(), Error> {
        if socket.is_dead() {
            Err(Error::new(ErrorKind::Unavailable, "connection"))
        } else {
            Ok(())
        }
    }

    fn has_broken(&self, socket: &mut Socket) -> bool {
        socket.is_dead()
    }
}

impl Manager {
    /// The number of shards is part of every key: processes that disagree would not see each other.
    async fn check_layout(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("HSETNX")
            .arg(&self.meta)
            .arg("shards")
            .arg(SHARDS)
            .ignore();
        pipe.cmd("HGET").arg(&self.meta).arg("shards");
        let (shards,): (u16,) = pipe.query_async(connection).await.map_err(refused)?;
        if shards == SHARDS {
            return Ok(());
        }
        Err(Error::config(format!(
            "this namespace was made with {shards} shards and this version has {SHARDS}; use another ?ns="
        )))
    }
}

/// An error before any call was sent: nothing has run.
fn refused(error: RedisError) -> Error {
    match error.kind() {
        RedisErrorKind::AuthenticationFailed => Error::config("the store refused the password"),
        RedisErrorKind::Server(ServerErrorKind::NoPerm) => {
            Error::config("the store's user may not run the commands lockgate needs")
        }
        RedisErrorKind::InvalidClientConfig => Error::config("the store's URL can't be used"),
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
            Error::config("the store needs another password")
        }
        _ => Error::new(ErrorKind::Unavailable, "connect").with(error),
    }
}
