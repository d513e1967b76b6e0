//! Layout of a namespace, on which all its processes agree: keys, records, and the content of
//! signed headers.
//!
//! The hash field `shards` of the key `meta` encodes the layout. The first process writes it with
//! `HSETNX`, and each connection compares it. Layout 1 wrote the bare number of shards and refuses
//! any other number with a message. So the value is a number that encodes both layout and shards:
//! when processes of two layouts start on an empty store at once, they write the same hash field,
//! and one of them is refused.

use redis::{Pipeline, RedisResult, aio::ConnectionLike as _};
use uuid::Uuid;

use crate::{
    key::{SHARD_COUNT, digest_parts, hex},
    store::{
        key_names::KeyNames,
        redis::{
            server_tracker::DataIdentity,
            target::{ConnectError, RedisConnection},
        },
    },
};

/// Layout of this version; raised by each change that older processes would misread.
const LAYOUT_REVISION: u16 = 2;

/// Multiplier of the layout; the number of shards is the remainder. Layout 1 reads the value as 16
/// bits.
const REVISION_FACTOR: u16 = 1000;

/// Value of the hash field `shards`.
const ENCODED_LAYOUT: u16 = LAYOUT_REVISION * REVISION_FACTOR + SHARD_COUNT;

/// Layout, once it is written, and identity of the data.
type StoredLayout = (Option<String>, DataIdentity);

/// Returns an error if the namespace has another layout. Returns the identity of the data, or
/// `None` if another cluster node has `meta` (`as_node`). If there is no layout, writes it, or
/// returns `None` unless `may_write` is set.
pub(super) async fn check_layout(
    connection: &mut RedisConnection,
    keys: &KeyNames,
    as_node: bool,
    may_write: bool,
) -> Result<Option<DataIdentity>, ConnectError> {
    let mut pipe = redis::pipe();
    // A write, which a replica refuses. A server without memory accepts it: calls that free memory
    // pass here too.
    pipe.cmd("HDEL").arg(keys.namespace_meta()).arg("never").ignore();
    let stored = match read_layout(pipe, connection, keys).await {
        Err(error) if as_node && error.is_cluster_error() => return Ok(None),
        Ok((None, _) | (_, DataIdentity(None))) if !may_write => return Ok(None),
        Ok((None, _) | (_, DataIdentity(None))) => write_layout(connection, keys).await,
        stored => stored,
    };
    match stored.map_err(|error| ConnectError::from_redis(&error))? {
        (Some(layout), data) => match mismatch_message(&layout, keys.channel_prefix()) {
            Some(sentence) => Err(ConnectError::Config(sentence)),
            None => Ok(Some(data)),
        },
        // It vanished between the write and the read.
        (None, _) => Err(ConnectError::Unavailable),
    }
}

/// Writes the parts that no other process has written meanwhile. The layout comes last: a process
/// that reads it can read the name as well.
async fn write_layout(
    connection: &mut RedisConnection,
    keys: &KeyNames,
) -> RedisResult<StoredLayout> {
    let mut pipe = redis::pipe();
    let name = Uuid::new_v4().simple().to_string();
    pipe.cmd("HSETNX").arg(keys.namespace_meta()).arg("data").arg(name).ignore();
    pipe.cmd("HSETNX").arg(keys.namespace_meta()).arg("shards").arg(ENCODED_LAYOUT).ignore();
    read_layout(pipe, connection, keys).await
}

/// Reads layout and identity after the given commands.
async fn read_layout(
    mut pipe: Pipeline,
    connection: &mut RedisConnection,
    keys: &KeyNames,
) -> RedisResult<StoredLayout> {
    pipe.cmd("HMGET").arg(keys.namespace_meta()).arg("shards").arg("data");
    let ((layout, data),): ((_, Option<String>),) = pipe.query_async(connection).await?;
    let identity = data.map(|name| data_identity(keys, &name, connection.get_db()));
    Ok((layout, DataIdentity(identity)))
}

/// Returns an identity that differs for every server, database and namespace.
fn data_identity(keys: &KeyNames, name: &str, database: i64) -> String {
    let parts = [keys.channel_prefix().as_bytes(), name.as_bytes(), &database.to_be_bytes()];
    hex(&digest_parts(&parts)[..16])
}

/// Returns the reason why this version cannot use a namespace of that layout; `None` if it can.
fn mismatch_message(layout: &str, prefix: &str) -> Option<String> {
    let number = layout.parse::<u32>().ok();
    if number == Some(ENCODED_LAYOUT.into()) {
        return None;
    }
    let (factor, this) = (
        u32::from(REVISION_FACTOR),
        format!("this process uses layout {LAYOUT_REVISION} with {SHARD_COUNT}"),
    );
    // Layout 1 is a bare number of shards.
    let parts = number.map(|number| ((number / factor).max(1), number % factor));
    Some(match parts {
        Some((revision, shards)) if revision < LAYOUT_REVISION.into() => format!(
            "the namespace was created by an older version of lockgate (layout {revision} with \
             {shards} shards; {this}); let its queues run empty and stop all processes of that \
             version, then delete its keys (`{prefix}*`) or use another ?ns="
        ),
        Some((revision, shards)) if revision > LAYOUT_REVISION.into() => format!(
            "the namespace was created by a newer version of lockgate (layout {revision} with \
             {shards} shards; {this}); update this process, or use another ?ns="
        ),
        Some((_, shards)) => {
            format!(
                "the namespace has {shards} shards, this version {SHARD_COUNT}; use another ?ns="
            )
        }
        None => format!("the namespace has an unknown layout ({this}); use another ?ns="),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_layouts_are_refused_with_a_remedy() {
        assert_eq!(mismatch_message("2064", "lg:1:shop:"), None);
        for (layout, expected) in [
            (
                "64",
                "older version of lockgate (layout 1 with 64 shards; this process uses layout 2 with 64)",
            ),
            ("64", "delete its keys (`lg:1:shop:*`) or use another ?ns="),
            ("32", "32 shards"),
            ("2032", "has 32 shards, this version 64"),
            ("3064", "update this process"),
            ("99999999", "newer version"),
            ("", "unknown layout"),
            ("-64", "unknown layout"),
        ] {
            let sentence = mismatch_message(layout, "lg:1:shop:").expect(layout);
            assert!(sentence.contains(expected), "{layout}: {sentence}");
        }
    }
}
