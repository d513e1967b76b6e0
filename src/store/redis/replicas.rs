//! `WAIT`: how many replicas have a grant.
//!
//! `WAIT` holds up its connection, and counts what was written on that connection: so it has one of its
//! own, and writes something there first. What was written before, on any connection, stands before it
//! in the stream that replicas get.
//!
//! It must be the same server, though: the replicas of a successor have never heard of what was written to
//! the one before and not passed on.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::time::timeout;

use super::{
    Redis,
    server::Facts,
    target::{Connection, Endpoint, Failure, Settings},
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
};

/// A connection, and the id of its server.
type Kept = (Connection, Option<String>);

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
#[derive(Default)]
pub(super) struct Replicas(Mutex<Slots>);

impl Replicas {
    fn slot(
        &self,
        place: &Option<Endpoint>,
        owners: impl FnOnce() -> Vec<Endpoint>,
    ) -> Arc<tokio::sync::Mutex<Slot>> {
        let mut slots = self.0.lock();
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
        let waited = self.wait_for_replicas(shard, wanted, since);
        timeout(self.deadline, waited).await.map_err(|_| late())?
    }

    async fn wait_for_replicas(&self, shard: u16, wanted: u32, since: u64) -> Result<u32, Error> {
        let away = |error| Error::new(ErrorKind::Unavailable, "replicas").with(error);
        let called = Instant::now();
        let place = self.target.place(shard).await.map_err(Failure::error)?;
        let name = place.as_ref().map(|(host, port)| format!("{host}:{port}")).unwrap_or_default();
        let is_still =
            |id: &Option<String>| self.lanes.incarnation().is_still(since, &name, id.as_deref());
        let slot = self.replicas.slot(&place, || self.target.owners());
        let mut slot = slot.lock().await;
        if let Some(last) = slot.last.as_ref().filter(|last| last.answers(called, wanted))
            && is_still(&last.id)
        {
            return Ok(last.have);
        }
        // Taken out: a call that is dropped half way leaves no connection with a reply on its way.
        let (mut connection, id) = match slot.kept.take() {
            Some(kept) => kept,
            None => self.connect_for_replicas(shard, place.is_some()).await?,
        };
        let mark = self.keys.shard(shard, "replicas");
        let patience = millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis(Duration::from_secs(1))).ignore();
        pipe.cmd("WAIT").arg(wanted).arg(patience);
        let begun = Instant::now();
        let answer: Result<(u32,), _> = pipe.query_async(&mut connection).await;
        let (have,) = answer.inspect_err(|_| self.target.look_again()).map_err(away)?;
        if !is_still(&id) {
            // The lanes or this connection lead to a successor: the next one is made anew.
            return Err(Error::new(ErrorKind::Unavailable, "replicas"));
        }
        slot.last = Some(Waited { begun, wanted, have, id: id.clone() });
        slot.kept = Some((connection, id));
        Ok(have)
    }

    async fn connect_for_replicas(&self, shard: u16, as_node: bool) -> Result<Kept, Error> {
        // The deadline is ours, around all of it.
        let connected = self.target.open(shard, &Settings::default()).await;
        let mut connection = connected.map_err(Failure::error)?;
        let facts = Facts::ask(&mut connection).await;
        facts.check(as_node).map_err(Failure::error)?;
        Ok((connection, facts.id))
    }
}
