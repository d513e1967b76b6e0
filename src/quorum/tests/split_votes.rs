//! Split votes: two processes get two nodes each, and a third gets one. No process has a majority,
//! so each releases its votes.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::{ReleaseStatus, quorum::QuorumRequest};

/// Delay of the losing calls at each node, before they run and before their reply.
const RUN_DELAY: Duration = Duration::from_millis(2);

/// Delay of the reply to a call that has run at once. By then the other calls have run.
const REPLY_DELAY: Duration = Duration::from_millis(10);

/// More than three attempts with their pauses.
const ACQUIRE_WAIT: Duration = Duration::from_secs(30);

type QuorumAcquireFuture = Pin<Box<dyn Future<Output = Result<QuorumGuard, AcquireError>> + Send>>;

/// Starts three acquires at once. The first gets the first two nodes, the second the next two, the
/// third the last.
async fn start_split_vote(
    rig: &TestQuorum,
    request: impl Fn(&Quorum) -> QuorumRequest,
) -> Vec<(Quorum, QuorumAcquireFuture)> {
    let mut acquires = Vec::new();
    for late_nodes in [2..5, 4..5, 0..0] {
        let others = rig.stores.iter().map(Store::as_another_process);
        let quorum = Store::quorum(others).unwrap();
        for (node, faults) in rig.faults.iter().enumerate() {
            let is_late = late_nodes.contains(&node);
            faults.set(
                "acquire",
                if is_late {
                    BackendFault::SlowCall(RUN_DELAY)
                } else {
                    BackendFault::SlowReply(REPLY_DELAY)
                },
                1,
            );
        }
        let mut acquire: QuorumAcquireFuture = Box::pin(request(&quorum).acquire());
        assert!(!poll_once(&mut acquire).await);
        acquires.push((quorum, acquire));
    }
    let call_counts: Vec<_> =
        rig.faults.iter().map(|faults| faults.call_count("acquire")).collect();
    assert_eq!(call_counts, [3; 5], "all have asked all of them");
    acquires
}

#[tokio::test(start_paused = true)]
async fn split_vote_grants_no_lock_and_releases_all_nodes() {
    let rig = TestQuorum::new(5);
    let started = Instant::now();
    let acquires = start_split_vote(&rig, |quorum| quorum.lock("x").lease(LEASE)).await;
    // Each node has granted one of the three.
    for result in join_all(acquires.into_iter().map(|(_, acquire)| acquire)).await {
        assert!(matches!(result, Err(AcquireError::Busy(_))), "{result:?}");
    }
    assert_eq!(started.elapsed(), REPLY_DELAY, "the votes decide at once");
    rig.assert_all_free().await;
    assert!(rig.acquire().await.is_ok());
}

/// The pauses before the next attempts are random.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_split_vote_acquire_in_succession() {
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        let rig = TestQuorum::new(5);
        let started = Instant::now();
        let acquires =
            start_split_vote(&rig, |quorum| quorum.lock("x").lease(LEASE).wait(ACQUIRE_WAIT)).await;
        let holders = std::sync::atomic::AtomicUsize::new(0);
        let holds = acquires.into_iter().map(|(_, acquire)| async {
            let guard = acquire.await.unwrap();
            assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
            tokio::time::sleep(ms(20)).await;
            holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            let (fence, elapsed) = (guard.fence(), started.elapsed());
            assert_eq!(guard.release().await, ReleaseStatus::Released);
            (fence, elapsed)
        });
        let mut holds = join_all(holds).await;
        holds.sort_unstable_by_key(|(_, elapsed)| *elapsed);
        assert!(holds.is_sorted_by(|one, next| one.0 < next.0), "{holds:?}");
        longest = longest.max(holds[2].1);
        rig.assert_all_free().await;
    }
    println!(
        "figure: longest until all three of a split vote have had it {} ms",
        longest.as_millis()
    );
    // Far less than a lease, which a split vote would cost if the votes were not released.
    assert!(longest < LEASE, "{longest:?}");
}
