//! The keys of a store, as the checks want them.

use lockgate::testing::history::rest::Kept;
use redis::aio::MultiplexedConnection;

/// All keys of a namespace: which have an end, and what is counted.
pub(crate) async fn kept(connection: &mut MultiplexedConnection, namespace: &str) -> Vec<Kept> {
    let keys: Vec<String> = ask(connection, &["KEYS", &format!("lg:1:{namespace}:*")]).await;
    let mut all = Vec::new();
    for key in keys {
        let ends = ask::<i64>(connection, &["PTTL", &key]).await != -1;
        let counters = if key.ends_with("}:f") {
            ask::<Vec<(String, i64)>>(connection, &["HGETALL", &key]).await
        } else {
            Vec::new()
        };
        all.push(Kept { key, ends, counters });
    }
    all
}

async fn ask<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(connection).await.expect("the server answers")
}
