//! Row 8: shards migrate while requests are accepted and run, the common shard with the heartbeats
//! too.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use lockgate_tests::{
    RedisCluster,
    ledger::{JobFleet, NodeSetup},
};

use super::{
    FAULTS_BINARY, LOAD_PHASE,
    client_load::{ClientLoad, measure_rate},
    start_workers,
};

const RESOURCES: [&str; 6] = ["1", "2", "3", "4", "5", "6"];

/// How long shards are moved, and how long each is on its way at least.
const MIGRATION_PHASE: Duration = Duration::from_secs(8);
const MIGRATION_TIME: Duration = Duration::from_millis(20);

/// Of a request, beyond the time that its shard is on its way: a look at the map, and a machine that has other things to do.
const MAX_WAIT_AFTER_MIGRATION: Duration = Duration::from_secs(10);

/// One shard after the other, to the next node: how many, and how long any was on its way.
async fn migrate_shards(cluster: &RedisCluster, shards: &BTreeSet<u16>) -> (usize, Duration) {
    let (began, mut moved, mut longest) = (Instant::now(), 0, Duration::ZERO);
    for shard in shards.iter().cycle() {
        if began.elapsed() > MIGRATION_PHASE {
            break;
        }
        let left = Instant::now();
        cluster.migrate_shard(*shard, MIGRATION_TIME).await;
        longest = longest.max(left.elapsed());
        moved += 1;
    }
    (moved, longest)
}

#[tokio::test]
async fn accepted_jobs_run_once_in_order_during_shard_migration() {
    let mut fleet =
        JobFleet::with_topology(Path::new(FAULTS_BINARY), RedisCluster::start().await).await;
    let mut shards = BTreeSet::from([0]);
    for resource in RESOURCES {
        shards.insert(fleet.shard_of(resource).await);
    }
    start_workers(&mut fleet, NodeSetup::new).await;
    let mut load = ClientLoad::new("requests");
    for (n, resource) in RESOURCES.into_iter().enumerate() {
        load.start_clients(
            &fleet,
            resource,
            if n % 2 == 0 { |later| later } else { |later| later.put() },
        );
    }
    load.wait_for_accepted(20).await;
    let meters = [load.meter()];
    measure_rate(&meters, "before", tokio::time::sleep(LOAD_PHASE)).await;
    let (moved, on_its_way) =
        measure_rate(&meters, "during", migrate_shards(&fleet.server, &shards)).await;
    measure_rate(&meters, "after", tokio::time::sleep(LOAD_PHASE)).await;
    let longest = load.stop_and_report().await;
    println!("figure: fewest shards moved {moved}");
    println!("figure: longest that a shard was on its way {} ms", on_its_way.as_millis());
    let looked = fleet.finish_and_check(0).await.assert_no_violations();
    println!("{looked:?}");
    assert!(moved > shards.len(), "{moved} of {}", shards.len());
    assert!(looked.accepted > 100 && looked.ordered_pairs > 50, "{looked:?}");
    assert!(longest < on_its_way + MAX_WAIT_AFTER_MIGRATION, "{longest:?}, a shard {on_its_way:?}");
}
