//! `WAIT`: how many replicas have a grant.
//!
//! `WAIT` holds up its connection, and counts what was written on that connection: so it has one of its
//! own, and writes something there first. What was written before, on any connection, stands before it
//! in the stream that replicas get.
//!
//! It must be the same server, though: the replicas of a successor have never heard of what was written to
//! the one before and not passed on.

use std::{collections::HashMap, time::Duration};

use tokio::{sync::Mutex, time::timeout};

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

/// The connection, made by the first who needs it; in a cluster one to each node.
#[derive(Default)]
pub(super) struct Replicas(Mutex<HashMap<Option<Endpoint>, Kept>>);

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
        let place = self.target.place(shard).await.map_err(Failure::error)?;
        let mut kept = self.replicas.0.lock().await;
        // Taken out: a call that is dropped half way leaves no connection with a reply on its way.
        let (mut connection, id) = match kept.remove(&place) {
            Some(kept) => kept,
            None => self.connect_for_replicas(shard, place.is_some()).await?,
        };
        let mark = self.keys.shard(shard, "replicas");
        let patience = millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis(Duration::from_secs(1))).ignore();
        pipe.cmd("WAIT").arg(wanted).arg(patience);
        let answer: Result<(u32,), _> = pipe.query_async(&mut connection).await;
        let (have,) = answer.inspect_err(|_| self.target.look_again()).map_err(away)?;
        let name = place.as_ref().map(|(host, port)| format!("{host}:{port}")).unwrap_or_default();
        if !self.lanes.incarnation().is_still(since, &name, id.as_deref()) {
            // The lanes or this connection lead to a successor: the next one is made anew.
            return Err(Error::new(ErrorKind::Unavailable, "replicas"));
        }
        kept.insert(place, (connection, id));
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
