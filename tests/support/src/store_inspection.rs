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

/// Until what was begun has ended, whatever was done to those who began it: the last retry of a job that fails and
/// whose workers die comes after half a minute.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(40);

/// Of those that are left.
const MAX_LISTED_KEYS: usize = 8;

/// All keys of a namespace: which have an end, and what is counted.
pub(crate) async fn scan_keys(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> Vec<LeftoverKey> {
    let keys: Vec<String> = query(connection, &["KEYS", &format!("lg:1:{namespace}:*")]).await;
    let mut all = Vec::new();
    for key in keys {
        let ends = query::<i64>(connection, &["PTTL", &key]).await != -1;
        let counters = if key.ends_with("}:f") {
            let fields: Vec<(String, String)> = query(connection, &["HGETALL", &key]).await;
            // In a cluster there is the server's name too (`run`), which is no number.
            let number = |(name, value): (String, String)| Some((name, value.parse().ok()?));
            fields.into_iter().filter_map(number).collect()
        } else {
            Vec::new()
        };
        all.push(LeftoverKey { name: key, has_expiry: ends, counters });
    }
    all
}

async fn query<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> T {
    try_query(connection, words).await.expect("the server answers")
}

async fn try_query<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> redis::RedisResult<T> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query_async(connection).await
}

/// What is left of a namespace in which only locks were used, once all its stores are shut down: after a while, in which
/// leases end whose release did not arrive.
///
/// # Panics
///
/// If the server is away.
pub async fn leftovers_of_locks(server: &RedisServer, namespace: &str) -> Vec<Violation> {
    let until = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let keys = scan_keys(&mut server.connection().await, namespace).await;
        let left = IdleSnapshot { keys, locks_only: true, ..IdleSnapshot::default() }.check();
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How many keys are left, once no more of them go for the time of leases, retries and delays: a line in which one
/// request after the other is tried again takes that time for each. If it is some, that is told.
pub(crate) async fn count_leftovers_at_rest(mut look: impl AsyncFnMut() -> IdleSnapshot) -> u64 {
    let (mut until, mut fewest) = (Instant::now() + SETTLE_TIMEOUT, usize::MAX);
    loop {
        let left = look().await.check();
        if left.len() < fewest {
            (until, fewest) = (Instant::now() + SETTLE_TIMEOUT, left.len());
        }
        if left.is_empty() || Instant::now() > until {
            let some: Vec<_> =
                left.iter().map(|left| &*left.description).take(MAX_LISTED_KEYS).collect();
            if !some.is_empty() {
                println!("at rest {} are left: {}", left.len(), some.join("; "));
            }
            return left.len() as u64;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What the keys of a namespace that stay for ever take, KiB.
pub(crate) async fn permanent_key_kib(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> u64 {
    let mut bytes = 0;
    for LeftoverKey { name: key, has_expiry: ends, .. } in scan_keys(connection, namespace).await {
        if !ends {
            let usage = query::<Option<u64>>(connection, &["MEMORY", "USAGE", &key]).await;
            bytes += usage.unwrap_or(0);
        }
    }
    bytes / 1024
}

/// What the server takes beside the keys that it keeps, KiB: clients and their buffers, scripts, its log.
pub(crate) async fn overhead_kib(connection: &mut MultiplexedConnection) -> u64 {
    let mut stats: HashMap<String, redis::Value> = query(connection, &["MEMORY", "STATS"]).await;
    let mut number = |name: &str| {
        let value = stats.remove(name).expect("it is told");
        redis::from_redis_value::<u64>(value).expect("it is a number")
    };
    let all = number("overhead.total");
    let tables = stats.remove("db.0").map(|tables| {
        let tables: HashMap<String, u64> = redis::from_redis_value(tables).expect("numbers");
        tables.values().sum::<u64>()
    });
    all.saturating_sub(tables.unwrap_or(0)) / 1024
}

/// The channels of a namespace, and how many hear each, those of shards included.
pub(crate) async fn pubsub_channels(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> Vec<(String, u64)> {
    let pattern = format!("lg:1:{namespace}:*");
    let mut all = Vec::new();
    for [list, number] in [["CHANNELS", "NUMSUB"], ["SHARDCHANNELS", "SHARDNUMSUB"]] {
        // Before 7.0 there are none of shards.
        let names = try_query(connection, &["PUBSUB", list, &pattern]).await;
        let names: Vec<String> = names.unwrap_or_default();
        let words: Vec<&str> =
            ["PUBSUB", number].into_iter().chain(names.iter().map(|name| &**name)).collect();
        if !names.is_empty() {
            all.extend(query::<Vec<(String, u64)>>(connection, &words).await);
        }
    }
    all
}

/// Clients of a server: all but this one, and those that hear messages.
pub(crate) async fn count_clients(connection: &mut MultiplexedConnection) -> (u64, u64) {
    let own = query::<u64>(connection, &["CLIENT", "ID"]).await;
    let list: String = query(connection, &["CLIENT", "LIST"]).await;
    let others = || list.lines().filter(|line| !line.starts_with(&format!("id={own} ")));
    let hears = |line: &&str| {
        let number = |name: &str| {
            let word = line.split(' ').find_map(|word| word.strip_prefix(name));
            word.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        ["sub=", "psub=", "ssub="].map(number).iter().sum::<u64>() > 0
    };
    (others().count() as u64, others().filter(hears).count() as u64)
}
