//! Rows 6 and 8 on a cluster, by processes with workers: shards migrate, a master is killed, and
//! the node of the common shard is unavailable.

#[path = "cluster/client_load.rs"]
mod client_load;
#[path = "cluster/common_shard_outage.rs"]
mod common_shard_outage;
#[path = "cluster/master_failover.rs"]
mod master_failover;
#[path = "cluster/shard_migration.rs"]
mod shard_migration;

use std::time::Duration;

use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, NodeSetup, RedisTopology},
};

use super::{FAULTS_BINARY, SECOND};

/// Duration of the client load before and after the fault.
const LOAD_PHASE: Duration = Duration::from_secs(3);

/// Longest response time without a fault.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(16);

/// Starts three processes with workers, of both frameworks.
async fn start_workers<G: RedisTopology>(
    fleet: &mut JobFleet<G>,
    setup: impl Fn(WebFramework) -> NodeSetup,
) {
    for framework in [WebFramework::Axum, WebFramework::Actix, WebFramework::Axum] {
        fleet.start_node(setup(framework)).await;
    }
    fleet.check_answers_within(MAX_ANSWER_TIME);
}
