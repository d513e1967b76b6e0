//! Fences after a failover: a server that did not grant the last fences continues far above them.
//!
//! A connection to a single server sends this before its first grant. In a cluster the first call
//! about each shard sends it, and again after each change of the shard map: a connection may be
//! older than the data of its cluster node.

use redis::Cmd;

use super::{
    script_sources::ADVANCE_FENCES_AFTER_FAILOVER,
    target::{ConnectError, RedisConnection},
};
use crate::key::SHARD_COUNT;
use crate::store::key_names::KeyNames;

/// Advances the fences of all shards of a single server.
pub(super) async fn advance_all_shards(
    connection: &mut RedisConnection,
    keys: &KeyNames,
    run_id: &str,
) -> Result<(), ConnectError> {
    let mut script_keys = vec![keys.namespace_meta()];
    script_keys.extend((0..SHARD_COUNT).map(|shard| keys.shard_key(shard, "f")));
    let outcome = build_command(&script_keys, run_id).query_async::<()>(connection).await;
    outcome.map_err(|error| ConnectError::from_redis(&error))
}

/// Builds the command for one shard, to be sent to the cluster node that owns it.
pub(super) fn shard_command(keys: &KeyNames, shard: u16, run_id: &str) -> Cmd {
    let counters_key = keys.shard_key(shard, "f");
    let mut script_keys = vec![counters_key.clone(), counters_key];
    script_keys.extend(keys.slot_guard_key(shard).map(|parts| parts.concat()));
    build_command(&script_keys, run_id)
}

fn build_command(keys: &[String], run_id: &str) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(ADVANCE_FENCES_AFTER_FAILOVER.source).arg(keys.len()).arg(keys).arg(run_id);
    command
}
