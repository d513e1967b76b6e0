//! Cases that were too slow for what they tell, and are made again.
//!
//! On a server real time passes beside that which a case lets pass. An offer stands for 300 ms: if a process
//! is not given a processor for as long, the offer lapses between two steps of the case, as it has to.

use std::{
    io::{self, Write as _},
    panic::{AssertUnwindSafe, resume_unwind},
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, future::LocalBoxFuture};

use super::{both::SLOW, rig::Rig};

/// As long as this takes no case but one that waits for what does not come: it counts.
const HANGS: Duration = Duration::from_secs(8);

/// Runs of one case after which its failure counts, however long it took.
const RUNS: usize = 20;

/// A boxed case: [`in_time`] is compiled once and not for each of some 1,600 cases.
pub(super) type Case<'c> = &'c dyn for<'a> Fn(&'a Rig) -> LocalBoxFuture<'a, ()>;

/// Makes a case until it holds. One that fails in its time fails at once.
pub(super) async fn in_time(rig: fn() -> LocalBoxFuture<'static, Rig>, case: Case<'_>) {
    for left in (0..RUNS).rev() {
        let (rig, started) = (rig().await, Instant::now());
        let Err(panic) = AssertUnwindSafe(case(&rig)).catch_unwind().await else {
            return rig.clear().await;
        };
        let took = started.elapsed();
        if left == 0 || took <= SLOW || took >= HANGS {
            resume_unwind(panic);
        }
        rig.clear().await;
        // Past the runner, which shows nothing of what holds in the end.
        let _ = writeln!(io::stderr(), "a case took {took:?}, and is made again");
    }
}
