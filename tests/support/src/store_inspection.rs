//! Keys, channels and clients of a store, for the checks.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;

use crate::{
    checker::{
        Violation,
        idle_snapshot::{IdleSnapshot, LeftoverKey},
    },
    redis_server::RedisServer,
};

/// Time for active work to end under faults: the last retry of a failing job with dying workers
/// follows after half a minute.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(40);

/// Number of leftover keys that are listed.
const MAX_LISTED_KEYS: usize = 8;

/// Returns all keys of a namespace, whether each expires, and the counters.
pub(crate) async fn scan_keys(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> Vec<LeftoverKey> {
    let keys: Vec<String> = query(connection, &["KEYS", &format!("lg:1:{namespace}:*")]).await;
    let mut entries = Vec::new();
    for key in keys {
        let has_expiry = query::<i64>(connection, &["PTTL", &key]).await != -1;
        let counters = if key.ends_with("}:f") {
            let fields: Vec<(String, String)> = query(connection, &["HGETALL", &key]).await;
            // In a cluster the hash also contains the server's name (`run`), which is no number.
            let number = |(name, value): (String, String)| Some((name, value.parse().ok()?));
            fields.into_iter().filter_map(number).collect()
        } else {
            Vec::new()
        };
        entries.push(LeftoverKey { name: key, has_expiry, counters });
    }
    entries
}

async fn query<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    arguments: &[&str],
) -> T {
    try_query(connection, arguments).await.expect("the server answers")
}

async fn try_query<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    arguments: &[&str],
) -> redis::RedisResult<T> {
    let mut command = redis::cmd(arguments[0]);
    command.arg(&arguments[1..]).query_async(connection).await
}

/// Returns the leftovers of a namespace with only locks, after all its stores are shut down. It
/// waits until leases with a lost release have expired.
///
/// # Panics
///
/// If the server is unavailable.
pub async fn leftovers_of_locks(server: &RedisServer, namespace: &str) -> Vec<Violation> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let keys = scan_keys(&mut server.connection().await, namespace).await;
        let leftovers = IdleSnapshot { keys, locks_only: true, ..IdleSnapshot::default() }.check();
        if leftovers.is_empty() || Instant::now() > deadline {
            return leftovers;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the number of leftover keys once it has not decreased for `SETTLE_TIMEOUT`: in a queue
/// whose jobs are retried in turn, each needs that time. Prints some of the leftovers.
pub(crate) async fn count_leftovers_at_rest(
    mut take_snapshot: impl AsyncFnMut() -> IdleSnapshot,
) -> u64 {
    let (mut deadline, mut fewest) = (Instant::now() + SETTLE_TIMEOUT, usize::MAX);
    loop {
        let leftovers = take_snapshot().await.check();
        if leftovers.len() < fewest {
            (deadline, fewest) = (Instant::now() + SETTLE_TIMEOUT, leftovers.len());
        }
        if leftovers.is_empty() || Instant::now() > deadline {
            let listed: Vec<_> = leftovers
                .iter()
                .map(|leftover| &*leftover.description)
                .take(MAX_LISTED_KEYS)
                .collect();
            if !listed.is_empty() {
                println!("at rest {} are left: {}", leftovers.len(), listed.join("; "));
            }
            return leftovers.len() as u64;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the memory of the keys without expiry in a namespace, KiB.
pub(crate) async fn permanent_key_kib(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> u64 {
    let mut bytes = 0;
    for LeftoverKey { name: key, has_expiry, .. } in scan_keys(connection, namespace).await {
        if !has_expiry {
            let usage = query::<Option<u64>>(connection, &["MEMORY", "USAGE", &key]).await;
            bytes += usage.unwrap_or(0);
        }
    }
    bytes / 1024
}

/// Returns the memory of the server without its keys, KiB: clients and their buffers, scripts, the
/// append-only log.
pub(crate) async fn overhead_kib(connection: &mut MultiplexedConnection) -> u64 {
    let mut stats: HashMap<String, redis::Value> = query(connection, &["MEMORY", "STATS"]).await;
    let mut number = |name: &str| {
        let value = stats.remove(name).expect("the statistic is reported");
        redis::from_redis_value::<u64>(value).expect("it is a number")
    };
    let total = number("overhead.total");
    let tables = stats.remove("db.0").map(|tables| {
        let tables: HashMap<String, u64> = redis::from_redis_value(tables).expect("numbers");
        tables.values().sum::<u64>()
    });
    total.saturating_sub(tables.unwrap_or(0)) / 1024
}

/// Returns the channels of a namespace and their numbers of subscribers, including shard channels.
pub(crate) async fn pubsub_channels(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> Vec<(String, u64)> {
    let pattern = format!("lg:1:{namespace}:*");
    let mut channels = Vec::new();
    for [list_command, count_command] in [["CHANNELS", "NUMSUB"], ["SHARDCHANNELS", "SHARDNUMSUB"]]
    {
        // Servers before 7.0 have no shard channels.
        let names = try_query(connection, &["PUBSUB", list_command, &pattern]).await;
        let names: Vec<String> = names.unwrap_or_default();
        let command: Vec<&str> =
            ["PUBSUB", count_command].into_iter().chain(names.iter().map(|name| &**name)).collect();
        if !names.is_empty() {
            channels.extend(query::<Vec<(String, u64)>>(connection, &command).await);
        }
    }
    channels
}

/// Returns the number of other clients of a server, and of subscribers among them.
pub(crate) async fn count_clients(connection: &mut MultiplexedConnection) -> (u64, u64) {
    let own_id = query::<u64>(connection, &["CLIENT", "ID"]).await;
    let list: String = query(connection, &["CLIENT", "LIST"]).await;
    let others = || list.lines().filter(|line| !line.starts_with(&format!("id={own_id} ")));
    let is_subscriber = |line: &&str| {
        let number = |name: &str| {
            let value = line.split(' ').find_map(|value| value.strip_prefix(name));
            value.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        ["sub=", "psub=", "ssub="].map(number).iter().sum::<u64>() > 0
    };
    (others().count() as u64, others().filter(is_subscriber).count() as u64)
}
