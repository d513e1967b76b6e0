//! Repetition of cases that ran too slowly.
//!
//! On a server, real time passes in addition to the time that a case advances. An offer lasts 300
//! ms: if a process gets no CPU for that long, the offer lapses between two operations of the case.

use std::{
    io::{self, Write as _},
    panic::{AssertUnwindSafe, resume_unwind},
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, future::LocalBoxFuture};

use super::{store_harness::StoreHarness, store_pair::MAX_REAL_TIME};

/// Time that only a hanging case takes. Its failure counts.
const HANG_TIME: Duration = Duration::from_secs(8);

/// Number of runs after which a failure counts, however long they took.
const MAX_CASE_RUNS: usize = 20;

/// A boxed case, so that [`retry_slow_case`] is compiled once and not for each of some 1,600 cases.
pub(super) type HarnessCase<'c> = &'c dyn for<'a> Fn(&'a StoreHarness) -> LocalBoxFuture<'a, ()>;

/// Repeats a case until it passes. A failure within the time limit counts at once.
pub(super) async fn retry_slow_case(
    rig: fn() -> LocalBoxFuture<'static, StoreHarness>,
    case: HarnessCase<'_>,
) {
    for runs_left in (0..MAX_CASE_RUNS).rev() {
        let (rig, started) = (rig().await, Instant::now());
        let Err(panic) = AssertUnwindSafe(case(&rig)).catch_unwind().await else {
            return rig.delete_all_keys().await;
        };
        let elapsed = started.elapsed();
        if runs_left == 0 || elapsed <= MAX_REAL_TIME || elapsed >= HANG_TIME {
            resume_unwind(panic);
        }
        rig.delete_all_keys().await;
        // Written directly, because the test runner hides the output of passing tests.
        let _ = writeln!(io::stderr(), "a case took {elapsed:?} and is repeated");
    }
}
