//! A master behind sentinels, or of a cluster, is killed or paused while two processes contend for
//! locks. The checker examines their histories. Afterwards each of them acquires each lock again,
//! and nothing is left in the store.

#[path = "failover/cluster.rs"]
mod cluster;
#[path = "failover/failover_topology.rs"]
mod failover_topology;
#[path = "failover/lock_load.rs"]
mod lock_load;
#[path = "failover/sentinels.rs"]
mod sentinels;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use lockgate::Store;
use lockgate_tests::{leftovers_of_locks, stalls};
use tokio::task::JoinSet;

use self::{
    failover_topology::FailoverTopology,
    lock_load::{FailoverPlan, LockLoad, ProcessEventLog},
};

/// Processes, and tasks of each: as many as there are locks, so each lock is contested.
const PROCESS_COUNT: usize = 2;
const LOCK_COUNT: usize = 4;
const LOAD_PHASE: Duration = Duration::from_secs(2);

/// Time for the sentinels to agree and to promote and announce the replica, on a loaded machine.
/// With replicated grants, it includes the start of the old master as a replica.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(60);

async fn replace_master(load: &LockLoad, topology: &mut FailoverTopology) {
    load.holds_are_extended.store(true, Ordering::Relaxed);
    // Locks that are held now are held across the failure of the master.
    tokio::time::sleep(Duration::from_millis(50)).await;
    if load.plan.kills_master {
        topology.master().kill();
    } else {
        topology.master().pause();
    }
    while !topology.have_switched_to_successor().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It returns as the replica that the next grants need.
    if load.plan.kills_master {
        topology.restart_old_master().await;
    } else {
        topology.master().resume();
    }
    // By now a waiter would have an unreplicated lock, and a holder would know of its loss.
    tokio::time::sleep(Duration::from_millis(500)).await;
    load.holds_are_extended.store(false, Ordering::Relaxed);
    load.wait_for_progress().await;
}

async fn check_failover(mut topology: FailoverTopology, plan: FailoverPlan) {
    let load = Arc::new(LockLoad::new(plan, topology.locks_of_master().await));
    let (mut tasks, mut logs) = (JoinSet::new(), Vec::new());
    let mut stores = Vec::new();
    for process in 0..PROCESS_COUNT {
        let store = Store::connect(&topology.url()).await.expect("the URL is right");
        let log = Arc::<ProcessEventLog>::default();
        for lock in 0..LOCK_COUNT {
            let client = (process, lock);
            tasks.spawn(Arc::clone(&load).run_client(store.clone(), Arc::clone(&log), client));
        }
        logs.push(log);
        stores.push(store);
    }
    let longest_stall = stalls::track_longest_stall();
    load.wait_for_progress().await;
    load.measure_rate("before", tokio::time::sleep(LOAD_PHASE)).await;
    let failover_start = Instant::now();
    let failover = tokio::time::timeout(
        PROMOTION_TIMEOUT,
        load.measure_rate("during", replace_master(&load, &mut topology)),
    );
    failover.await.expect("another one is promoted");
    let outage = failover_start.elapsed();
    println!("figure: no {} for {} ms", plan.request_label(), outage.as_millis());
    load.wait_until_all_served().await;
    load.measure_rate("after", tokio::time::sleep(LOAD_PHASE)).await;
    load.stop_requested.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let [longest_call, longest_wait] = [&load.longest_call_ms, &load.longest_wait_ms]
        .map(|counter| counter.load(Ordering::Relaxed));
    println!("figure: longest call {longest_call} ms");
    println!("figure: longest of {} {longest_wait} ms", plan.request_label());
    load.check_history(&logs);
    for store in stores {
        assert!(store.shutdown(Duration::from_secs(20)).await, "a lock or a queue entry is left");
    }
    let leftovers = leftovers_of_locks(topology.successor(), failover_topology::NAMESPACE).await;
    assert!(leftovers.is_empty(), "{leftovers:#?}");
    assert!(load.failed_count.load(Ordering::Relaxed) > 0, "no request met the outage");
    // Calls do not wait for an unavailable server; a queue wait is 2 s, and a call in it 250 ms.
    let longest_stall = longest_stall.load(Ordering::Relaxed);
    assert!(
        longest_call < 4000 + longest_stall,
        "{longest_call} ms; this process stalled for {longest_stall} ms"
    );
    // A client is served once a master is available and leases of lost holders have ended.
    let max_wait = outage + Duration::from_secs(12);
    assert!(
        longest_wait < u64::try_from(max_wait.as_millis()).unwrap(),
        "{longest_wait} ms, outage of {outage:?}"
    );
}
