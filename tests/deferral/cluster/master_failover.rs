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

/// Resources on the failing master, and as many on the other masters.
const RESOURCES_PER_GROUP: usize = 3;

/// Time during which the master has no replica.
const ISOLATION_TIME: Duration = Duration::from_millis(500);

/// Time until the replica is promoted, on a loaded machine.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(60);

const RUN_LEASE: Duration = Duration::from_secs(2);

/// Time after the promotion for leases to end and clients to retry.
const RECOVERY_TIME: Duration = Duration::from_secs(5);

/// Longest wait of a request beyond the outage of its master.
const MAX_WAIT_AFTER_OUTAGE: Duration = Duration::from_secs(10);

/// Longest wait of a request to another master, on a loaded machine.
const MAX_WAIT_OTHER_MASTERS: Duration = Duration::from_secs(8);

struct MasterFailover {
    fleet: JobFleet<ReplicatedCluster>,
    /// Resources on the failing master.
    affected_resources: Vec<String>,
    /// A shard of the failing master.
    master_shard: u16,
    load: ClientLoad,
    /// Load on the other masters.
    other_load: ClientLoad,
}

impl MasterFailover {
    /// Starts clients of all masters. `configure` is applied to the requests to the failing one.
    async fn new(configure: fn(DeferrableRequest) -> DeferrableRequest) -> Self {
        let mut fleet = JobFleet::with_topology(
            Path::new(FAULTS_BINARY),
            ReplicatedCluster::start_with_partial_coverage().await,
        )
        .await;
        let (mut affected_resources, mut other_resources, mut master_shard) =
            (Vec::new(), Vec::new(), 0);
        for resource in (0..).map(|n: u32| n.to_string()) {
            if affected_resources.len() >= RESOURCES_PER_GROUP
                && other_resources.len() >= RESOURCES_PER_GROUP
            {
                break;
            }
            let shard = fleet.shard_of(&resource).await;
            if fleet.server.master_owns_shard(shard).await {
                affected_resources.push(resource);
                master_shard = shard;
            } else {
                other_resources.push(resource);
            }
        }
        affected_resources.truncate(RESOURCES_PER_GROUP);
        other_resources.truncate(RESOURCES_PER_GROUP);
        let setup = |framework| NodeSetup {
            lease: RUN_LEASE,
            call_timeout: SECOND,
            ..NodeSetup::new(framework)
        };
        start_workers(&mut fleet, setup).await;
        let mut load = ClientLoad::new("requests of a dead master");
        let mut other_load = ClientLoad::new("requests of the other masters");
        for resource in &affected_resources {
            load.start_clients(&fleet, resource, configure);
        }
        for resource in &other_resources {
            other_load.start_clients(&fleet, resource, |request| request);
        }
        load.wait_for_accepted(20).await;
        let failover = Self { fleet, affected_resources, master_shard, load, other_load };
        measure_rate(&failover.meters(), "before", tokio::time::sleep(LOAD_PHASE)).await;
        failover
    }

    fn meters(&self) -> [LoadMeter; 2] {
        [self.load.meter(), self.other_load.meter()]
    }

    /// Stops runs on the master and isolates it from its replica. The replica has all jobs accepted
    /// before and none accepted afterwards.
    async fn hold_locks_and_isolate_master(&self) -> Vec<LockGuard> {
        let mut guards = Vec::new();
        for resource in &self.affected_resources {
            guards.push(self.fleet.hold_lock(resource).await);
        }
        self.load.wait_for_accepted(10).await;
        self.fleet.server.wait_for_replication(self.master_shard).await;
        let before = self.load.refused_and_uncertain().1;
        self.fleet.server.isolate_replica().await;
        let uncertain_response = async {
            while self.load.refused_and_uncertain().1 == before {
                tokio::time::sleep(ISOLATION_TIME / 10).await;
            }
        };
        tokio::time::timeout(PROMOTION_TIMEOUT, uncertain_response)
            .await
            .expect("a response reports that no replica has the job");
        tokio::time::sleep(ISOLATION_TIME).await;
        guards
    }

    /// Waits until the replica is promoted and the old master has restarted as its replica.
    async fn fail_over(&mut self) {
        let (from, killed) = (ledger::now_ns(), Instant::now());
        self.fleet.server.master.kill();
        self.fleet.server.replica.resume();
        let promoted = async {
            while !self.fleet.server.all_nodes_see_promotion().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PROMOTION_TIMEOUT, promoted).await.expect("the replica is promoted");
        println!("figure: no master for {} ms", killed.elapsed().as_millis());
        // From here on, a replica can acknowledge accepted jobs.
        self.fleet.server.restart_as_replica().await;
        let recovered =
            ledger::now_ns() + u64::try_from(RECOVERY_TIME.as_nanos()).unwrap_or(u64::MAX);
        self.fleet.record_disturbance(None, from, recovered);
    }

    /// `outage` is the time during which the affected shards could not accept jobs.
    async fn finish_and_check(mut self, outage: Duration) {
        measure_rate(&self.meters(), "after", tokio::time::sleep(LOAD_PHASE)).await;
        let [longest_wait, longest_other_wait] =
            [self.load.stop_and_report().await, self.other_load.stop_and_report().await];
        let report = self.fleet.finish_and_check(0).await;
        assert_eq!(report.lost_requests, 0, "accepted with a replica, and lost\n{report}");
        let stats = report.assert_no_violations();
        println!("{stats:?}");
        assert!(stats.accepted > 100 && stats.ordered_pairs > 50, "{stats:?}");
        assert!(
            longest_wait < outage + MAX_WAIT_AFTER_OUTAGE,
            "{longest_wait:?}, outage of {outage:?}"
        );
        assert!(longest_other_wait < MAX_WAIT_OTHER_MASTERS, "{longest_other_wait:?}");
    }
}

/// The failing master loses unreplicated jobs, for which no 202 was sent.
#[tokio::test]
async fn replicated_jobs_survive_failure_of_isolated_master() {
    let mut failover = MasterFailover::new(DeferrableRequest::replicated).await;
    let (meters, began, from) = (failover.meters(), Instant::now(), ledger::now_ns());
    let fault = async {
        let guards = failover.hold_locks_and_isolate_master().await;
        failover.fleet.record_disturbance(None, from, ledger::now_ns());
        failover.fail_over().await;
        for lock in guards {
            lock.release().await;
        }
        failover.load.wait_for_accepted(20).await;
    };
    measure_rate(&meters, "during", fault).await;
    failover.finish_and_check(began.elapsed()).await;
}

/// The runs are interrupted and repeated.
#[tokio::test]
async fn master_failure_during_run_settles_job_once() {
    let mut failover = MasterFailover::new(|request| request.put().replicated()).await;
    let (meters, began) = (failover.meters(), Instant::now());
    let fault = async {
        failover.fail_over().await;
        failover.load.wait_for_accepted(20).await;
    };
    measure_rate(&meters, "during", fault).await;
    let (refused, uncertain) = failover.load.refused_and_uncertain();
    assert!(refused + uncertain > 0, "no request met the outage");
    failover.finish_and_check(began.elapsed()).await;
}
