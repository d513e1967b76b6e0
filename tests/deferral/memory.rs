//! Row 10: no memory left. Who is told 202 is stored, and who can't be stored is told so.

use std::time::Duration;

use lockgate_tests::{Framework, ledger::Told};

use super::{steady, with_web};

#[tokio::test]
async fn a_full_server_refuses_before_it_says_202() {
    for framework in super::BOTH {
        let (mut fleet, web) = with_web(framework).await;
        fleet.join(steady(Framework::Axum)).await;
        let held = fleet.hold("7").await;
        let before = fleet.later(web, "7").accepted().await;
        fleet.trouble_for(None, Duration::from_secs(10));
        fleet.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
        let told = fleet.later(web, "7").send().await;
        fleet.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        assert!(matches!(told, Told::Refused(409 | 503, _)), "{framework:?}: {told:?}");
        let after = fleet.later(web, "7").accepted().await;
        held.release().await;
        for id in [before, after] {
            assert_eq!(fleet.outcome(web, &id).await.state, "done");
        }
        let looked = fleet.settle(web).await.is_good();
        assert_eq!(looked.accepted, 2);
    }
}
