//! N1: after the end of all work nothing is left in the store, and no process makes a call.

use std::{collections::BTreeMap, time::Duration};

use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::{FleetDomain, ProcessFleet, RedisTopology};
use crate::{
    checker::{Guarantee, Violation, idle_snapshot::IdleSnapshot},
    proxy::FaultProxy,
    store_inspection,
};

/// Longest time until a process that was told to stop has ended all that it had begun.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Time in which no call may be made. A run or a lock that is still renewed is renewed within it.
const IDLE_WINDOW: Duration = Duration::from_millis(1000);

/// Calls of idle workers: they say that they live, and look at what that tells them of.
const IDLE_WORKER_SCRIPTS: [&str; 2] = ["worker_heartbeat_and_shards", "poll_due_locks_and_jobs"];

/// Kinds of the first keys of those calls in a cluster.
const IDLE_WORKER_KEY_KINDS: [&str; 3] = ["workers", "watch", "due"];

/// In a quiet time: a fleet that has just changed divides its shards anew.
const REBALANCE_CALLS: u64 = 2;

/// Sockets of a process that has the usual number of them, and one for messages.
const MAX_SOCKETS_PER_PROCESS: u64 = 3;

/// How the closing checks of a domain look.
#[derive(Debug)]
pub struct ClosingChecks {
    /// Only locks were used, which leave less than jobs.
    pub locks_only: bool,
    /// In a soak all keys are counted, since each ends with its window; not only those that should be gone at rest.
    pub counts_all_keys: bool,
    /// Stores of this process.
    pub local_stores: u64,
    /// Processes have workers, which make a few calls even if they are idle.
    pub has_workers: bool,
    /// Longest time until leases and places of the dead are over.
    pub idle_timeout: Duration,
    /// Times of [`IDLE_WINDOW`] until no call is made any more.
    pub max_idle_windows: u32,
}

impl ClosingChecks {
    pub(crate) const COMMON: Self = Self {
        locks_only: false,
        counts_all_keys: false,
        local_stores: 0,
        has_workers: false,
        idle_timeout: Duration::from_secs(15),
        max_idle_windows: 15,
    };
}

impl<D: FleetDomain> ProcessFleet<D> {
    /// Tells all processes to stop, and waits until they have ended what they had begun.
    pub(crate) async fn stop_all_processes(&mut self) -> Vec<Violation> {
        self.stop_pings();
        self.proxies().for_each(FaultProxy::clear_rules);
        self.send_line_to_all("stop").await;
        let mut wrong = Vec::new();
        for who in 0..self.process_count() {
            let said = tokio::time::timeout(STOP_TIMEOUT, self.process(who).next_line()).await;
            if !matches!(&said, Ok(Some(said)) if said == "quiet true") {
                let told = format!("process {who} does not come to rest: {said:?}");
                wrong.push(Violation { guarantee: Guarantee::N1, description: told });
            }
        }
        wrong
    }

    /// Like [`stop_all_processes`](Self::stop_all_processes), and checks for leftovers.
    pub(crate) async fn stop_and_check_idle(&mut self) -> Vec<Violation> {
        let wrong = self.stop_all_processes().await;
        if wrong.is_empty() { self.check_idle().await } else { wrong }
    }

    /// Keys in a soak that should not be there at rest.
    pub(super) async fn count_leftover_keys(&self, connection: &mut MultiplexedConnection) -> u64 {
        let ClosingChecks { locks_only: only_locks, counts_all_keys: all_keys, .. } =
            D::RULES.closing_checks;
        if all_keys {
            // Short windows are over then.
            tokio::time::sleep(Duration::from_secs(3)).await;
            return store_inspection::scan_keys(connection, D::NAMESPACE).await.len() as u64;
        }
        store_inspection::count_leftovers_at_rest(async || {
            let keys = store_inspection::scan_keys(connection, D::NAMESPACE).await;
            IdleSnapshot { keys, locks_only: only_locks, ..IdleSnapshot::default() }
        })
        .await
    }
}

