//! N1 and N2: what is left when everything has ended, and what it has cost.

use std::{collections::BTreeMap, time::Duration};

use lockgate::testing::history::{
    Check, Violation,
    rest::{Rest, cost},
};
use redis::aio::MultiplexedConnection;

use super::fleet::Fleet;
use crate::kept;

/// Until leases and places of the dead are over.
const REST: Duration = Duration::from_secs(20);

/// How long nothing may happen: a run or a lock that somebody goes on renewing is renewed within it.
const QUIET: Duration = Duration::from_millis(1000);

/// What workers do that have nothing to do: they say that they live, and look at what that tells them of.
const SIGNS: [&str; 2] = ["beat", "due"];

/// In a quiet time: a fleet that has just changed divides its shards anew.
const SIGNS_OF_ALL: u64 = 2;

/// Sockets of a process that has the usual number of them, and one for messages.
const SOCKETS: u64 = 3;

/// Calls per request, retries, refusals and the clients that ask in vain included. Histories take 3 to 3.5.
const CEILING: u64 = 6;

/// Calls of a process for itself: at its start, after each loss of its connections, and where all replies are lost:
/// then it asks again for as long as its deadline.
const OWN: u64 = 96;

/// What is wrong once nothing is left to be done.
pub(super) async fn behind(fleet: &mut Fleet) -> Vec<Violation> {
    let mut connection = fleet.server.connection().await;
    let until = tokio::time::Instant::now() + REST;
    loop {
        let mut wrong = look(fleet, &mut connection).await.check();
        if wrong.is_empty() {
            wrong = falls_silent(fleet, &mut connection).await;
        }
        if wrong.is_empty() || tokio::time::Instant::now() > until {
            return wrong;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn look(fleet: &mut Fleet, connection: &mut MultiplexedConnection) -> Rest {
    let (clients, subscriptions) = kept::clients(connection).await;
    Rest {
        keys: kept::kept(connection, fleet.namespace()).await,
        subscriptions,
        channels: kept::channels(connection, fleet.namespace()).await,
        clients,
        sockets: Some(SOCKETS),
        // The test has a store too.
        processes: fleet.living() + 1,
        ..Rest::default()
    }
}

/// Nobody calls anything in a time but idle workers their few scripts.
async fn falls_silent(fleet: &mut Fleet, connection: &mut MultiplexedConnection) -> Vec<Violation> {
    for (name, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "4096")] {
        let mut set = redis::cmd("CONFIG");
        let _: redis::RedisResult<()> =
            set.arg("SET").arg(name).arg(value).query_async(connection).await;
    }
    let _: redis::RedisResult<()> =
        redis::cmd("SLOWLOG").arg("RESET").query_async(connection).await;
    tokio::time::sleep(QUIET).await;
    let mut calls = called(fleet, connection).await;
    let signs = SIGNS.iter().filter_map(|name| calls.remove(*name)).sum();
    let most_signs = SIGNS_OF_ALL + fleet.living();
    let mut wrong = Rest { signs, most_signs, ..Rest::default() }.check();
    if !calls.is_empty() {
        let told = format!("calls while nobody does anything: {calls:?}");
        wrong.push(Violation { check: Check::N1, told });
    }
    wrong
}

/// Number, when, how long, words, whose, and their name.
type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// The scripts that were called since the log was emptied, by name, and how often.
async fn called(fleet: &Fleet, connection: &mut MultiplexedConnection) -> BTreeMap<String, u64> {
    let mut log = redis::cmd("SLOWLOG");
    let log = log.arg("GET").arg(4096).query_async(connection).await;
    let log: Vec<Call> = log.expect("the server answers");
    let mut all = BTreeMap::new();
    for (.., words, _, _) in log {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        if words[0].to_ascii_uppercase().starts_with(b"EVAL") {
            *all.entry(fleet.script(&words)).or_default() += 1;
        }
    }
    all
}

/// What it has cost, told; and what is wrong with that.
pub(super) fn paid(fleet: &Fleet) -> (String, Option<Violation>) {
    let (calls, requests, lives) = (fleet.calls(), fleet.asked(), fleet.lived());
    let told = format!("{calls} calls for {requests} requests to {lives} processes");
    (told, cost(calls.saturating_sub(lives * OWN), requests, CEILING))
}
