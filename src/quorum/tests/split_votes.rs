//! Votes that are split: two nodes for one, two for another, one for a third. Nobody has a majority, and whoever was
//! granted something gives it back.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::{ReleaseStatus, quorum::QuorumRequest};

/// Until a call runs that comes second, and from then until it is answered.
const RUN_DELAY: Duration = Duration::from_millis(2);

/// Until a call is answered that has run at once: by then the others have run too.
const REPLY_DELAY: Duration = Duration::from_millis(10);

/// Longer than three turns, with their pauses.
const ACQUIRE_WAIT: Duration = Duration::from_secs(30);

type QuorumAcquireFuture = Pin<Box<dyn Future<Output = Result<QuorumGuard, AcquireError>> + Send>>;

/// Three processes ask at once, and have voted for themselves in this order: the first one is granted the first two
/// nodes, the second the next two, the third the last.
async fn start_split_vote(
    rig: &TestQuorum,
    request: impl Fn(&Quorum) -> QuorumRequest,
) -> Vec<(Quorum, QuorumAcquireFuture)> {
    let mut asking = Vec::new();
    for second_at in [2..5, 4..5, 0..0] {
        let others = rig.stores.iter().map(Store::as_another_process);
        let quorum = Store::quorum(others).unwrap();
        for (at, faults) in rig.faults.iter().enumerate() {
            let late = second_at.contains(&at);
            faults.set(
                "acquire",
                if late {
                    BackendFault::SlowCall(RUN_DELAY)
                } else {
                    BackendFault::SlowReply(REPLY_DELAY)
                },
                1,
            );
        }
        let mut acquire: QuorumAcquireFuture = Box::pin(request(&quorum).acquire());
        assert!(!poll_once(&mut acquire).await);
        asking.push((quorum, acquire));
    }
    let seen: Vec<_> = rig.faults.iter().map(|faults| faults.call_count("acquire")).collect();
    assert_eq!(seen, [3; 5], "all have asked all of them");
    asking
}

#[tokio::test(start_paused = true)]
async fn split_vote_grants_no_lock_and_releases_all_nodes() {
    let rig = TestQuorum::new(5);
    let started = Instant::now();
    let asking = start_split_vote(&rig, |quorum| quorum.lock("x").lease(LEASE)).await;
    // Each of the nodes has been taken, by one of the three.
    for answer in join_all(asking.into_iter().map(|(_, acquire)| acquire)).await {
        assert!(matches!(answer, Err(AcquireError::Busy(_))), "{answer:?}");
    }
    assert_eq!(started.elapsed(), REPLY_DELAY, "decided when the votes were known");
    rig.assert_all_free().await;
    assert!(rig.acquire().await.is_ok());
}

/// After pauses that are not the same for all of them.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_split_vote_acquire_in_succession() {
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        let rig = TestQuorum::new(5);
        let started = Instant::now();
        let asking =
            start_split_vote(&rig, |quorum| quorum.lock("x").lease(LEASE).wait(ACQUIRE_WAIT)).await;
        let inside = std::sync::atomic::AtomicUsize::new(0);
        let turns = asking.into_iter().map(|(_, acquire)| async {
            let guard = acquire.await.unwrap();
            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
            tokio::time::sleep(ms(20)).await;
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            let (fence, waited) = (guard.fence(), started.elapsed());
            assert_eq!(guard.release().await, ReleaseStatus::Released);
            (fence, waited)
        });
        let mut turns = join_all(turns).await;
        turns.sort_unstable_by_key(|(_, waited)| *waited);
        assert!(turns.is_sorted_by(|one, next| one.0 < next.0), "{turns:?}");
        longest = longest.max(turns[2].1);
        rig.assert_all_free().await;
    }
    println!(
        "figure: longest until all three of a split vote have had it {} ms",
        longest.as_millis()
    );
    // Far less than a lease, which would be its cost if votes were not given back.
    assert!(longest < LEASE, "{longest:?}");
}
