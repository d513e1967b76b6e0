//! N1: nothing is left in the store once all is quiet, and no process makes a call.

use std::{collections::BTreeMap, time::Duration};

use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::{Domain, Fleet, Ground};
use crate::{
    checker::{Guarantee, Violation, idle_snapshot::IdleSnapshot},
    kept,
    proxy::Proxy,
};

/// Longest time until a process that was told to stop has ended all that it had begun.
const STOPS: Duration = Duration::from_secs(15);

/// Time in which no call may be made. A run or a lock that is still renewed is renewed within it.
const QUIET: Duration = Duration::from_millis(1000);

/// Calls of idle workers: they say that they live, and look at what that tells them of.
const SIGNS: [&str; 2] = ["heartbeat", "poll_due"];

/// Kinds of the first keys of those calls in a cluster.
const ABOUT_SIGNS: [&str; 3] = ["workers", "watch", "due"];

/// In a quiet time: a fleet that has just changed divides its shards anew.
const SIGNS_OF_ALL: u64 = 2;

/// Sockets of a process that has the usual number of them, and one for messages.
const SOCKETS: u64 = 3;

/// How the closing checks of a domain look.
#[derive(Debug)]
pub struct Closing {
    /// Only locks were used, which leave less than jobs.
    pub only_locks: bool,
    /// In a soak all keys are counted, since each ends with its window; not only those that should be gone at rest.
    pub all_keys: bool,
    /// Stores of this process.
    pub own: u64,
    /// Processes have workers, which make a few calls even if they are idle.
    pub workers: bool,
    /// Longest time until leases and places of the dead are over.
    pub rest: Duration,
    /// Times of [`QUIET`] until no call is made any more.
    pub tries: u32,
}

impl Closing {
    pub(crate) const COMMON: Self = Self {
        only_locks: false,
        all_keys: false,
        own: 0,
        workers: false,
        rest: Duration::from_secs(15),
        tries: 15,
    };
}

impl<D: Domain> Fleet<D> {
    /// Tells all processes to stop, and waits until they have ended what they had begun.
    pub(crate) async fn stop_all(&mut self) -> Vec<Violation> {
        self.stop_pinging();
        self.proxies().for_each(Proxy::forget_rules);
        self.tell("stop").await;
        let mut wrong = Vec::new();
        for who in 0..self.size() {
            let said = tokio::time::timeout(STOPS, self.process(who).says()).await;
            if !matches!(&said, Ok(Some(said)) if said == "quiet true") {
                let told = format!("process {who} does not come to rest: {said:?}");
                wrong.push(Violation { guarantee: Guarantee::N1, description: told });
            }
        }
        wrong
    }

    /// Like [`stop_all`](Self::stop_all), and looks for what is left.
    pub(crate) async fn come_to_rest(&mut self) -> Vec<Violation> {
        let wrong = self.stop_all().await;
        if wrong.is_empty() { self.left().await } else { wrong }
    }

    /// Keys in a soak that should not be there at rest.
    pub(super) async fn keys(&self, connection: &mut MultiplexedConnection) -> u64 {
        let Closing { only_locks, all_keys, .. } = D::RULES.closing;
        if all_keys {
            // Short windows are over then.
            tokio::time::sleep(Duration::from_secs(3)).await;
            return kept::kept(connection, D::NAME).await.len() as u64;
        }
        kept::left_at_rest(async || {
            let keys = kept::kept(connection, D::NAME).await;
            IdleSnapshot { keys, locks_only: only_locks, ..IdleSnapshot::default() }
        })
        .await
    }
}

