//! Row 18: cancellation at the moment at which a request starts or ends.

use std::time::Duration;

use lockgate_tests::WebFramework;

use super::{long_lease_setup, start_fleet_without_worker};

/// Cancellation and run start have one winner, on which the response and the status agree.
#[tokio::test]
async fn cancel_during_run_start_has_one_winner() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Actix).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    // Wins of each side, and the delay of the release after the cancellation in us. The delay
    // shifts against the winner of each round.
    let (mut wins, mut release_delay_us) = ([0, 0], 0_i64);
    for round in 0..60_u64 {
        let resource = (round % 4).to_string();
        let lock = fleet.hold_lock(&resource).await;
        let id =
            fleet.deferrable_request(web, &resource).instruct_handler("ms=1").send_accepted().await;
        let next_job = fleet.deferrable_request(web, &resource).send_accepted().await;
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
                    pause(release_delay_us).await;
                    lock.release().await
                };
                let cancel = async {
                    pause(-release_delay_us).await;
                    fleet.cancel_job(web, &id).await
                };
                futures_util::future::join(release, cancel).await.1
            }
        };
        let state = fleet.wait_for_outcome(web, &id).await.state;
        match cancelled {
            204 => assert_eq!(state, "cancelled", "round {round}"),
            409 => assert_eq!(state, "done", "round {round}"),
            status => panic!("round {round}: {status}"),
        }
        assert_eq!(fleet.runs_of(&id).len(), usize::from(cancelled == 409), "round {round}");
        assert_eq!(fleet.wait_for_outcome(web, &next_job).await.state, "done", "round {round}");
        match (round, cancelled) {
            // Rounds 0 and 1 are sequential.
            (0, _) => assert_eq!(cancelled, 204),
            (1, _) => assert_eq!(cancelled, 409),
            (_, 204) => (wins[0], release_delay_us) = (wins[0] + 1, release_delay_us - 300),
            (_, _) => (wins[1], release_delay_us) = (wins[1] + 1, release_delay_us + 300),
        }
    }
    println!("figure: fewest races that cancelling wins, of 58: {}", wins[0]);
    println!("figure: fewest races that the run wins, of 58: {}", wins[1]);
    // If one side always won, there was no race.
    assert!(wins.iter().all(|wins| *wins > 0), "{wins:?}");
    fleet.finish_and_check(web).await.assert_no_violations();
}
