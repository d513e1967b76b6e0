//! Row 10: the server is out of memory. A request that got 202 is stored; one that cannot be stored
//! gets an error.

use std::time::Duration;

use lockgate_tests::{WebFramework, ledger::SendOutcome};

use super::{long_lease_setup, start_fleet_without_worker};

#[tokio::test]
async fn server_out_of_memory_refuses_instead_of_accepting() {
    for framework in super::BOTH_FRAMEWORKS {
        let (mut fleet, web) = start_fleet_without_worker(framework).await;
        fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
        let lock = fleet.hold_lock("7").await;
        let before = fleet.deferrable_request(web, "7").send_accepted().await;
        fleet.record_disturbance_for(None, Duration::from_secs(10));
        fleet.send_server_command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        let outcome = fleet.deferrable_request(web, "7").send().await;
        fleet.send_server_command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        assert!(
            matches!(outcome, SendOutcome::Refused(409 | 503, _)),
            "{framework:?}: {outcome:?}"
        );
        let after = fleet.deferrable_request(web, "7").send_accepted().await;
        lock.release().await;
        for id in [before, after] {
            assert_eq!(fleet.wait_for_outcome(web, &id).await.state, "done");
        }
        let stats = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!(stats.accepted, 2);
    }
}