impl<D: FleetDomain, G: RedisTopology> ProcessFleet<D, G> {
    /// What is left once nothing is to be done any more.
    pub(crate) async fn check_idle(&mut self) -> Vec<Violation> {
        let ClosingChecks { idle_timeout: rest, max_idle_windows: mut tries, .. } =
            D::RULES.closing_checks;
        let mut connections = Vec::new();
        for server in self.server.masters() {
            connections.push(server.connection().await);
        }
        let until = Instant::now() + rest;
        loop {
            let mut wrong = Vec::new();
            for connection in &mut connections {
                wrong.extend(self.take_idle_snapshot(connection).await.check());
            }
            if wrong.is_empty() {
                wrong = self.check_no_calls(&mut connections).await;
                tries -= 1;
            }
            if wrong.is_empty() || tries == 0 || Instant::now() > until {
                return wrong;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// At one server, or one node: clients and channels of a cluster are another number for each node.
    async fn take_idle_snapshot(&mut self, connection: &mut MultiplexedConnection) -> IdleSnapshot {
        let ClosingChecks { locks_only: only_locks, local_stores: own, .. } =
            D::RULES.closing_checks;
        let (clients, subscriptions) = store_inspection::count_clients(connection).await;
        let alone = self.server.single_server().is_some();
        let channels = if alone {
            store_inspection::pubsub_channels(connection, D::NAMESPACE).await
        } else {
            Vec::new()
        };
        IdleSnapshot {
            keys: store_inspection::scan_keys(connection, D::NAMESPACE).await,
            locks_only: only_locks,
            subscribed_clients: subscriptions,
            subscribed_channels: channels,
            clients,
            max_clients_per_process: alone.then_some(MAX_SOCKETS_PER_PROCESS),
            live_processes: self.running_count() + own,
            ..IdleSnapshot::default()
        }
    }

    /// Looks whether any call is made in a time, but for those of idle workers.
    async fn check_no_calls(
        &mut self,
        connections: &mut [MultiplexedConnection],
    ) -> Vec<Violation> {
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
        tokio::time::sleep(IDLE_WINDOW).await;
        let mut calls = BTreeMap::new();
        for connection in connections {
            self.count_script_calls(connection, &mut calls).await;
        }
        let mut wrong = Vec::new();
        if D::RULES.closing_checks.has_workers {
            let signs = IDLE_WORKER_SCRIPTS.iter().filter_map(|name| calls.remove(*name)).sum();
            let most_signs = REBALANCE_CALLS + self.running_count();
            wrong = IdleSnapshot {
                heartbeats: signs,
                max_heartbeats: most_signs,
                ..IdleSnapshot::default()
            }
            .check();
            if self.server.single_server().is_none() {
                // A sign of life is a call for each shard there.
                calls.retain(|about, _| !IDLE_WORKER_KEY_KINDS.contains(&&**about));
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
    async fn count_script_calls(
        &self,
        connection: &mut MultiplexedConnection,
        all: &mut BTreeMap<String, u64>,
    ) {
        let mut log = redis::cmd("SLOWLOG");
        let log = log.arg("GET").arg(4096).query_async(connection).await;
        let log: Vec<SlowlogEntry> = log.expect("the server answers");
        for (.., words, _, _) in log {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            if words[0].to_ascii_uppercase().starts_with(b"EVAL") {
                let alone = self.server.single_server().is_some();
                let name = if alone { self.script_name(&words) } else { first_key_kind(&words) };
                *all.entry(name).or_default() += 1;
            }
        }
    }

    /// The script of a call that some process has made through a proxy, or else its first words.
    #[must_use]
    pub fn script_name(&self, words: &[&[u8]]) -> String {
        let known = self.proxies().find_map(|proxy| proxy.script_name(words));
        let words = || words.iter().take(4).map(|word| String::from_utf8_lossy(word));
        known.unwrap_or_else(|| words().collect::<Vec<_>>().join(" "))
    }

    /// The hash of a script that some process has sent whole through a proxy, by its text in the server's log of slow
    /// commands, which is cut short there.
    #[must_use]
    pub fn script_hash(&self, told: &[u8]) -> Option<String> {
        self.proxies().find_map(|proxy| proxy.script_hash(told))
    }
}

/// Number, when, how long, words, address and name of the client.
type SlowlogEntry = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// The kind of the first key of a call.
fn first_key_kind(words: &[&[u8]]) -> String {
    let key = words.get(3).map(|key| String::from_utf8_lossy(key)).unwrap_or_default();
    let kind = key.split_once("}:").map_or(&*key, |(_, kind)| kind);
    kind.split(':').next().unwrap_or_default().to_owned()
}
