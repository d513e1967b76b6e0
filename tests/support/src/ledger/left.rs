//! N1 and N2: what is left when everything has ended, and what it has cost.

use std::{collections::BTreeMap, time::Duration};

use lockgate_history::{
    Check, Violation,
    rest::{Rest, cost},
};
use redis::aio::MultiplexedConnection;

use super::fleet::{Fleet, Ground};
use crate::kept;

/// Until leases and places of the dead are over.
const REST: Duration = Duration::from_secs(20);

/// How long nothing may happen: a run or a lock that somebody goes on renewing is renewed within it.
const QUIET: Duration = Duration::from_millis(1000);

/// What workers do that have nothing to do: they say that they live, and look at what that tells them of.
const SIGNS: [&str; 2] = ["beat", "due"];

/// The first keys of what they call in a cluster.
const ABOUT_SIGNS: [&str; 3] = ["workers", "watch", "due"];

/// In a quiet time: a fleet that has just changed divides its shards anew.
const SIGNS_OF_ALL: u64 = 2;

/// Sockets of a process that has the usual number of them, and one for messages.
const SOCKETS: u64 = 3;

/// Calls per request, retries, refusals and the clients that ask in vain included. Histories take 3 to 3.5.
const CEILING: u64 = 6;

/// Calls of a process for itself: at its start, and after each loss of its connections.
const OWN: u64 = 32;

/// What is wrong once nothing is left to be done.
pub(super) async fn behind<G: Ground>(fleet: &mut Fleet<G>) -> Vec<Violation> {
    let mut connections = Vec::new();
    for server in fleet.server.masters() {
        connections.push(server.connection().await);
    }
    let until = tokio::time::Instant::now() + REST;
    loop {
        let mut wrong = Vec::new();
        for connection in &mut connections {
            wrong.extend(look(fleet, connection).await.check());
        }
        if wrong.is_empty() {
            wrong = falls_silent(fleet, &mut connections).await;
        }
        if wrong.is_empty() || tokio::time::Instant::now() > until {
            return wrong;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Of one server, or of one node: the clients and channels of a cluster are another number for each node.
async fn look<G: Ground>(fleet: &mut Fleet<G>, connection: &mut MultiplexedConnection) -> Rest {
    let (clients, subscriptions) = kept::clients(connection).await;
    let alone = fleet.server.alone().is_some();
    let channels =
        if alone { kept::channels(connection, fleet.namespace()).await } else { Vec::new() };
    Rest {
        keys: kept::kept(connection, fleet.namespace()).await,
        subscriptions,
        channels,
        clients,
        sockets: alone.then_some(SOCKETS),
        // The test has a store too.
        processes: fleet.living() + 1,
        ..Rest::default()
    }
}

/// Nobody calls anything in a time but idle workers their few scripts.
async fn falls_silent<G: Ground>(
    fleet: &mut Fleet<G>,
    connections: &mut [MultiplexedConnection],
) -> Vec<Violation> {
    for connection in &mut *connections {
        for (name, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "4096")] {
            let mut set = redis::cmd("CONFIG");
            let _: redis::RedisResult<()> =
                set.arg("SET").arg(name).arg(value).query_async(connection).await;
        }
        let _: redis::RedisResult<()> =
            redis::cmd("SLOWLOG").arg("RESET").query_async(connection).await;
    }
    tokio::time::sleep(QUIET).await;
    let mut calls = BTreeMap::new();
    for connection in connections {
        called(fleet, connection, &mut calls).await;
    }
    let signs = SIGNS.iter().filter_map(|name| calls.remove(*name)).sum();
    let most_signs = SIGNS_OF_ALL + fleet.living();
    let mut wrong = Rest { signs, most_signs, ..Rest::default() }.check();
    if fleet.server.alone().is_none() {
        // A sign of life is a call for each shard there.
        calls.retain(|about, _| !ABOUT_SIGNS.contains(&&**about));
    }
    if !calls.is_empty() {
        let told = format!("calls while nobody does anything: {calls:?}");
        wrong.push(Violation { check: Check::N1, told });
    }
    wrong
}

/// Number, when, how long, words, whose, and their name.
type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// The scripts that were called since the log was emptied, and how often: by name, or in a cluster, where no proxy has seen
/// them, by the kind of their first key.
async fn called<G: Ground>(
    fleet: &Fleet<G>,
    connection: &mut MultiplexedConnection,
    all: &mut BTreeMap<String, u64>,
) {
    let mut log = redis::cmd("SLOWLOG");
    let log = log.arg("GET").arg(4096).query_async(connection).await;
    let log: Vec<Call> = log.expect("the server answers");
    for (.., words, _, _) in log {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        if words[0].to_ascii_uppercase().starts_with(b"EVAL") {
            let alone = fleet.server.alone().is_some();
            let name = if alone { fleet.script(&words) } else { about(&words) };
            *all.entry(name).or_default() += 1;
        }
    }
}

/// The kind of the first key of a call.
fn about(words: &[&[u8]]) -> String {
    let key = words.get(3).map(|key| String::from_utf8_lossy(key)).unwrap_or_default();
    let kind = key.split_once("}:").map_or(&*key, |(_, kind)| kind);
    kind.split(':').next().unwrap_or_default().to_owned()
}

/// What it has cost, told; and what is wrong with that. In a cluster it is told alone: there what is about several shards is
/// several calls.
pub(super) fn paid<G: Ground>(fleet: &Fleet<G>) -> (String, Option<Violation>) {
    let (calls, requests, lives) = (fleet.calls(), fleet.asked(), fleet.lived());
    let told = format!("{calls} calls for {requests} requests to {lives} processes");
    let too_much = cost(calls.saturating_sub(lives * OWN), requests, CEILING);
    (told, too_much.filter(|_| fleet.server.alone().is_some()))
}
