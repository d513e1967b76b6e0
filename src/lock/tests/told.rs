//! What a process is told of its line while the store's answer is under way. (Of jobs: see the tests of deferral.)

use std::time::Duration;

use super::{SECOND, free, handover::MS};
use crate::store::{Fault, faulty};

/// A lock that would stay here for a while is given to whoever joined before the first grant was answered.
#[tokio::test(start_paused = true)]
async fn who_joins_before_the_first_grant_is_answered_is_known_to_wait() {
    // Asked for with a wait, and without one: then nobody of this process has a line.
    for wait in [SECOND, Duration::ZERO] {
        let (store, faults) = faulty();
        let other = store.as_another_process();
        // It hears of lines, because of another lock.
        drop(store.lock("z").linger(MS).acquire().await.unwrap());
        faults.set("acquire", Fault::Slow(5 * MS), 1);
        let first = store.lock("x").linger(SECOND);
        let first = if wait.is_zero() { first } else { first.wait(wait) };
        let first = tokio::spawn(first.acquire());
        tokio::time::sleep(MS / 2).await;
        let waits = tokio::spawn(other.lock("x").wait(60 * SECOND).acquire());
        let first = first.await.unwrap().unwrap();
        drop(first);
        let next = tokio::time::timeout(MS, waits).await.expect("it does not linger");
        drop(next.unwrap().unwrap());
        drop(free(&store).await);
    }
}
