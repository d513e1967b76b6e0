//! A master that sentinels watch over, or of a cluster, is killed, or stands still, while two processes contest locks;
//! and what they saw is judged by the checker. Then each of them has each lock again, and in the end nothing is left.

#[path = "failover/cluster.rs"]
mod cluster;
#[path = "failover/load.rs"]
mod load;
#[path = "failover/sentinels.rs"]
mod sentinels;
#[path = "failover/world.rs"]
mod world;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use lockgate::Store;
use lockgate_tests::{left_of_locks, stalls};
use tokio::task::JoinSet;

use self::{
    load::{Load, Log, Plan},
    world::World,
};

/// Processes, and tasks of each: as many as there are locks, so each lock is contested.
const PROCESSES: usize = 2;
const LOCKS: usize = 4;
const PHASE: Duration = Duration::from_secs(2);

/// Until the sentinels agree, have promoted the replica and told of it, and, where replicas are asked for, the old
/// master is one, on a machine that has other things to do.
const AWAY: Duration = Duration::from_secs(60);

async fn fault(load: &Load, all: &mut World) {
    load.keep.store(true, Ordering::Relaxed);
    // Whoever has a lock now has it when the master goes.
    tokio::time::sleep(Duration::from_millis(50)).await;
    if load.plan.kills {
        all.master().kill();
    } else {
        all.master().pause();
    }
    while !all.all_left_the_old_one().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It comes back as a replica, whom the next grants are to have.
    if load.plan.kills {
        all.comes_back().await;
    } else {
        all.master().resume();
    }
    // Those who wait would have had it by now, and those who keep it have heard if it is lost.
    tokio::time::sleep(Duration::from_millis(500)).await;
    load.keep.store(false, Ordering::Relaxed);
    load.goes_on().await;
}

async fn fails_over(mut all: World, plan: Plan) {
    let load = Arc::new(Load::new(plan, all.locks().await));
    let (mut tasks, mut logs) = (JoinSet::new(), Vec::new());
    let mut stores = Vec::new();
    for process in 0..PROCESSES {
        let store = Store::connect(&all.url()).await.expect("the URL is right");
        let log = Arc::<Log>::default();
        for lock in 0..LOCKS {
            let who = (process, lock);
            tasks.spawn(Arc::clone(&load).go_round(store.clone(), Arc::clone(&log), who));
        }
        logs.push(log);
        stores.push(store);
    }
    let late = stalls::longest();
    load.goes_on().await;
    load.rate("before", tokio::time::sleep(PHASE)).await;
    let gone = Instant::now();
    let back = tokio::time::timeout(AWAY, load.rate("during", fault(&load, &mut all)));
    back.await.expect("another one is promoted");
    let away = gone.elapsed();
    println!("figure: no {} for {} ms", plan.requests(), away.as_millis());
    load.all_are_served().await;
    load.rate("after", tokio::time::sleep(PHASE)).await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let [call, longest] = [&load.longest_call, &load.longest].map(|of| of.load(Ordering::Relaxed));
    println!("figure: longest call {call} ms");
    println!("figure: longest of {} {longest} ms", plan.requests());
    load.judge(&logs);
    for store in stores {
        assert!(store.shutdown(Duration::from_secs(20)).await, "something could not be given back");
    }
    let left = left_of_locks(all.successor(), world::NAMESPACE).await;
    assert!(left.is_empty(), "{left:#?}");
    assert!(load.refused.load(Ordering::Relaxed) > 0, "nobody has noticed");
    // Nobody waits for a server that is away; a wait in line is 2 s, and a call in it 250 ms.
    let late = late.load(Ordering::Relaxed);
    assert!(call < 4000 + late, "{call} ms, and this process stood still for {late} ms");
    // Who asks again is served when there is somebody to serve; before that, a lease may have to end.
    let most = away + Duration::from_secs(12);
    assert!(longest < u64::try_from(most.as_millis()).unwrap(), "{longest} ms, away for {away:?}");
}
