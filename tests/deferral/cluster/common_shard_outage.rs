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

/// A watch is a worker's for 14 s after its last sign of life, which comes every 10 s.
const OUTAGE_TIME: Duration = Duration::from_secs(28);

/// What has no message waits for its time, and all for a worker that asks the node that does not answer.
const MAX_RUN_DELAY: Duration = Duration::from_secs(12);

const RESOURCE_COUNT: usize = 8;

/// Each of them has a request that waits for its lock and one that waits for its time, and all run: how long that takes.
async fn wait_for_all_runs(
    fleet: &JobFleet<RedisCluster>,
    web: usize,
    resources: &[String],
) -> Duration {
    let ids = join_all(resources.iter().map(async |resource| {
        let lock = fleet.hold_lock(resource).await;
        let now = fleet.deferrable_request(web, resource).send_accepted().await;
        let later = fleet.deferrable_request(web, resource).delayed().send_accepted().await;
        lock.release().await;
        [now, later]
    }));
    let (ids, released) = (ids.await.concat(), Instant::now());
    let waits = |fleet: &JobFleet<RedisCluster>| {
        let runs = fleet.runs();
        let has_run = |id: &&String| runs.iter().any(|run| run.job_id.as_ref() == Some(*id));
        ids.iter().filter(|id| !has_run(id)).count()
    };
    let mut waiting = waits(fleet);
    while waiting > 0 {
        let waited = released.elapsed();
        assert!(waited < MAX_RUN_DELAY, "{waiting} of {} do not run within {waited:?}", ids.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
        waiting = waits(fleet);
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
    let knows = fleet.server.shard_owner(0).await;
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for resource in (0..).map(|n: u32| n.to_string()) {
        let shard = fleet.shard_of(&resource).await;
        let of =
            if fleet.server.shard_owner(shard).await == knows { &mut there } else { &mut here };
        of.push(resource);
        if here.len() >= RESOURCE_COUNT && !there.is_empty() {
            break;
        }
    }
    // Shorter than usual, so that signs of life come in time that meet silence.
    let setup = |framework| NodeSetup { call_timeout: SECOND, ..long_lease_setup(framework) };
    let web = fleet.start_node(long_lease_setup(WebFramework::Axum).without_worker()).await;
    for framework in [WebFramework::Actix, WebFramework::Axum] {
        fleet.start_node(setup(framework)).await;
    }
    wait_for_all_runs(&fleet, web, &here).await;
    fleet.server.nodes()[knows].pause();
    let (gone, mut longest) = (Instant::now(), Duration::ZERO);
    while gone.elapsed() < OUTAGE_TIME {
        longest = longest.max(wait_for_all_runs(&fleet, web, &here).await);
    }
    fleet.server.nodes()[knows].resume();
    println!("figure: longest wait while nobody knows who lives {} ms", longest.as_millis());
    eventually("it to be used again", async || {
        matches!(
            fleet.deferrable_request(web, &there[0]).send().await,
            SendOutcome::Accepted(_) | SendOutcome::RanDirectly(..)
        )
    })
    .await;
    // Of its own shards, too.
    wait_for_all_runs(&fleet, web, &[here, there].concat()).await;
    let looked = fleet.finish_and_check(web).await.assert_no_violations();
    assert!(looked.runs >= 64 && looked.repeated_runs == 0, "{looked:?}");
}