impl<D: Domain, G: Ground> Fleet<D, G> {
    /// What is left once nothing is to be done any more.
    pub(crate) async fn left(&mut self) -> Vec<Violation> {
        let Closing { rest, mut tries, .. } = D::RULES.closing;
        let mut connections = Vec::new();
        for server in self.server.masters() {
            connections.push(server.connection().await);
        }
        let until = Instant::now() + rest;
        loop {
            let mut wrong = Vec::new();
            for connection in &mut connections {
                wrong.extend(self.look(connection).await.check());
            }
            if wrong.is_empty() {
                wrong = self.falls_silent(&mut connections).await;
                tries -= 1;
            }
            if wrong.is_empty() || tries == 0 || Instant::now() > until {
                return wrong;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// At one server, or one node: clients and channels of a cluster are another number for each node.
    async fn look(&mut self, connection: &mut MultiplexedConnection) -> IdleSnapshot {
        let Closing { only_locks, own, .. } = D::RULES.closing;
        let (clients, subscriptions) = kept::clients(connection).await;
        let alone = self.server.alone().is_some();
        let channels = if alone { kept::channels(connection, D::NAME).await } else { Vec::new() };
        IdleSnapshot {
            keys: kept::kept(connection, D::NAME).await,
            locks_only: only_locks,
            subscribed_clients: subscriptions,
            subscribed_channels: channels,
            clients,
            max_clients_per_process: alone.then_some(SOCKETS),
            live_processes: self.living() + own,
            ..IdleSnapshot::default()
        }
    }

    /// Looks whether any call is made in a time, but for those of idle workers.
    async fn falls_silent(&mut self, connections: &mut [MultiplexedConnection]) -> Vec<Violation> {
        for connection in &mut *connections {
            for words in [
                ["CONFIG", "SET", "slowlog-log-slower-than", "0"].as_slice(),
                &["CONFIG", "SET", "slowlog-max-len", "4096"],
                &["SLOWLOG", "RESET"],
            ] {
                let mut call = redis::cmd(words[0]);
                let _: redis::RedisResult<()> = call.arg(&words[1..]).query_async(connection).await;
            }
        }
        tokio::time::sleep(QUIET).await;
        let mut calls = BTreeMap::new();
        for connection in connections {
            self.called(connection, &mut calls).await;
        }
        let mut wrong = Vec::new();
        if D::RULES.closing.workers {
            let signs = SIGNS.iter().filter_map(|name| calls.remove(*name)).sum();
            let most_signs = SIGNS_OF_ALL + self.living();
            wrong = IdleSnapshot {
                heartbeats: signs,
                max_heartbeats: most_signs,
                ..IdleSnapshot::default()
            }
            .check();
            if self.server.alone().is_none() {
                // A sign of life is a call for each shard there.
                calls.retain(|about, _| !ABOUT_SIGNS.contains(&&**about));
            }
        }
        if !calls.is_empty() {
            let told = format!("calls while nobody does anything: {calls:?}");
            wrong.push(Violation { guarantee: Guarantee::N1, description: told });
        }
        wrong
    }

    /// Counts the scripts that were called since the log was emptied: by name, or in a cluster, where no proxy has seen
    /// them, by the kind of their first key.
    async fn called(
        &self,
        connection: &mut MultiplexedConnection,
        all: &mut BTreeMap<String, u64>,
    ) {
        let mut log = redis::cmd("SLOWLOG");
        let log = log.arg("GET").arg(4096).query_async(connection).await;
        let log: Vec<Call> = log.expect("the server answers");
        for (.., words, _, _) in log {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            if words[0].to_ascii_uppercase().starts_with(b"EVAL") {
                let alone = self.server.alone().is_some();
                let name = if alone { self.script(&words) } else { about(&words) };
                *all.entry(name).or_default() += 1;
            }
        }
    }

    /// The script of a call that some process has made through a proxy, or else its first words.
    #[must_use]
    pub fn script(&self, words: &[&[u8]]) -> String {
        let known = self.proxies().find_map(|proxy| proxy.script(words));
        let words = || words.iter().take(4).map(|word| String::from_utf8_lossy(word));
        known.unwrap_or_else(|| words().collect::<Vec<_>>().join(" "))
    }

    /// The hash of a script that some process has sent whole through a proxy, by its text in the server's log of slow
    /// commands, which is cut short there.
    #[must_use]
    pub fn hash_of(&self, told: &[u8]) -> Option<String> {
        self.proxies().find_map(|proxy| proxy.hash_of(told))
    }
}

/// Number, when, how long, words, address and name of the client.
type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// The kind of the first key of a call.
fn about(words: &[&[u8]]) -> String {
    let key = words.get(3).map(|key| String::from_utf8_lossy(key)).unwrap_or_default();
    let kind = key.split_once("}:").map_or(&*key, |(_, kind)| kind);
    kind.split(':').next().unwrap_or_default().to_owned()
}
