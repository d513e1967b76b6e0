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

/// Duration of the migrations, and the least duration of each.
const MIGRATION_PHASE: Duration = Duration::from_secs(8);
const MIGRATION_TIME: Duration = Duration::from_millis(20);

/// Longest wait of a request beyond the migration of its shard: a topology refresh on a loaded
/// machine.
const MAX_WAIT_AFTER_MIGRATION: Duration = Duration::from_secs(10);

/// Migrates one shard after the other to the next node. Returns their number and the longest
/// duration.
async fn migrate_shards(cluster: &RedisCluster, shards: &BTreeSet<u16>) -> (usize, Duration) {
    let (started, mut migrated_count, mut longest_migration) = (Instant::now(), 0, Duration::ZERO);
    for shard in shards.iter().cycle() {
        if started.elapsed() > MIGRATION_PHASE {
            break;
        }
        let migration_start = Instant::now();
        cluster.migrate_shard(*shard, MIGRATION_TIME).await;
        longest_migration = longest_migration.max(migration_start.elapsed());
        migrated_count += 1;
    }
    (migrated_count, longest_migration)
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
            if n % 2 == 0 { |request| request } else { |request| request.put() },
        );
    }
    load.wait_for_accepted(20).await;
    let meters = [load.meter()];
    measure_rate(&meters, "before", tokio::time::sleep(LOAD_PHASE)).await;
    let (migrated_count, longest_migration) =
        measure_rate(&meters, "during", migrate_shards(&fleet.server, &shards)).await;
    measure_rate(&meters, "after", tokio::time::sleep(LOAD_PHASE)).await;
    let longest_wait = load.stop_and_report().await;
    println!("figure: fewest shards moved {migrated_count}");
    println!("figure: longest that a shard was on its way {} ms", longest_migration.as_millis());
    let stats = fleet.finish_and_check(0).await.assert_no_violations();
    println!("{stats:?}");
    assert!(migrated_count > shards.len(), "{migrated_count} of {}", shards.len());
    assert!(stats.accepted > 100 && stats.ordered_pairs > 50, "{stats:?}");
    assert!(
        longest_wait < longest_migration + MAX_WAIT_AFTER_MIGRATION,
        "{longest_wait:?}, a shard {longest_migration:?}"
    );
}
