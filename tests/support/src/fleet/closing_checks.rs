//! N1: after the end of all work the store is empty, and no process makes a call.

use std::{collections::BTreeMap, time::Duration};

use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::{FleetDomain, ProcessFleet, RedisTopology};
use crate::{
    checker::{Guarantee, Violation, idle_snapshot::IdleSnapshot},
    proxy::FaultProxy,
    store_inspection,
};

/// Longest time for a process to finish its work after `stop`.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Time in which no call may be made. A lease that is still renewed is renewed within it.
const IDLE_WINDOW: Duration = Duration::from_millis(1000);

/// Calls of idle workers: heartbeats and due polls.
const IDLE_WORKER_SCRIPTS: [&str; 2] =
    ["heartbeat_and_shard_assignment", "poll_due_locks_and_jobs"];

/// Kinds of the first keys of those calls in a cluster.
const IDLE_WORKER_KEY_KINDS: [&str; 3] = ["workers", "watch", "due"];

/// Extra heartbeats in the idle window: a fleet that has just changed redistributes its shards.
const REBALANCE_CALLS: u64 = 2;

/// Usual sockets of a process, and one for its subscription.
const MAX_SOCKETS_PER_PROCESS: u64 = 3;

/// Settings of the closing checks of a domain.
#[derive(Debug)]
pub struct ClosingChecks {
    /// True if only locks were used, which leave fewer keys than jobs.
    pub locks_only: bool,
    /// In a soak, counts all keys, since each expires with its window, and not only leftovers.
    pub counts_all_keys: bool,
    /// Number of stores of this process.
    pub local_stores: u64,
    /// True if processes have workers, which make a few calls when idle.
    pub has_workers: bool,
    /// Longest time until leases and queue entries of killed processes have expired.
    pub idle_timeout: Duration,
    /// Number of [`IDLE_WINDOW`]s in which calls may still be made.
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
    /// Stops all processes and waits until they have finished their work.
    pub(crate) async fn stop_all_processes(&mut self) -> Vec<Violation> {
        self.stop_pings();
        self.proxies().for_each(FaultProxy::clear_rules);
        self.send_line_to_all("stop").await;
        let mut violations = Vec::new();
        for process in 0..self.process_count() {
            let line = tokio::time::timeout(STOP_TIMEOUT, self.process(process).next_line()).await;
            if !matches!(&line, Ok(Some(line)) if line == "quiet true") {
                let description = format!("process {process} does not come to rest: {line:?}");
                violations.push(Violation { guarantee: Guarantee::N1, description });
            }
        }
        violations
    }

    /// Like [`stop_all_processes`](Self::stop_all_processes), and checks for leftovers.
    pub(crate) async fn stop_and_check_idle(&mut self) -> Vec<Violation> {
        let violations = self.stop_all_processes().await;
        if violations.is_empty() { self.check_idle().await } else { violations }
    }

    /// Counts the keys of a soak that should not exist when idle.
    pub(super) async fn count_leftover_keys(&self, connection: &mut MultiplexedConnection) -> u64 {
        let ClosingChecks { locks_only, counts_all_keys, .. } = D::RULES.closing_checks;
        if counts_all_keys {
            // Short windows have ended by then.
            tokio::time::sleep(Duration::from_secs(3)).await;
            return store_inspection::scan_keys(connection, D::NAMESPACE).await.len() as u64;
        }
        store_inspection::count_leftovers_at_rest(async || {
            let keys = store_inspection::scan_keys(connection, D::NAMESPACE).await;
            IdleSnapshot { keys, locks_only, ..IdleSnapshot::default() }
        })
        .await
    }
}

