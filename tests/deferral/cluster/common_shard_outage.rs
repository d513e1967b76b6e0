//! Row 1: the node of the common shard, which has the list of live workers, is unavailable. The
//! other shards are still polled.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lockgate_tests::{
    RedisCluster, WebFramework, eventually,
    ledger::{JobFleet, NodeSetup, SendOutcome},
};

use super::{super::long_lease_setup, FAULTS_BINARY, SECOND};

/// Covers two leases of a shard watch (14 s); a heartbeat every 10 s renews it.
const OUTAGE_TIME: Duration = Duration::from_secs(28);

/// Jobs without a wake-up wait for the next poll, and a worker's polls may wait for the paused
/// node.
const MAX_RUN_DELAY: Duration = Duration::from_secs(12);

const RESOURCE_COUNT: usize = 8;

/// Enqueues a queued and a delayed job for each resource and waits for all runs. Returns the time
/// since the locks were released.
async fn wait_for_all_runs(
    fleet: &JobFleet<RedisCluster>,
    web: usize,
    resources: &[String],
) -> Duration {
    let ids = join_all(resources.iter().map(async |resource| {
        let lock = fleet.hold_lock(resource).await;
        let queued = fleet.deferrable_request(web, resource).send_accepted().await;
        let delayed = fleet.deferrable_request(web, resource).delayed().send_accepted().await;
        lock.release().await;
        [queued, delayed]
    }));
    let (ids, released) = (ids.await.concat(), Instant::now());
    let count_waiting = |fleet: &JobFleet<RedisCluster>| {
        let runs = fleet.runs();
        let has_run = |id: &&String| runs.iter().any(|run| run.job_id.as_ref() == Some(*id));
        ids.iter().filter(|id| !has_run(id)).count()
    };
    let mut waiting = count_waiting(fleet);
    while waiting > 0 {
        let waited = released.elapsed();
        assert!(waited < MAX_RUN_DELAY, "{waiting} of {} do not run within {waited:?}", ids.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
        waiting = count_waiting(fleet);
    }
    released.elapsed()
}

#[tokio::test]
async fn workers_keep_shards_while_common_shard_node_is_paused() {
    let mut fleet = JobFleet::with_topology(
        Path::new(FAULTS_BINARY),
        RedisCluster::start_with_partial_coverage().await,
    )
    .await;
    let common_shard_node = fleet.server.shard_owner(0).await;
    let (mut other_resources, mut common_node_resources) = (Vec::new(), Vec::new());
    for resource in (0..).map(|n: u32| n.to_string()) {
        let shard = fleet.shard_of(&resource).await;
        let resources = if fleet.server.shard_owner(shard).await == common_shard_node {
            &mut common_node_resources
        } else {
            &mut other_resources
        };
        resources.push(resource);
        if other_resources.len() >= RESOURCE_COUNT && !common_node_resources.is_empty() {
            break;
        }
    }
    // Shorter than usual, so that heartbeats time out during the outage.
    let setup = |framework| NodeSetup { call_timeout: SECOND, ..long_lease_setup(framework) };
    let web = fleet.start_node(long_lease_setup(WebFramework::Axum).without_worker()).await;
    for framework in [WebFramework::Actix, WebFramework::Axum] {
        fleet.start_node(setup(framework)).await;
    }
    wait_for_all_runs(&fleet, web, &other_resources).await;
    fleet.server.nodes()[common_shard_node].pause();
    let (paused_at, mut longest_wait) = (Instant::now(), Duration::ZERO);
    while paused_at.elapsed() < OUTAGE_TIME {
        longest_wait = longest_wait.max(wait_for_all_runs(&fleet, web, &other_resources).await);
    }
    fleet.server.nodes()[common_shard_node].resume();
    println!(
        "figure: longest wait during the outage of the common shard {} ms",
        longest_wait.as_millis()
    );
    eventually("it to be used again", async || {
        matches!(
            fleet.deferrable_request(web, &common_node_resources[0]).send().await,
            SendOutcome::Accepted(_) | SendOutcome::RanDirectly(..)
        )
    })
    .await;
    // The resumed node's own shards work too.
    wait_for_all_runs(&fleet, web, &[other_resources, common_node_resources].concat()).await;
    let stats = fleet.finish_and_check(web).await.assert_no_violations();
    assert!(stats.runs >= 64 && stats.repeated_runs == 0, "{stats:?}");
}
