//! Making a connection: it is opened, and the server at its end is looked at.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, timeout},
};

use super::{Socket, layout, life::Life};
use crate::{
    error::{Error, ErrorKind},
    store::{
        key_names::{COMMON, KeyNames},
        redis::{
            fences,
            home::at_home,
            incarnation::{Data, Incarnation, Met},
            nodes::Place,
            rights,
            server::Facts,
            spread::about,
            target::{Connection, Failure, Opened, Settings, Target},
        },
    },
};

/// For how long a mistake is what all are told, about: each attempt is a login, which may be counted.
const AGAIN: Duration = Duration::from_millis(500);

/// Why connections could not be made, and word of it to those who wait.
#[derive(Default)]
pub(super) struct Failures {
    /// And until when none is made, if it is a mistake.
    last: Mutex<Option<(Failure, Option<Instant>)>>,
    pub(super) bell: Notify,
}

impl Failures {
    fn note(&self, failure: Failure) -> Error {
        let is_mistake = matches!(failure, Failure::Config(_));
        let again = is_mistake.then(|| Instant::now() + about(AGAIN));
        *self.last.lock() = Some((failure.clone(), again));
        self.bell.notify_waiters();
        failure.error()
    }

    /// One could be made: what was wrong is not what will be.
    fn forget(&self) {
        *self.last.lock() = None;
    }

    pub(super) fn last(&self) -> Error {
        self.last.lock().clone().map_or(Failure::Away, |(failure, _)| failure).error()
    }

    /// What the server said the last time that it was there and took no connection.
    pub(super) fn refusal(&self) -> Option<Error> {
        let last = self.last.lock().clone();
        last.filter(|(failure, _)| matches!(failure, Failure::Refused(_)))
            .map(|(why, _)| why.error())
    }

    /// What an attempt would be told again, most likely: a moment ago it was a mistake, and that is mended by hand.
    pub(super) fn mistake(&self) -> Option<Error> {
        let last = self.last.lock().clone();
        let (failure, _) = last.filter(|(_, again)| again.is_some_and(|at| Instant::now() < at))?;
        Some(failure.error())
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
    pub(super) keys: KeyNames,
    pub(super) deadline: Duration,
    pub(super) failures: Arc<Failures>,
    pub(super) incarnation: Option<Arc<Incarnation>>,
    pub(super) place: Option<Arc<Place>>,
    /// Connections of all lanes that were left because they were silent.
    pub(super) silences: Arc<AtomicU64>,
    /// Since when its pool's connection is being made.
    pub(super) making: Arc<Mutex<Option<Instant>>>,
    /// The runtime that the store was made on.
    pub(super) home: Option<Handle>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Socket;
    type Error = Error;

    async fn connect(&self) -> Result<Socket, Error> {
        let _making = Making::begun(&self.making);
        // Bounded as a whole: an attempt that never ends would keep its lane from making another.
        let opened = timeout(self.deadline * 2, self.open_at_home()).await;
        let opened = opened.unwrap_or(Err(Failure::Away)).inspect(|_| self.failures.forget());
        opened.map_err(|failure| self.failures.note(failure))
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

    async fn open_at_home(&self) -> Result<Socket, Failure> {
        let manager = self.clone();
        let open = async move { manager.open().await };
        match at_home(self.home.as_ref(), self.deadline / 4, open).await {
            Some(opened) => opened,
            None => self.open().await,
        }
    }

    pub(super) async fn open(&self) -> Result<Socket, Failure> {
        let settings = Settings { within: Some(self.deadline), ..Settings::default() };
        let Opened { mut connection, at } = self.target.open(COMMON, &settings).await?;
        let facts = Facts::ask(&mut connection).await?;
        facts.check(self.place.is_some())?;
        // It answers, so it was alive after this.
        let alive = Instant::now();
        let mut own = connection.clone();
        // Both at once: that takes no longer.
        let (data, may) =
            tokio::join!(self.check_layout(&mut connection), rights::check(&mut own, &self.keys));
        let data = data?;
        may?;
        let run_id = facts.run_id().filter(|_| self.incarnation.is_some());
        if let (Some(run_id), None) = (run_id, &self.place) {
            fences::raise(&mut connection, &self.keys, run_id).await?;
        }
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
            if matches!(incarnation.met(&place, id, data, dead), Met::First | Met::Other) {
                facts.warn(&mut connection).await;
            }
        }
        let (place, timeouts) = (self.place.clone(), Arc::default());
        let life = self.patience().map(|patience| Arc::new(Life::new(alive, patience)));
        let (dead, silences) = (settings.gone, Arc::clone(&self.silences));
        let run_id = run_id.filter(|_| place.is_some()).map(Arc::from);
        Ok(Socket { connection, place, run_id, dead, timeouts, life, given: alive, silences })
    }

    /// How long a connection may have been silent, and still be used; however long, if `None`.
    pub(super) fn patience(&self) -> Option<Duration> {
        match &self.place {
            Some(place) => Some(place.cluster.patience()),
            None => self.target.patience(),
        }
    }

    /// Fails unless the namespace has the layout of this version. Returns the name of the data, unless another node has
    /// it. (A probe leaves it to the lanes to name them.)
    async fn check_layout(&self, connection: &mut Connection) -> Result<Option<Data>, Failure> {
        let writes = self.incarnation.is_some();
        let data = layout::check(connection, &self.keys, self.place.is_some(), writes).await?;
        let (Some(incarnation), Some(place)) = (&self.incarnation, &self.place) else {
            return Ok(data);
        };
        // A node without `meta` can't tell which layout the namespace has: until it is known, its node is asked.
        if data.is_none() && !incarnation.knows_layout() {
            let settings = Settings { within: Some(self.deadline), ..Settings::default() };
            let mut common = place.cluster.open(COMMON, &settings).await?.connection;
            let common = layout::check(&mut common, &self.keys, false, writes).await?;
            // Before a lane of that node connects, headers are signed with it.
            if let Some(Data(Some(space))) = common {
                incarnation.learn(&space);
            }
        }
        incarnation.layout_is_known();
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_mistake_is_told_for_a_moment_and_an_outage_is_not() {
        let failures = Failures::default();
        assert!(failures.mistake().is_none());
        failures.note(Failure::Config("another password".to_owned()));
        assert!(failures.mistake().is_some_and(|error| error.kind() == ErrorKind::Config));
        tokio::time::advance(AGAIN * 5 / 4).await;
        assert!(failures.mistake().is_none(), "it may be mended");
        assert_eq!(failures.last().kind(), ErrorKind::Config, "if it is not");
        failures.note(Failure::Config("another password".to_owned()));
        failures.note(Failure::Away);
        assert!(failures.mistake().is_none());
        failures.note(Failure::Config("another password".to_owned()));
        failures.forget();
        assert!(failures.mistake().is_none());
    }
}
