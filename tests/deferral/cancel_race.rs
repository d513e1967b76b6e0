//! Row 18: cancellation at the moment at which a request starts or ends.

use std::time::Duration;

use lockgate_tests::WebFramework;

use super::{long_lease_setup, start_fleet_without_worker};

/// Whoever was first has won, and both the answer and the status say so.
#[tokio::test]
async fn cancel_during_run_start_has_one_winner() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Actix).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    // Of the races; and by how much the release is later than the other, in us: whoever has won begins later.
    let (mut wins, mut later) = ([0, 0], 0_i64);
    for round in 0..60_u64 {
        let resource = (round % 4).to_string();
        let lock = fleet.hold_lock(&resource).await;
        let id =
            fleet.deferrable_request(web, &resource).instruct_handler("ms=1").send_accepted().await;
        let behind = fleet.deferrable_request(web, &resource).send_accepted().await;
        let cancelled = match round {
            0 => {
                let cancelled = fleet.cancel_job(web, &id).await;
                lock.release().await;
                cancelled
            }
            1 => {
                lock.release().await;
                fleet.wait_for_run_start(&id).await;
                fleet.cancel_job(web, &id).await
            }
            _ => {
                let pause = |us: i64| {
                    tokio::time::sleep(Duration::from_micros(u64::try_from(us).unwrap_or_default()))
                };
                let release = async {
                    pause(later).await;
                    lock.release().await
                };
                let cancel = async {
                    pause(-later).await;
                    fleet.cancel_job(web, &id).await
                };
                futures_util::future::join(release, cancel).await.1
            }
        };
        let state = fleet.wait_for_outcome(web, &id).await.state;
        match cancelled {
            204 => assert_eq!(state, "cancelled", "round {round}"),
            409 => assert_eq!(state, "done", "round {round}"),
            other => panic!("round {round}: {other}"),
        }
        assert_eq!(fleet.runs_of(&id).len(), usize::from(cancelled == 409), "round {round}");
        assert_eq!(fleet.wait_for_outcome(web, &behind).await.state, "done", "round {round}");
        match (round, cancelled) {
            // That is no race.
            (0, _) => assert_eq!(cancelled, 204),
            (1, _) => assert_eq!(cancelled, 409),
            (_, 204) => (wins[0], later) = (wins[0] + 1, later - 300),
            (_, _) => (wins[1], later) = (wins[1] + 1, later + 300),
        }
    }
    println!("figure: fewest races that cancelling wins, of 58: {}", wins[0]);
    println!("figure: fewest races that the run wins, of 58: {}", wins[1]);
    // If one of them always won there was no race.
    assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
    fleet.finish_and_check(web).await.assert_no_violations();
}
