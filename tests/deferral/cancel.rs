//! Row 18: cancelling what runs, twice, and in the moment in which it starts or ends.

use std::time::Duration;

use futures_util::future::join_all;
use lockgate_tests::Framework;

use super::{steady, with_web};

#[tokio::test]
async fn what_runs_is_not_cancelled_and_twice_is_once() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let worker = fleet.join(steady(Framework::Actix)).await;
    let lock = fleet.hold("7").await;
    let runs = fleet.later(web, "7").wish("ms=4000").accepted().await;
    let waits = fleet.later(web, "7").accepted().await;
    lock.release().await;
    fleet.started(&runs).await;
    assert_eq!(fleet.cancel(web, &runs).await, 409);
    assert_eq!(fleet.see(web, &runs).await.state, "running");
    let both = join_all([web, worker].map(|node| fleet.cancel(node, &waits))).await;
    assert_eq!(both, [204, 204]);
    assert_eq!(fleet.see(web, &waits).await.state, "cancelled");
    assert_eq!(fleet.outcome(web, &runs).await.state, "done");
    assert_eq!(fleet.cancel(web, &runs).await, 409);
    assert_eq!(fleet.settle(web).await.is_good().runs, 1);
}

/// Whoever was first has won, and both the answer and the status say so.
#[tokio::test]
async fn cancelling_races_the_run() {
    let (mut fleet, web) = with_web(Framework::Actix).await;
    let _worker = fleet.join(steady(Framework::Axum)).await;
    let mut outcomes = [0, 0];
    for round in 0..60_u64 {
        let resource = (round % 4).to_string();
        let lock = fleet.hold(&resource).await;
        let id = fleet.later(web, &resource).wish("ms=1").accepted().await;
        let behind = fleet.later(web, &resource).accepted().await;
        let cancelled = match round {
            0 => {
                let cancelled = fleet.cancel(web, &id).await;
                lock.release().await;
                cancelled
            }
            1 => {
                lock.release().await;
                fleet.started(&id).await;
                fleet.cancel(web, &id).await
            }
            _ => {
                // To make the connection for it takes a while.
                let release = async {
                    let later = Duration::from_micros(100 * (round % 20) * (round % 2));
                    tokio::time::sleep(later).await;
                    lock.release().await
                };
                futures_util::future::join(release, fleet.cancel(web, &id)).await.1
            }
        };
        let state = fleet.outcome(web, &id).await.state;
        match cancelled {
            204 => assert_eq!(state, "cancelled", "round {round}"),
            409 => assert_eq!(state, "done", "round {round}"),
            other => panic!("round {round}: {other}"),
        }
        assert_eq!(fleet.runs_of(&id).len(), usize::from(cancelled == 409), "round {round}");
        outcomes[usize::from(cancelled == 409)] += 1;
        assert_eq!(fleet.outcome(web, &behind).await.state, "done", "round {round}");
    }
    // The first round is won by the one, the second by the other.
    assert!(outcomes.iter().all(|won| *won > 0), "{outcomes:?}");
    println!("figure: fewest races that cancelling wins, of 60: {}", outcomes[0]);
    println!("figure: fewest races that the run wins, of 60: {}", outcomes[1]);
    // If one of them always won there was no race.
    assert!(outcomes.iter().all(|wins| *wins > 0), "{outcomes:?}");
    fleet.settle(web).await.is_good();
}
