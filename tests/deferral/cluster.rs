//! Rows 6 and 8 on a cluster, by processes that have workers: shards move, a master dies, and the node is away that knows
//! which workers live.

#[path = "cluster/away.rs"]
mod away;
#[path = "cluster/dies.rs"]
mod dies;
#[path = "cluster/load.rs"]
mod load;
#[path = "cluster/moves.rs"]
mod moves;

use std::time::Duration;

use lockgate_tests::{
    Framework,
    ledger::{Fleet, Ground, Setup},
};

use super::{PROGRAM, SECOND};

/// Of clients before and after what is done to the cluster.
const PHASE: Duration = Duration::from_secs(3);

/// How long a client may wait for its answer if nothing is done.
const PATIENCE: Duration = Duration::from_secs(16);

/// Three processes with workers, of both frameworks.
async fn joined<G: Ground>(fleet: &mut Fleet<G>, setup: impl Fn(Framework) -> Setup) {
    for framework in [Framework::Axum, Framework::Actix, Framework::Axum] {
        fleet.join(setup(framework)).await;
    }
    fleet.judges_answers(PATIENCE);
}
