//! Lanes to each node of a cluster.
//!
//! A shard has a lane of its own in all respects but one: its socket is one of those to the node that has it, which
//! it shares with other shards. When the shard moves, so does its lane.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout};

use super::{
    KeyNames,
    combine::PAUSE,
    connect::{Lane, Socket, is_there},
    fault::{Fault, answer_of},
    fences,
    script::FENCES,
    target::{Cluster, Endpoint, Failure},
};
use crate::error::{Error, ErrorKind};

/// One node of a cluster.
pub(super) struct Place {
    pub(super) address: Endpoint,
    pub(super) cluster: Cluster,
}

impl Place {
    pub(super) fn name(&self) -> String {
        let (host, port) = &self.address;
        format!("{host}:{port}")
    }

    /// It has not answered in time. It may have a successor, or get one.
    pub(super) fn is_silent(&self) {
        self.cluster.look_again();
    }

    /// Whether the cluster still finds that it has shards, now that it has answered. One that stood still until it
    /// had a successor answers, and takes writes until it hears of that.
    pub(super) async fn is_vouched_for(&self) -> bool {
        self.cluster.look_now().await;
        self.cluster.owners().contains(&self.address)
    }

    /// It would not run a call: the shard is elsewhere, on its way, or nobody's.
    pub(super) fn redirected(&self, error: &RedisError) {
        match (error.kind(), error.redirect_node()) {
            (RedisErrorKind::Server(ServerErrorKind::Moved), Some((to, slot))) => {
                self.cluster.moved(slot, to, Some(&self.address));
            }
            (RedisErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::Moved), _) => {
                self.cluster.look_again();
            }
            // Until it has arrived, nobody can do anything about it.
            _ => {}
        }
    }
}

type MakeLane = Box<dyn Fn(&Arc<Place>) -> Result<Lane, Failure> + Send + Sync>;

pub(super) struct Nodes {
    cluster: Cluster,
    keys: KeyNames,
    /// Sockets to each of them.
    number: usize,
    make: MakeLane,
    within: Duration,
    lanes: Mutex<HashMap<Endpoint, Arc<[Lane]>>>,
    /// The socket of each shard, and which map that was by.
    known: Vec<Mutex<Option<(u64, Socket)>>>,
}

impl Nodes {
    pub(super) fn new(
        cluster: Cluster,
        keys: KeyNames,
        number: usize,
        within: Duration,
        make: MakeLane,
    ) -> Self {
        let known = (0..crate::key::SHARDS).map(|_| Mutex::default()).collect();
        Self { cluster, keys, number, make, within, lanes: Mutex::default(), known }
    }

    pub(super) fn representatives(&self) -> Vec<u16> {
        self.cluster.representatives()
    }

    /// Another one after shards have moved.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn map(&self) -> u64 {
        self.cluster.version()
    }

    /// A shard's connection. While it lives and the shard stays, this asks nobody and does not wait.
    #[expect(clippy::indexing_slicing, reason = "a shard is below their number")]
    pub(super) async fn socket(&self, shard: usize) -> Result<Socket, Error> {
        let version = self.cluster.version();
        if let Some((seen, socket)) = &*self.known[shard].lock()
            && *seen == version
            && let Some(socket) = socket.give()
        {
            return Ok(socket);
        }
        let until = Instant::now() + self.within;
        loop {
            let version = self.cluster.version();
            let mut socket = self.connected(shard).await?;
            match self.raise_fences(&mut socket, shard).await {
                Ok(()) => {
                    *self.known[shard].lock() = Some((version, socket.clone()));
                    return Ok(socket);
                }
                // What would not run this would run nothing else about the shard.
                Err((Fault::NotRun | Fault::Broken, _)) if Instant::now() < until => {
                    sleep(PAUSE).await;
                }
                // No call was sent.
                Err((_, error)) => {
                    return Err(Error::new(ErrorKind::Unavailable, FENCES.name).with(error));
                }
            }
        }
    }

    /// Sees that the node gives no fence below those of the one before, since the map has changed.
    async fn raise_fences(
        &self,
        socket: &mut Socket,
        shard: usize,
    ) -> Result<(), (Fault, RedisError)> {
        let Some(run_id) = socket.run_id.clone() else { return Ok(()) };
        let shard = u16::try_from(shard).unwrap_or(u16::MAX);
        let command = fences::of_shard(&self.keys, shard, &run_id);
        let answer =
            timeout(self.within * 3 / 4, socket.connection.send_packed_command(&command)).await;
        let late = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        answer_of(socket, answer.unwrap_or_else(|_| late())).map(drop)
    }

    /// A connection to the node that has the shard.
    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder below their number, of which there is one"
    )]
    async fn connected(&self, shard: usize) -> Result<Socket, Error> {
        let number = u16::try_from(shard).unwrap_or(u16::MAX);
        let owner = self.cluster.owner(number).await.map_err(Failure::error)?;
        let lanes = self.lanes(owner).map_err(Failure::error)?;
        lanes[shard % lanes.len()].socket().await.inspect_err(|error| {
            // Who refuses the login may be another one at that address: that is no reason to be refused all the time.
            if error.kind() == ErrorKind::Config {
                self.cluster.look_now_and_then();
            } else {
                self.cluster.look_again();
            }
        })
    }

    /// Those to nodes that have shards.
    pub(super) fn sockets(&self) -> Vec<Socket> {
        let owners = self.cluster.owners();
        let lanes = self.lanes.lock();
        let used = owners.iter().filter_map(|owner| lanes.get(owner));
        used.flat_map(|lanes| lanes.iter().filter_map(Lane::known)).collect()
    }

    fn lanes(&self, owner: Endpoint) -> Result<Arc<[Lane]>, Failure> {
        let mut all = self.lanes.lock();
        if let Some(lanes) = all.get(&owner) {
            return Ok(Arc::clone(lanes));
        }
        let place = Arc::new(Place { address: owner.clone(), cluster: self.cluster.clone() });
        let lanes: Result<Arc<[_]>, _> = (0..self.number).map(|_| (self.make)(&place)).collect();
        let lanes = lanes?;
        // Those that have no shards any more are left to close when nobody uses them.
        let owners = self.cluster.owners();
        all.retain(|address, _| owners.contains(address));
        all.insert(owner, Arc::clone(&lanes));
        Ok(lanes)
    }

    /// Whether a call about this shard would be answered. A node that has just been told that it has the shard, or that
    /// is giving it away, would not.
    pub(super) async fn could_work(&self, shard: usize, keys: &KeyNames) -> bool {
        let socket = match self.socket(shard).await {
            Ok(socket) => socket,
            met => return is_there(&met),
        };
        let shard = u16::try_from(shard).unwrap_or(u16::MAX);
        let Some(never) = keys.slot_guard_key(shard) else { return false };
        let mut write = redis::cmd("DEL");
        write.arg(never.concat());
        socket.takes(&write, self.within).await
    }
}
