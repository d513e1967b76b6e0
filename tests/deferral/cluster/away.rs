//! Row 1: the node is away that knows which workers live. Those of the others' shards go on being looked after.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lockgate_tests::{
    Cluster, Framework, eventually,
    ledger::{Fleet, Setup, Told},
};

use super::{super::steady, PROGRAM, SECOND};

/// A watch is a worker's for 14 s after its last sign of life, which comes every 10 s.
const AWAY: Duration = Duration::from_secs(28);

/// What has no message waits for its time, and all for a worker that asks the node that does not answer.
const LATEST: Duration = Duration::from_secs(12);

const RESOURCES: usize = 8;

/// Each of them has a request that waits for its lock and one that waits for its time, and all run: how long that takes.
async fn all_run(fleet: &Fleet<Cluster>, web: usize, resources: &[String]) -> Duration {
    let ids = join_all(resources.iter().map(async |resource| {
        let lock = fleet.hold(resource).await;
        let now = fleet.later(web, resource).accepted().await;
        let later = fleet.later(web, resource).delayed().accepted().await;
        lock.release().await;
        [now, later]
    }));
    let (ids, released) = (ids.await.concat(), Instant::now());
    let waits = |fleet: &Fleet<Cluster>| {
        let runs = fleet.runs();
        let has_run = |id: &&String| runs.iter().any(|run| run.job_id.as_ref() == Some(*id));
        ids.iter().filter(|id| !has_run(id)).count()
    };
    let mut waiting = waits(fleet);
    while waiting > 0 {
        let waited = released.elapsed();
        assert!(waited < LATEST, "{waiting} of {} do not run within {waited:?}", ids.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
        waiting = waits(fleet);
    }
    released.elapsed()
}

#[tokio::test]
async fn workers_keep_their_shards_while_the_node_is_away_that_knows_who_lives() {
    let mut fleet = Fleet::on(Path::new(PROGRAM), Cluster::that_goes_on().await).await;
    let knows = fleet.server.owner(0).await;
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for resource in (0..).map(|n: u32| n.to_string()) {
        let shard = fleet.shard(&resource).await;
        let of = if fleet.server.owner(shard).await == knows { &mut there } else { &mut here };
        of.push(resource);
        if here.len() >= RESOURCES && !there.is_empty() {
            break;
        }
    }
    // Shorter than usual, so that signs of life come in time that meet silence.
    let setup = |framework| Setup { deadline: SECOND, ..steady(framework) };
    let web = fleet.join(steady(Framework::Axum).web_only()).await;
    for framework in [Framework::Actix, Framework::Axum] {
        fleet.join(setup(framework)).await;
    }
    all_run(&fleet, web, &here).await;
    fleet.server.nodes()[knows].pause();
    let (gone, mut longest) = (Instant::now(), Duration::ZERO);
    while gone.elapsed() < AWAY {
        longest = longest.max(all_run(&fleet, web, &here).await);
    }
    fleet.server.nodes()[knows].resume();
    println!("figure: longest wait while nobody knows who lives {} ms", longest.as_millis());
    eventually("it to be used again", async || {
        matches!(fleet.later(web, &there[0]).send().await, Told::Accepted(_) | Told::Ran(..))
    })
    .await;
    // Of its own shards, too.
    all_run(&fleet, web, &[here, there].concat()).await;
    let looked = fleet.settle(web).await.is_good();
    assert!(looked.runs >= 64 && looked.repeated_runs == 0, "{looked:?}");
}
