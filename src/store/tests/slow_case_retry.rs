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

use super::{store_harness::StoreHarness, store_pair::MAX_REAL_TIME};

/// As long as this takes no case but one that waits for what does not come: it counts.
const HANG_TIME: Duration = Duration::from_secs(8);

/// Runs of one case after which its failure counts, however long it took.
const MAX_CASE_RUNS: usize = 20;

/// A boxed case: [`retry_slow_case`] is compiled once and not for each of some 1,600 cases.
pub(super) type HarnessCase<'c> = &'c dyn for<'a> Fn(&'a StoreHarness) -> LocalBoxFuture<'a, ()>;

/// Makes a case until it holds. One that fails in its time fails at once.
pub(super) async fn retry_slow_case(
    rig: fn() -> LocalBoxFuture<'static, StoreHarness>,
    case: HarnessCase<'_>,
) {
    for left in (0..MAX_CASE_RUNS).rev() {
        let (rig, started) = (rig().await, Instant::now());
        let Err(panic) = AssertUnwindSafe(case(&rig)).catch_unwind().await else {
            return rig.delete_all_keys().await;
        };
        let took = started.elapsed();
        if left == 0 || took <= MAX_REAL_TIME || took >= HANG_TIME {
            resume_unwind(panic);
        }
        rig.delete_all_keys().await;
        // Past the runner, which shows nothing of what holds in the end.
        let _ = writeln!(io::stderr(), "a case took {took:?}, and is made again");
    }
}
