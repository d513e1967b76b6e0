//! `WAIT`: how many replicas have a grant; or `WAITAOF`: how many have it on their disks, as the master has.
//!
//! `WAIT` holds up its connection, and counts what was written on that connection: so it has one of its
//! own, and writes something there first. What was written before, on any connection, stands before it
//! in the stream that replicas get.
//!
//! It must be the same server, though: the replicas of a successor have never heard of what was written to
//! the one before and not passed on.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::RedisError;
use tokio::{runtime::Handle, time::timeout};

use super::{
    KeyNames, Redis,
    connect::Lanes,
    home::at_home,
    server::Facts,
    target::{Connection, Endpoint, Failure, Opened, Settings, Target},
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
};

/// A connection to a server.
struct Kept {
    connection: Connection,
    /// As [`Settings::gone`].
    gone: Arc<AtomicBool>,
    id: Option<String>,
    waits_for_disks: bool,
}

/// What is known of one server's replicas; whoever asks it holds this.
#[derive(Default)]
struct Slot {
    kept: Option<Kept>,
    last: Option<Waited>,
}

/// A `WAIT` that was answered. It tells of all that was written before it was begun.
struct Waited {
    begun: Instant,
    wanted: u32,
    have: u32,
    id: Option<String>,
}

impl Waited {
    /// Whether it answers somebody who has asked for so many since then.
    fn answers(&self, called: Instant, wanted: u32) -> bool {
        self.begun > called && (self.have >= wanted || self.wanted >= wanted)
    }
}

type Slots = HashMap<Option<Endpoint>, Arc<tokio::sync::Mutex<Slot>>>;

/// In a cluster a slot for each node: one whose replicas lag holds up nobody who asks another.
pub(super) struct Replicas {
    target: Target,
    lanes: Arc<Lanes>,
    keys: KeyNames,
    deadline: Duration,
    /// What is on a disk counts, where the server can tell.
    on_disk: bool,
    /// The runtime it was made on.
    home: Option<Handle>,
    slots: Mutex<Slots>,
}

impl Replicas {
    pub(super) fn new(
        target: &Target,
        lanes: &Arc<Lanes>,
        keys: &KeyNames,
        deadline: Duration,
        on_disk: bool,
    ) -> Arc<Self> {
        let (target, lanes, keys) = (target.clone(), Arc::clone(lanes), keys.clone());
        let (home, slots) = (Handle::try_current().ok(), Mutex::default());
        Arc::new(Self { target, lanes, keys, deadline, on_disk, home, slots })
    }

    fn slot(
        &self,
        place: &Option<Endpoint>,
        owners: impl FnOnce() -> Vec<Endpoint>,
    ) -> Arc<tokio::sync::Mutex<Slot>> {
        let mut slots = self.slots.lock();
        if !slots.contains_key(place) {
            let owners = owners();
            slots.retain(|place, _| place.as_ref().is_none_or(|place| owners.contains(place)));
        }
        Arc::clone(slots.entry(place.clone()).or_default())
    }
}

impl Redis {
    pub(super) async fn do_replicated(
        &self,
        shard: u16,
        wanted: u32,
        since: u64,
    ) -> Result<u32, Error> {
        let late = || Error::new(ErrorKind::Timeout, "replicas");
        let (replicas, deadline) = (Arc::clone(&self.replicas), self.deadline);
        let wait = move || {
            let replicas = Arc::clone(&replicas);
            // A task of its own: whoever waits for its slot does not wait for this caller to be polled, and it keeps its
            // connection where he leaves.
            async move {
                let waits = async move { replicas.wait_for(shard, wanted, since).await };
                let waited = tokio::spawn(timeout(deadline, waits)).await;
                waited
                    .map_err(|_| Error::new(ErrorKind::Unavailable, "replicas"))?
                    .map_err(|_| late())?
            }
        };
        // Nor for his thread. By his own clock: that one may stand still, too.
        let patience = deadline / 4;
        let there = at_home(self.replicas.home.as_ref(), patience, wait());
        match timeout(deadline + patience, there).await {
            Ok(Some(waited)) => waited,
            Ok(None) => wait().await,
            Err(_) => Err(late()),
        }
    }
}

impl Replicas {
    async fn wait_for(&self, shard: u16, wanted: u32, since: u64) -> Result<u32, Error> {
        let away = |error| Error::new(ErrorKind::Unavailable, "replicas").with(error);
        let called = Instant::now();
        let place = self.target.place(shard).await.map_err(Failure::error)?;
        let name = place.as_ref().map(|(host, port)| format!("{host}:{port}")).unwrap_or_default();
        let is_still =
            |id: &Option<String>| self.lanes.incarnation().is_still(since, &name, id.as_deref());
        let slot = self.slot(&place, || self.target.owners());
        let mut slot = slot.lock().await;
        if let Some(last) = slot.last.as_ref().filter(|last| last.answers(called, wanted))
            && is_still(&last.id)
        {
            return Ok(last.have);
        }
        // Taken out: a call that is dropped half way leaves no connection with a reply on its way.
        let mut kept = match slot.kept.take().filter(|kept| !kept.gone.load(Ordering::Acquire)) {
            Some(kept) => kept,
            None => self.connect(shard, place.is_some()).await?,
        };
        let begun = Instant::now();
        let answer = self.ask(&mut kept, shard, wanted).await;
        let have = answer.inspect_err(|_| self.target.look_again()).map_err(away)?;
        if !is_still(&kept.id) {
            // The lanes or this connection lead to a successor: the next one is made anew.
            return Err(Error::new(ErrorKind::Unavailable, "replicas"));
        }
        slot.last = Some(Waited { begun, wanted, have, id: kept.id.clone() });
        slot.kept = Some(kept);
        Ok(have)
    }

    async fn ask(&self, kept: &mut Kept, shard: u16, wanted: u32) -> Result<u32, RedisError> {
        let mark = self.keys.shard_key(shard, "replicas");
        let patience = millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis(Duration::from_secs(1))).ignore();
        if !kept.waits_for_disks {
            pipe.cmd("WAIT").arg(wanted).arg(patience);
            let (have,) = pipe.query_async(&mut kept.connection).await?;
            return Ok(have);
        }
        pipe.cmd("WAITAOF").arg(1).arg(wanted).arg(patience);
        let ((here, have),): ((u32, u32),) = pipe.query_async(&mut kept.connection).await?;
        // What the master itself has not on its disk may be gone when it starts again, and its replicas follow it.
        Ok(if here > 0 { have } else { 0 })
    }

    async fn connect(&self, shard: u16, as_node: bool) -> Result<Kept, Error> {
        // The deadline is ours, around all of it.
        let settings = Settings::default();
        let connected = self.target.open(shard, &settings).await;
        let Opened { mut connection, at } = connected.map_err(Failure::error)?;
        let facts = Facts::ask(&mut connection).await.map_err(Failure::error)?;
        facts.check(as_node).map_err(Failure::error)?;
        let waits_for_disks = self.on_disk && facts.waits_for_disks();
        if self.on_disk && !waits_for_disks {
            tracing::warn!(
                "the store's server can't tell what is on disks (Redis 7.2 with `appendonly yes` can): what replicas \
                 have in their memory counts"
            );
        }
        let (gone, id) = (settings.gone, facts.identity(at.as_ref()));
        Ok(Kept { connection, gone, id, waits_for_disks })
    }
}
