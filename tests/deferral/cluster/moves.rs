//! Row 8: shards move while requests are accepted and run, and with them the one in which workers give signs of life.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use lockgate_tests::{
    Cluster,
    ledger::{Fleet, Setup},
};

use super::{
    PHASE, PROGRAM, joined,
    load::{Load, rate},
};

const RESOURCES: [&str; 6] = ["1", "2", "3", "4", "5", "6"];

/// How long shards are moved, and how long each is on its way at least.
const TIME: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(20);

/// Of a request, beyond the time that its shard is on its way: a look at the map, and a machine that has other things to do.
const LONGEST: Duration = Duration::from_secs(10);

/// One shard after the other, to the next node: how many, and how long any was on its way.
async fn moves(cluster: &Cluster, shards: &BTreeSet<u16>) -> (usize, Duration) {
    let (began, mut moved, mut longest) = (Instant::now(), 0, Duration::ZERO);
    for shard in shards.iter().cycle() {
        if began.elapsed() > TIME {
            break;
        }
        let left = Instant::now();
        cluster.moves(*shard, PAUSE).await;
        longest = longest.max(left.elapsed());
        moved += 1;
    }
    (moved, longest)
}

#[tokio::test]
async fn what_is_accepted_runs_once_and_in_its_turn_while_shards_move() {
    let mut fleet = Fleet::on(Path::new(PROGRAM), Cluster::start().await).await;
    let mut shards = BTreeSet::from([0]);
    for resource in RESOURCES {
        shards.insert(fleet.shard(resource).await);
    }
    joined(&mut fleet, Setup::new).await;
    let mut load = Load::new("requests");
    for (n, resource) in RESOURCES.into_iter().enumerate() {
        load.begin(&fleet, resource, if n % 2 == 0 { |later| later } else { |later| later.put() });
    }
    load.accepts(20).await;
    let meters = [load.meter()];
    rate(&meters, "before", tokio::time::sleep(PHASE)).await;
    let (moved, on_its_way) = rate(&meters, "during", moves(&fleet.server, &shards)).await;
    rate(&meters, "after", tokio::time::sleep(PHASE)).await;
    let longest = load.ends().await;
    println!("figure: fewest shards moved {moved}");
    println!("figure: longest that a shard was on its way {} ms", on_its_way.as_millis());
    let looked = fleet.settle(0).await.is_good();
    println!("{looked:?}");
    assert!(moved > shards.len(), "{moved} of {}", shards.len());
    assert!(looked.accepted > 100 && looked.ordered_pairs > 50, "{looked:?}");
    assert!(longest < on_its_way + LONGEST, "{longest:?}, a shard {on_its_way:?}");
}
