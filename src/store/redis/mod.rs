//! Store backend on Redis or Valkey.
//!
//! - [`operations`] turns each typed operation into one script call.
//! - [`call_execution`] sends a call within its deadline, past the circuit breaker, and again where
//!   that is safe.
//! - [`batcher`] sends concurrent calls of one lane together. Each kind has a transport:
//!   [`lock_transport`], [`charge_transport`], [`enqueue_transport`],
//!   [`claim_settle_transport`] and [`task_push_transport`].
//! - [`connection_lanes`] keeps the connections, and [`target`] finds the servers.
//! - [`subscriber`] receives messages on connections of its own.
//!
//! In a cluster every shard has a lane, on a connection to the cluster node that owns the shard
//! ([`cluster_node_lanes`]). An operation on several shards is several calls there, as in
//! `operations::cluster_heartbeat`.

mod acl_check;
mod batcher;
mod call_execution;
mod call_fault;
mod charge_transport;
mod circuit_breaker;
mod claim_settle_transport;
mod cluster_node_lanes;
mod command_arg_writers;
mod connection_lanes;
mod connection_source;
mod enqueue_transport;
mod fence_recovery;
mod home_runtime;
mod jitter;
mod lane_breaker_and_probe;
mod lock_command_encoding;
mod lock_transport;
mod msgpack_reader;
mod operations;
mod ping_and_failover_watch;
mod raw_charge_reply;
mod redis_backend;
mod replica_acks;
mod reply_reader;
mod script_sources;
mod sentinel_failover_watch;
mod server_info;
mod server_tracker;
mod store_builder;
mod subscriber;
mod target;
mod task_push_transport;
#[cfg(test)]
mod tests;

pub(crate) use self::operations::BatchedCharge;
pub(super) use self::redis_backend::RedisBackend;
pub use self::store_builder::StoreBuilder;