impl<D: FleetDomain, G: RedisTopology> ProcessFleet<D, G> {
    /// Checks for leftovers until there are none or the time limit is reached.
    pub(crate) async fn check_idle(&mut self) -> Vec<Violation> {
        let ClosingChecks { idle_timeout, max_idle_windows: mut remaining_windows, .. } =
            D::RULES.closing_checks;
        let mut connections = Vec::new();
        for server in self.server.masters() {
            connections.push(server.connection().await);
        }
        let deadline = Instant::now() + idle_timeout;
        loop {
            let mut violations = Vec::new();
            for connection in &mut connections {
                violations.extend(self.take_idle_snapshot(connection).await.check());
            }
            if violations.is_empty() {
                violations = self.check_no_calls(&mut connections).await;
                remaining_windows -= 1;
            }
            if violations.is_empty() || remaining_windows == 0 || Instant::now() > deadline {
                return violations;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Examines one server or cluster node. The numbers of clients and channels differ between
    /// cluster nodes, so they are checked for single servers only.
    async fn take_idle_snapshot(&mut self, connection: &mut MultiplexedConnection) -> IdleSnapshot {
        let ClosingChecks { locks_only, local_stores, .. } = D::RULES.closing_checks;
        let (clients, subscriptions) = store_inspection::count_clients(connection).await;
        let is_single_server = self.server.single_server().is_some();
        let channels = if is_single_server {
            store_inspection::pubsub_channels(connection, D::NAMESPACE).await
        } else {
            Vec::new()
        };
        IdleSnapshot {
            keys: store_inspection::scan_keys(connection, D::NAMESPACE).await,
            locks_only,
            subscribed_clients: subscriptions,
            subscribed_channels: channels,
            clients,
            max_clients_per_process: is_single_server.then_some(MAX_SOCKETS_PER_PROCESS),
            live_processes: self.running_count() + local_stores,
            ..IdleSnapshot::default()
        }
    }

    /// Checks that no call is made within [`IDLE_WINDOW`], apart from those of idle workers.
    async fn check_no_calls(
        &mut self,
        connections: &mut [MultiplexedConnection],
    ) -> Vec<Violation> {
        for connection in &mut *connections {
            for command in [
                ["CONFIG", "SET", "slowlog-log-slower-than", "0"].as_slice(),
                &["CONFIG", "SET", "slowlog-max-len", "4096"],
                &["SLOWLOG", "RESET"],
            ] {
                let mut call = redis::cmd(command[0]);
                let _: redis::RedisResult<()> =
                    call.arg(&command[1..]).query_async(connection).await;
            }
        }
        tokio::time::sleep(IDLE_WINDOW).await;
        let mut calls = BTreeMap::new();
        for connection in connections {
            self.count_script_calls(connection, &mut calls).await;
        }
        let mut violations = Vec::new();
        if D::RULES.closing_checks.has_workers {
            let heartbeats =
                IDLE_WORKER_SCRIPTS.iter().filter_map(|name| calls.remove(*name)).sum();
            let max_heartbeats = REBALANCE_CALLS + self.running_count();
            violations =
                IdleSnapshot { heartbeats, max_heartbeats, ..IdleSnapshot::default() }.check();
            if self.server.single_server().is_none() {
                // In a cluster a heartbeat is one call per shard.
                calls.retain(|kind, _| !IDLE_WORKER_KEY_KINDS.contains(&&**kind));
            }
        }
        if !calls.is_empty() {
            let description = format!("calls while idle: {calls:?}");
            violations.push(Violation { guarantee: Guarantee::N1, description });
        }
        violations
    }

    /// Counts the script calls in the slow log: by script name or, in a cluster, where no proxy
    /// recorded the scripts, by the kind of the first key.
    async fn count_script_calls(
        &self,
        connection: &mut MultiplexedConnection,
        counts: &mut BTreeMap<String, u64>,
    ) {
        let mut log = redis::cmd("SLOWLOG");
        let log = log.arg("GET").arg(4096).query_async(connection).await;
        let log: Vec<SlowlogEntry> = log.expect("the server answers");
        for (.., arguments, _, _) in log {
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            if arguments[0].to_ascii_uppercase().starts_with(b"EVAL") {
                let is_single_server = self.server.single_server().is_some();
                let name = if is_single_server {
                    self.script_name(&arguments)
                } else {
                    first_key_kind(&arguments)
                };
                *counts.entry(name).or_default() += 1;
            }
        }
    }

    /// Returns the script of a call that passed a proxy, or else the first arguments of the call.
    #[must_use]
    pub fn script_name(&self, arguments: &[&[u8]]) -> String {
        let recorded_name = self.proxies().find_map(|proxy| proxy.script_name(arguments));
        let arguments =
            || arguments.iter().take(4).map(|argument| String::from_utf8_lossy(argument));
        recorded_name.unwrap_or_else(|| arguments().collect::<Vec<_>>().join(" "))
    }

    /// Returns the hash of a script that passed a proxy, from its text in the slow log, which is
    /// truncated.
    #[must_use]
    pub fn script_hash(&self, truncated_text: &[u8]) -> Option<String> {
        self.proxies().find_map(|proxy| proxy.script_hash(truncated_text))
    }
}

/// Number, time, duration, arguments, client address and client name.
type SlowlogEntry = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// Returns the kind of the first key of a call.
fn first_key_kind(arguments: &[&[u8]]) -> String {
    let key = arguments.get(3).map(|key| String::from_utf8_lossy(key)).unwrap_or_default();
    let kind = key.split_once("}:").map_or(&*key, |(_, kind)| kind);
    kind.split(':').next().unwrap_or_default().to_owned()
}
