//! Votes that are split: two nodes for one, two for another, one for a third. Nobody has a majority, and whoever was
//! granted something gives it back.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::{ReleaseStatus, quorum::QuorumRequest};

/// Until a call runs that comes second, and from then until it is answered.
const LATE: Duration = Duration::from_millis(2);

/// Until a call is answered that has run at once: by then the others have run too.
const ANSWER: Duration = Duration::from_millis(10);

/// Longer than three turns, with their pauses.
const WAIT: Duration = Duration::from_secs(30);

type Acquiring = Pin<Box<dyn Future<Output = Result<QuorumGuard, AcquireError>> + Send>>;

/// Three processes ask at once, and have voted for themselves in this order: the first one is granted the first two
/// nodes, the second the next two, the third the last.
async fn split(rig: &Rig, request: impl Fn(&Quorum) -> QuorumRequest) -> Vec<(Quorum, Acquiring)> {
    let mut asking = Vec::new();
    for second_at in [2..5, 4..5, 0..0] {
        let others = rig.stores.iter().map(Store::as_another_process);
        let quorum = Store::quorum(others).unwrap();
        for (at, faults) in rig.faults.iter().enumerate() {
            let late = second_at.contains(&at);
            faults.set("acquire", if late { Fault::Late(LATE) } else { Fault::Slow(ANSWER) }, 1);
        }
        let mut acquire: Acquiring = Box::pin(request(&quorum).acquire());
        assert!(!is_done(&mut acquire).await);
        asking.push((quorum, acquire));
    }
    let seen: Vec<_> = rig.faults.iter().map(|faults| faults.seen("acquire")).collect();
    assert_eq!(seen, [3; 5], "all have asked all of them");
    asking
}

#[tokio::test(start_paused = true)]
async fn of_a_split_vote_nobody_has_a_majority_and_all_is_given_back() {
    let rig = Rig::new(5);
    let started = Instant::now();
    let asking = split(&rig, |quorum| quorum.lock("x").lease(LEASE)).await;
    // Each of the nodes has been taken, by one of the three.
    for answer in join_all(asking.into_iter().map(|(_, acquire)| acquire)).await {
        assert!(matches!(answer, Err(AcquireError::Busy(_))), "{answer:?}");
    }
    assert_eq!(started.elapsed(), ANSWER, "decided when the votes were known");
    rig.is_clean().await;
    assert!(rig.acquire().await.is_ok());
}

/// After pauses that are not the same for all of them.
#[tokio::test(start_paused = true)]
async fn whose_vote_was_split_have_it_one_after_the_other() {
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        let rig = Rig::new(5);
        let started = Instant::now();
        let asking = split(&rig, |quorum| quorum.lock("x").lease(LEASE).wait(WAIT)).await;
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
        rig.is_clean().await;
    }
    println!(
        "figure: longest until all three of a split vote have had it {} ms",
        longest.as_millis()
    );
    // Far less than a lease, which would be its cost if votes were not given back.
    assert!(longest < LEASE, "{longest:?}");
}
