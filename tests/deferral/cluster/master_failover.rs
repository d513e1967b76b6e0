//! Row 6: a master is killed while requests are accepted and run. Data that its replica had
//! acknowledged are not lost.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockgate::LockGuard;
use lockgate_tests::{
    ReplicatedCluster,
    ledger::{self, DeferrableRequest, JobFleet, NodeSetup},
};

use super::{
    FAULTS_BINARY, LOAD_PHASE, SECOND,
    client_load::{ClientLoad, LoadMeter, measure_rate},
    start_workers,
};

/// Resources of the master that dies, and of the others.
const RESOURCES_PER_GROUP: usize = 3;

/// While the master has nobody who copies from it.
const ISOLATION_TIME: Duration = Duration::from_millis(500);

/// Until the replica is promoted, on a machine that has other things to do.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(60);

const RUN_LEASE: Duration = Duration::from_secs(2);

/// After it: leases that end, and what a client asks then.
const RECOVERY_TIME: Duration = Duration::from_secs(5);

/// Of a request, beyond the time that there is nobody to have it.
const MAX_WAIT_AFTER_OUTAGE: Duration = Duration::from_secs(10);

/// Of one that is nothing of the dead master's, on a machine that has other things to do.
const MAX_WAIT_OTHER_MASTERS: Duration = Duration::from_secs(8);

struct MasterFailover {
    fleet: JobFleet<ReplicatedCluster>,
    /// Those of the master that dies.
    affected_resources: Vec<String>,
    /// A shard of it.
    master_shard: u16,
    load: ClientLoad,
    /// Of the masters that stay.
    other_load: ClientLoad,
}

impl MasterFailover {
    /// Clients of all shards; `kind`: what they ask of those that go.
    async fn new(kind: fn(DeferrableRequest) -> DeferrableRequest) -> Self {
        let mut fleet = JobFleet::with_topology(
            Path::new(FAULTS_BINARY),
            ReplicatedCluster::start_with_partial_coverage().await,
        )
        .await;
        let (mut go, mut stay, mut last) = (Vec::new(), Vec::new(), 0);
        for resource in (0..).map(|n: u32| n.to_string()) {
            if go.len() >= RESOURCES_PER_GROUP && stay.len() >= RESOURCES_PER_GROUP {
                break;
            }
            let shard = fleet.shard_of(&resource).await;
            if fleet.server.master_owns_shard(shard).await {
                go.push(resource);
                last = shard;
            } else {
                stay.push(resource);
            }
        }
        go.truncate(RESOURCES_PER_GROUP);
        stay.truncate(RESOURCES_PER_GROUP);
        let setup = |framework| NodeSetup {
            lease: RUN_LEASE,
            call_timeout: SECOND,
            ..NodeSetup::new(framework)
        };
        start_workers(&mut fleet, setup).await;
        let mut load = ClientLoad::new("requests of a dead master");
        let mut others = ClientLoad::new("requests of the other masters");
        for resource in &go {
            load.start_clients(&fleet, resource, kind);
        }
        for resource in &stay {
            others.start_clients(&fleet, resource, |later| later);
        }
        load.wait_for_accepted(20).await;
        let scene =
            Self { fleet, affected_resources: go, master_shard: last, load, other_load: others };
        measure_rate(&scene.meters(), "before", tokio::time::sleep(LOAD_PHASE)).await;
        scene
    }

    fn meters(&self) -> [LoadMeter; 2] {
        [self.load.meter(), self.other_load.meter()]
    }

    /// Nothing of the master's runs from now on, and its replica has all that was accepted until now: what is
    /// accepted from now on, the replica has not.
    async fn hold_locks_and_isolate_master(&self) -> Vec<LockGuard> {
        let mut held = Vec::new();
        for resource in &self.affected_resources {
            held.push(self.fleet.hold_lock(resource).await);
        }
        self.load.wait_for_accepted(10).await;
        self.fleet.server.wait_for_replication(self.master_shard).await;
        let before = self.load.refused_and_uncertain().1;
        self.fleet.server.isolate_replica().await;
        let told = async {
            while self.load.refused_and_uncertain().1 == before {
                tokio::time::sleep(ISOLATION_TIME / 10).await;
            }
        };
        tokio::time::timeout(PROMOTION_TIMEOUT, told)
            .await
            .expect("somebody is told that no replica has it");
        tokio::time::sleep(ISOLATION_TIME).await;
        held
    }

    /// Until the replica has taken over, and the dead one has come back as its replica.
    async fn fail_over(&mut self) {
        let (from, gone) = (ledger::now_ns(), Instant::now());
        self.fleet.server.master.kill();
        self.fleet.server.replica.resume();
        let promoted = async {
            while !self.fleet.server.all_nodes_see_promotion().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PROMOTION_TIMEOUT, promoted).await.expect("the replica is promoted");
        println!("figure: no master for {} ms", gone.elapsed().as_millis());
        // From now on somebody can have what is accepted.
        self.fleet.server.restart_as_replica().await;
        let over = ledger::now_ns() + u64::try_from(RECOVERY_TIME.as_nanos()).unwrap_or(u64::MAX);
        self.fleet.record_disturbance(None, from, over);
    }

    /// `away`: for how long nothing of the shards that went could be accepted.
    async fn finish_and_check(mut self, away: Duration) {
        measure_rate(&self.meters(), "after", tokio::time::sleep(LOAD_PHASE)).await;
        let [longest, other] =
            [self.load.stop_and_report().await, self.other_load.stop_and_report().await];
        let verdict = self.fleet.finish_and_check(0).await;
        assert_eq!(verdict.lost_requests, 0, "accepted with a replica, and lost\n{verdict}");
        let looked = verdict.assert_no_violations();
        println!("{looked:?}");
        assert!(looked.accepted > 100 && looked.ordered_pairs > 50, "{looked:?}");
        assert!(longest < away + MAX_WAIT_AFTER_OUTAGE, "{longest:?}, away for {away:?}");
        assert!(other < MAX_WAIT_OTHER_MASTERS, "{other:?}");
    }
}

/// It takes what its replica does not have with it; of that nobody was told that it is accepted.
#[tokio::test]
async fn replicated_jobs_survive_failure_of_isolated_master() {
    let mut scene = MasterFailover::new(DeferrableRequest::replicated).await;
    let (meters, began, from) = (scene.meters(), Instant::now(), ledger::now_ns());
    let fault = async {
        let held = scene.hold_locks_and_isolate_master().await;
        scene.fleet.record_disturbance(None, from, ledger::now_ns());
        scene.fail_over().await;
        for lock in held {
            lock.release().await;
        }
        scene.load.wait_for_accepted(20).await;
    };
    measure_rate(&meters, "during", fault).await;
    scene.finish_and_check(began.elapsed()).await;
}

/// In the middle of runs, which are run again.
#[tokio::test]
async fn master_failure_during_run_settles_job_once() {
    let mut scene = MasterFailover::new(|later| later.put().replicated()).await;
    let (meters, began) = (scene.meters(), Instant::now());
    let fault = async {
        scene.fail_over().await;
        scene.load.wait_for_accepted(20).await;
    };
    measure_rate(&meters, "during", fault).await;
    let (refused, perhaps) = scene.load.refused_and_uncertain();
    assert!(refused + perhaps > 0, "nobody has noticed");
    scene.finish_and_check(began.elapsed()).await;
}
