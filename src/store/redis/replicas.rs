//! `WAIT`: how many replicas have a grant.
//!
//! `WAIT` holds up its connection, and counts what was written on that connection: so it has one of its
//! own, and writes something there first. What was written before, on any connection, stands before it
//! in the stream that replicas get.
//!
//! It must be the same server, though: the replicas of a successor have never heard of what was written to
//! the one before and not passed on.

use std::time::Duration;

use tokio::{sync::Mutex, time::timeout};

use super::{
    Redis,
    server::Facts,
    target::{Connection, Failure, Settings},
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
};

/// The connection, made by the first who needs it, and the id of its server.
#[derive(Default)]
pub(super) struct Replicas(Mutex<Option<(Connection, Option<String>)>>);

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
        let mut kept = self.replicas.0.lock().await;
        // Taken out: a call that is dropped half way leaves no connection with a reply on its way.
        let (mut connection, id) = match kept.take() {
            Some(kept) => kept,
            None => self.connect_for_replicas().await?,
        };
        let mark = self.keys.shard(shard, "replicas");
        let patience = millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis(Duration::from_secs(1))).ignore();
        pipe.cmd("WAIT").arg(wanted).arg(patience);
        let (have,): (u32,) = pipe.query_async(&mut connection).await.map_err(away)?;
        if !self.lanes.incarnation().is_still(since, id.as_deref()) {
            // The lanes or this connection lead to a successor: the next one is made anew.
            return Err(Error::new(ErrorKind::Unavailable, "replicas"));
        }
        *kept = Some((connection, id));
        Ok(have)
    }

    async fn connect_for_replicas(&self) -> Result<(Connection, Option<String>), Error> {
        // The deadline is ours, around all of it.
        let connected = self.target.open(&Settings::default()).await;
        let mut connection = connected.map_err(Failure::error)?;
        let facts = Facts::ask(&mut connection).await;
        facts.check().map_err(Failure::error)?;
        Ok((connection, facts.id))
    }
}
