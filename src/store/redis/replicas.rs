//! `WAIT`: how many replicas have a grant.
//!
//! `WAIT` holds up its connection, and counts what was written on that connection: so it has one of its
//! own, and writes something there first. What was written before, on any connection, stands before it
//! in the stream that replicas get.

use std::{collections::HashMap, time::Duration};

use tokio::{sync::Mutex, time::timeout};

use super::{
    Redis,
    target::{Connection, Endpoint, Failure, Settings},
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
};

/// The connection, made by the first who needs it; in a cluster one to each node.
#[derive(Default)]
pub(super) struct Replicas(Mutex<HashMap<Option<Endpoint>, Connection>>);

impl Redis {
    pub(super) async fn do_replicated(&self, shard: u16, wanted: u32) -> Result<u32, Error> {
        let late = || Error::new(ErrorKind::Timeout, "replicas");
        timeout(self.deadline, self.wait_for_replicas(shard, wanted)).await.map_err(|_| late())?
    }

    async fn wait_for_replicas(&self, shard: u16, wanted: u32) -> Result<u32, Error> {
        let away = |error| Error::new(ErrorKind::Unavailable, "replicas").with(error);
        let place = self.target.place(shard).await.map_err(Failure::error)?;
        let mut kept = self.replicas.0.lock().await;
        // Taken out: a call that is dropped half way leaves no connection with a reply on its way.
        let mut connection = match kept.remove(&place) {
            Some(connection) => connection,
            // The deadline is ours, around all of it.
            None => self.target.open(shard, &Settings::default()).await.map_err(Failure::error)?,
        };
        let mark = self.keys.shard(shard, "replicas");
        let patience = millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis(Duration::from_secs(1))).ignore();
        pipe.cmd("WAIT").arg(wanted).arg(patience);
        let answer: Result<(u32,), _> = pipe.query_async(&mut connection).await;
        let (have,) = answer.inspect_err(|_| self.target.look_again()).map_err(away)?;
        kept.insert(place, connection);
        Ok(have)
    }
}
