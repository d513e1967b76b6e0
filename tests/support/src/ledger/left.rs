//! L1: what is left in the store when everything has ended.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::redis::Server;

/// Until leases and places of the dead are over.
const REST: Duration = Duration::from_secs(20);

/// Lines, locks and indexes of what is to come.
const GONE: [&str; 8] = ["h", "l", "q", "g", "due", "late", "exp", "lease"];

/// Kept for ever, by design.
const KEPT: [&str; 3] = ["f", "meta", "paused"];

/// Numbers of what there is at the moment.
const COUNTERS: [&str; 3] = ["jobs", "bytes", "late"];

/// What is wrong once nothing is left to be done.
pub(super) async fn behind(server: &Server, namespace: &str) -> Vec<String> {
    let mut connection = server.connection().await;
    let mut left = look(&mut connection, namespace).await;
    let until = tokio::time::Instant::now() + REST;
    while !left.is_empty() && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = look(&mut connection, namespace).await;
    }
    left.into_iter().map(|what| format!("L1: left behind: {what}")).collect()
}

async fn look(connection: &mut MultiplexedConnection, namespace: &str) -> Vec<String> {
    let keys: Vec<String> = ask(connection, &["KEYS", &format!("lg:1:{namespace}:*")]).await;
    let mut left = Vec::new();
    for key in keys {
        let kind = kind(&key, namespace);
        if GONE.contains(&kind) {
            left.push(key);
        } else if kind == "f" {
            left.extend(counted(connection, &key).await);
        } else if !KEPT.contains(&kind) && ask::<i64>(connection, &["PTTL", &key]).await == -1 {
            left.push(format!("{key}, without an end"));
        }
    }
    left
}

/// `lg:1:<namespace>:{<shard>}:<kind>[:<name>]`, or without a shard.
fn kind<'a>(key: &'a str, namespace: &str) -> &'a str {
    let rest = key.strip_prefix(&format!("lg:1:{namespace}:")).unwrap_or(key);
    let rest = rest.split_once("}:").map_or(rest, |(_, rest)| rest);
    rest.split(':').next().unwrap_or(rest)
}

async fn counted(connection: &mut MultiplexedConnection, key: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for counter in COUNTERS {
        let count: Option<i64> = ask(connection, &["HGET", key, counter]).await;
        if count.is_some_and(|count| count != 0) {
            wrong.push(format!("{key} {counter}={count:?}"));
        }
    }
    wrong
}

async fn ask<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(connection).await.expect("the server answers")
}
