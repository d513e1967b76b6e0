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

/// Until the sentinels agree, have promoted the replica and told of it, and, where replicas are asked for, the old
/// master is one, on a machine that has other things to do.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(60);

async fn replace_master(load: &LockLoad, all: &mut FailoverTopology) {
    load.holds_are_extended.store(true, Ordering::Relaxed);
    // Whoever has a lock now has it when the master goes.
    tokio::time::sleep(Duration::from_millis(50)).await;
    if load.plan.kills_master {
        all.master().kill();
    } else {
        all.master().pause();
    }
    while !all.have_switched_to_successor().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It comes back as a replica, whom the next grants are to have.
    if load.plan.kills_master {
        all.restart_old_master().await;
    } else {
        all.master().resume();
    }
    // Those who wait would have had it by now, and those who keep it have heard if it is lost.
    tokio::time::sleep(Duration::from_millis(500)).await;
    load.holds_are_extended.store(false, Ordering::Relaxed);
    load.wait_for_progress().await;
}

async fn check_failover(mut all: FailoverTopology, plan: FailoverPlan) {
    let load = Arc::new(LockLoad::new(plan, all.locks_of_master().await));
    let (mut tasks, mut logs) = (JoinSet::new(), Vec::new());
    let mut stores = Vec::new();
    for process in 0..PROCESS_COUNT {
        let store = Store::connect(&all.url()).await.expect("the URL is right");
        let log = Arc::<ProcessEventLog>::default();
        for lock in 0..LOCK_COUNT {
            let who = (process, lock);
            tasks.spawn(Arc::clone(&load).run_client(store.clone(), Arc::clone(&log), who));
        }
        logs.push(log);
        stores.push(store);
    }
    let late = stalls::track_longest_stall();
    load.wait_for_progress().await;
    load.measure_rate("before", tokio::time::sleep(LOAD_PHASE)).await;
    let gone = Instant::now();
    let back = tokio::time::timeout(
        PROMOTION_TIMEOUT,
        load.measure_rate("during", replace_master(&load, &mut all)),
    );
    back.await.expect("another one is promoted");
    let away = gone.elapsed();
    println!("figure: no {} for {} ms", plan.request_label(), away.as_millis());
    load.wait_until_all_served().await;
    load.measure_rate("after", tokio::time::sleep(LOAD_PHASE)).await;
    load.stop_requested.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let [call, longest] =
        [&load.longest_call_ms, &load.longest_wait_ms].map(|of| of.load(Ordering::Relaxed));
    println!("figure: longest call {call} ms");
    println!("figure: longest of {} {longest} ms", plan.request_label());
    load.check_history(&logs);
    for store in stores {
        assert!(store.shutdown(Duration::from_secs(20)).await, "something could not be given back");
    }
    let left = leftovers_of_locks(all.successor(), failover_topology::NAMESPACE).await;
    assert!(left.is_empty(), "{left:#?}");
    assert!(load.failed_count.load(Ordering::Relaxed) > 0, "nobody has noticed");
    // Nobody waits for a server that is away; a wait in line is 2 s, and a call in it 250 ms.
    let late = late.load(Ordering::Relaxed);
    assert!(call < 4000 + late, "{call} ms, and this process stood still for {late} ms");
    // Who asks again is served when there is somebody to serve; before that, a lease may have to end.
    let most = away + Duration::from_secs(12);
    assert!(longest < u64::try_from(most.as_millis()).unwrap(), "{longest} ms, away for {away:?}");
}
