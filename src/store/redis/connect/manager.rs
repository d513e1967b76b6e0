//! Making a connection: it is opened, and the server at its end is looked at.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Socket, life::Life};
use crate::{
    error::{Error, ErrorKind},
    key::SHARDS,
    store::{
        keys::COMMON,
        redis::{
            incarnation::{Incarnation, Met},
            nodes::Place,
            server::Facts,
            target::{Connection, Failure, Opened, Settings, Target},
        },
    },
};

/// Why connections could not be made, and word of it to those who wait.
#[derive(Default)]
pub(super) struct Failures {
    last: Mutex<Option<Failure>>,
    pub(super) bell: Notify,
}

impl Failures {
    fn note(&self, failure: Failure) -> Error {
        *self.last.lock() = Some(failure.clone());
        self.bell.notify_waiters();
        failure.error()
    }

    pub(super) fn last(&self) -> Error {
        self.last.lock().clone().unwrap_or(Failure::Away).error()
    }
}

/// An attempt to connect, until it ends or its runtime does.
struct Making<'a>(&'a Mutex<Option<Instant>>);

impl<'a> Making<'a> {
    fn begun(making: &'a Mutex<Option<Instant>>) -> Self {
        *making.lock() = Some(Instant::now());
        Self(making)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Makes connections, and sees that they lead to a server that can be used, with this layout.
#[derive(Clone)]
pub(super) struct Manager {
    pub(super) target: Target,
    pub(super) meta: String,
    pub(super) deadline: Duration,
    pub(super) failures: Arc<Failures>,
    pub(super) incarnation: Option<Arc<Incarnation>>,
    pub(super) place: Option<Arc<Place>>,
    /// Connections of all lanes that were left because they were silent.
    pub(super) silences: Arc<AtomicU64>,
    /// Since when its pool's connection is being made.
    pub(super) making: Arc<Mutex<Option<Instant>>>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Socket;
    type Error = Error;

    async fn connect(&self) -> Result<Socket, Error> {
        let _making = Making::begun(&self.making);
        // Bounded as a whole: an attempt that never ends would keep its lane from making another.
        let opened = tokio::time::timeout(self.deadline * 2, self.open()).await;
        opened.unwrap_or(Err(Failure::Away)).map_err(|failure| self.failures.note(failure))
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
    /// For a lane to this target.
    pub(super) fn watching(
        &self,
        target: Target,
        incarnation: &Arc<Incarnation>,
        place: Option<Arc<Place>>,
    ) -> Self {
        let incarnation = Some(Arc::clone(incarnation));
        Self { target, failures: Arc::default(), incarnation, place, ..self.clone() }
    }

    pub(super) async fn open(&self) -> Result<Socket, Failure> {
        let settings = Settings { within: Some(self.deadline), ..Settings::default() };
        let Opened { mut connection, at } = self.target.open(COMMON, &settings).await?;
        let facts = Facts::ask(&mut connection).await?;
        facts.check(self.place.is_some())?;
        // It answers, so it was alive after this.
        let alive = Instant::now();
        let blank = self.check_layout(&mut connection).await?;
        if let Some(place) = &self.place
            && !place.is_vouched_for().await
        {
            return Err(Failure::Away);
        }
        if let Some(incarnation) = &self.incarnation {
            let dead = Arc::downgrade(&settings.gone);
            let place = self.place.as_ref().map(|place| place.name()).unwrap_or_default();
            let node = self.place.as_ref().map(|place| &place.address);
            let id = facts.identity(at.as_ref().or(node));
            if matches!(incarnation.met(&place, id, blank, dead), Met::First | Met::Other) {
                facts.warn(&mut connection).await;
            }
        }
        let (place, timeouts) = (self.place.clone(), Arc::default());
        let life = self.patience().map(|patience| Arc::new(Life::new(alive, patience)));
        let (dead, silences) = (settings.gone, Arc::clone(&self.silences));
        Ok(Socket { connection, place, dead, timeouts, life, given: alive, silences })
    }

    /// How long a connection may have been silent, and still be used; however long, if `None`.
    pub(super) fn patience(&self) -> Option<Duration> {
        match &self.place {
            Some(place) => Some(place.cluster.patience()),
            None => self.target.patience(),
        }
    }

    /// The number of shards is part of every key: processes that disagree would not see each other. True
    /// if nobody had written it before. (A probe leaves that to the lanes: they tell of a new server by it.)
    async fn check_layout(&self, connection: &mut Connection) -> Result<bool, Failure> {
        let mut pipe = redis::pipe();
        // A write, which a replica refuses. One that a server without room takes: calls that make room go through here.
        pipe.cmd("HDEL").arg(&self.meta).arg("never").ignore();
        pipe.cmd("HGET").arg(&self.meta).arg("shards");
        let answer: Result<(Option<u16>,), _> = pipe.query_async(connection).await;
        let known = match answer {
            // Another node of the cluster has it, or nobody now.
            Err(error) if self.place.is_some() && error.is_cluster_error() => return Ok(false),
            answer => answer.map_err(|error| Failure::of(&error))?.0,
        };
        let (blank, shards) = match known {
            Some(shards) => (false, shards),
            None if self.incarnation.is_none() => return Ok(true),
            None => self.write_layout(connection).await?,
        };
        if shards == SHARDS {
            return Ok(blank);
        }
        Err(Failure::Config(format!(
            "this namespace was made with {shards} shards and this version has {SHARDS}; use another ?ns="
        )))
    }

    /// Whether nobody else was faster, and what is written.
    async fn write_layout(&self, connection: &mut Connection) -> Result<(bool, u16), Failure> {
        let mut pipe = redis::pipe();
        pipe.cmd("HSETNX").arg(&self.meta).arg("shards").arg(SHARDS);
        pipe.cmd("HGET").arg(&self.meta).arg("shards");
        pipe.query_async(connection).await.map_err(|error| Failure::of(&error))
    }
}
