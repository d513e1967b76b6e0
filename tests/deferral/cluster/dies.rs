//! Row 6: a master dies while requests are accepted and run. What its replica was known to have is not lost.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockgate::LockGuard;
use lockgate_tests::{
    Replicated,
    ledger::{self, Fleet, Later, Setup},
};

use super::{
    PHASE, PROGRAM, SECOND, joined,
    load::{Load, Meter, rate},
};

/// Resources of the master that dies, and of the others.
const EACH: usize = 3;

/// While the master has nobody who copies from it.
const ALONE: Duration = Duration::from_millis(500);

/// Until the replica is promoted, on a machine that has other things to do.
const AWAY: Duration = Duration::from_secs(60);

const LEASE: Duration = Duration::from_secs(2);

/// After it: leases that end, and what a client asks then.
const AFTERMATH: Duration = Duration::from_secs(5);

/// Of a request, beyond the time that there is nobody to have it.
const LONGEST: Duration = Duration::from_secs(10);

/// Of one that is nothing of the dead master's, on a machine that has other things to do.
const OTHERS: Duration = Duration::from_secs(8);

struct Scene {
    fleet: Fleet<Replicated>,
    /// Those of the master that dies.
    go: Vec<String>,
    /// A shard of it.
    shard: u16,
    load: Load,
    /// Of the masters that stay.
    others: Load,
}

impl Scene {
    /// Clients of all shards; `kind`: what they ask of those that go.
    async fn new(kind: fn(Later) -> Later) -> Self {
        let mut fleet = Fleet::on(Path::new(PROGRAM), Replicated::that_goes_on().await).await;
        let (mut go, mut stay, mut last) = (Vec::new(), Vec::new(), 0);
        for resource in (0..).map(|n: u32| n.to_string()) {
            if go.len() >= EACH && stay.len() >= EACH {
                break;
            }
            let shard = fleet.shard(&resource).await;
            if fleet.server.is_of_the_master(shard).await {
                go.push(resource);
                last = shard;
            } else {
                stay.push(resource);
            }
        }
        go.truncate(EACH);
        stay.truncate(EACH);
        let setup = |framework| Setup { lease: LEASE, deadline: SECOND, ..Setup::new(framework) };
        joined(&mut fleet, setup).await;
        let mut load = Load::new("requests of a dead master");
        let mut others = Load::new("requests of the other masters");
        for resource in &go {
            load.begin(&fleet, resource, kind);
        }
        for resource in &stay {
            others.begin(&fleet, resource, |later| later);
        }
        load.accepts(20).await;
        let scene = Self { fleet, go, shard: last, load, others };
        rate(&scene.meters(), "before", tokio::time::sleep(PHASE)).await;
        scene
    }

    fn meters(&self) -> [Meter; 2] {
        [self.load.meter(), self.others.meter()]
    }

    /// Nothing of the master's runs from now on, and its replica has all that was accepted until now: what is
    /// accepted from now on, the replica has not.
    async fn stand_in_line(&self) -> Vec<LockGuard> {
        let mut held = Vec::new();
        for resource in &self.go {
            held.push(self.fleet.hold(resource).await);
        }
        self.load.accepts(10).await;
        self.fleet.server.replica_has_it_all(self.shard).await;
        let before = self.load.refused().1;
        self.fleet.server.cut_off_the_replica().await;
        let told = async {
            while self.load.refused().1 == before {
                tokio::time::sleep(ALONE / 10).await;
            }
        };
        tokio::time::timeout(AWAY, told).await.expect("somebody is told that no replica has it");
        tokio::time::sleep(ALONE).await;
        held
    }

    /// Until the replica has taken over, and the dead one has come back as its replica.
    async fn fails_over(&mut self) {
        let (from, gone) = (ledger::now(), Instant::now());
        self.fleet.server.master.kill();
        self.fleet.server.replica.resume();
        let promoted = async {
            while !self.fleet.server.all_left_the_old_one().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(AWAY, promoted).await.expect("the replica is promoted");
        println!("figure: no master for {} ms", gone.elapsed().as_millis());
        // From now on somebody can have what is accepted.
        self.fleet.server.comes_back().await;
        let over = ledger::now() + u64::try_from(AFTERMATH.as_nanos()).unwrap_or(u64::MAX);
        self.fleet.trouble(None, from, over);
    }

    /// `away`: for how long nothing of the shards that went could be accepted.
    async fn ends(mut self, away: Duration) {
        rate(&self.meters(), "after", tokio::time::sleep(PHASE)).await;
        let [longest, other] = [self.load.ends().await, self.others.ends().await];
        let verdict = self.fleet.settle(0).await;
        assert_eq!(verdict.lost, 0, "accepted with a replica, and lost\n{verdict}");
        let looked = verdict.is_good();
        println!("{looked:?}");
        assert!(looked.accepted > 100 && looked.ordered_pairs > 50, "{looked:?}");
        assert!(longest < away + LONGEST, "{longest:?}, away for {away:?}");
        assert!(other < OTHERS, "{other:?}");
    }
}

/// It takes what its replica does not have with it; of that nobody was told that it is accepted.
#[tokio::test]
async fn what_is_accepted_with_a_replica_outlives_a_master_that_was_alone() {
    let mut scene = Scene::new(Later::sure).await;
    let (meters, began, from) = (scene.meters(), Instant::now(), ledger::now());
    let fault = async {
        let held = scene.stand_in_line().await;
        scene.fleet.trouble(None, from, ledger::now());
        scene.fails_over().await;
        for lock in held {
            lock.release().await;
        }
        scene.load.accepts(20).await;
    };
    rate(&meters, "during", fault).await;
    scene.ends(began.elapsed()).await;
}

/// In the middle of runs, which are run again.
#[tokio::test]
async fn what_runs_while_its_master_dies_ends_once() {
    let mut scene = Scene::new(|later| later.put().sure()).await;
    let (meters, began) = (scene.meters(), Instant::now());
    let fault = async {
        scene.fails_over().await;
        scene.load.accepts(20).await;
    };
    rate(&meters, "during", fault).await;
    let (refused, perhaps) = scene.load.refused();
    assert!(refused + perhaps > 0, "nobody has noticed");
    scene.ends(began.elapsed()).await;
}
