//! Connection target of a cluster: the map from shards to cluster nodes, and its refresh.
//!
//! # Why lockgate has its own map
//!
//! redis-rs has a `ClusterConnection`. It repeats calls by itself, both after a redirect and after
//! a broken connection, and cannot be configured to do only the former: a quota would be charged
//! twice. A repeated call may also arrive after later calls, even after its own undo: the lock
//! would stay taken for one lease, without an owner that knows of it. Here a redirect is an
//! ordinary reply: the map learns from it, and the sender repeats the call if its caller still
//! waits. A map of 64 shards is small.
//!
//! # Why an undo never overtakes its call
//!
//! All calls about a shard use one socket to the node that owns it. While its slot moves, a call
//! may be on its way to the old node and its undo on its way to the new one. The new node owns the
//! slot only after the old one has stopped serving it, and scripts do not start for a slot that is
//! migrating ([`KeyNames::slot_guard_key`](crate::store::key_names::KeyNames::slot_guard_key)). So
//! the call either ran before, and its effects have moved along, or it is redirected and never
//! runs. When a replica takes over, later writes of the old master are lost with it.
//!
//! # Masters replaced during a pause
//!
//! A master that resumes runs the commands in its sockets before it learns of its successor.
//! Therefore:
//!
//! - A connection that was silent for half of `cluster-node-timeout` is not used again.
//! - An answer is rejected if the last sign of life is older than `cluster-node-timeout`
//!   (`connection_lanes::connection_silence_guard`).
//! - A new connection is used only if most nodes, queried after its first answer, consider the node
//!   a master.
//!
//! One gap is left, the milliseconds in which news of a promotion spreads: a node that resumes and
//! is connected to in this time is trusted.
//!
//! # Cost of a slot migration
//!
//! From `SETSLOT MIGRATING` to `SETSLOT NODE`, calls about the slot's shard do not run and are
//! retried until their deadline. No call runs partially. Leases keep expiring: a migration that
//! takes longer than a lease ends the locks of its shard, and their holders are notified.

mod cluster_target;
mod node_timeout_reply;
mod query_node;
mod topology_query_connections;
mod topology_refresh;
mod topology_view;
mod topology_votes;

use self::cluster_target::ClusterState;
pub(in super::super) use self::cluster_target::{ClusterTarget, Endpoint};
