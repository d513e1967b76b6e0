//! Row 5: the server is killed, and comes back with its log of commands, or without.

use std::{path::Path, time::Instant};

use lockgate_tests::{
    Framework, Server, eventually,
    ledger::{Fleet, Told},
};

use super::{PROGRAM, SECOND, steady};

/// All that was accepted runs. A process that is killed leaves to its kernel what it has written, so also a log
/// that is put on disk once a second has all of it; what a machine that dies loses is a second.
#[tokio::test]
async fn a_server_that_is_killed_keeps_what_was_accepted() {
    let mut fleet = Fleet::on(Path::new(PROGRAM), Server::with_log("everysec").await).await;
    for framework in super::BOTH {
        fleet.join(steady(framework)).await;
    }
    let held = fleet.hold("7").await;
    for n in 0..20 {
        let later = fleet.later(n % 2, "7");
        (if n % 3 == 0 { later.put() } else { later }).accepted().await;
    }
    // The processes have a deadline of 5 s, and wait through it.
    fleet.trouble_for(None, 20 * SECOND);
    fleet.server.kill();
    let killed = Instant::now();
    fleet.server.restart().await;
    held.release().await;
    let (web, shown) = (0, fleet.later(0, "8").put());
    shown.send().await;
    let looked = fleet.settle(web).await.is_good();
    println!("figure: all done after {} ms", killed.elapsed().as_millis());
    assert!(looked.accepted >= 20, "{looked:?}");
}

/// What a server without a log forgets is gone, and says so; new requests are taken and run.
#[tokio::test]
async fn a_server_that_forgets_takes_new_requests() {
    let mut fleet = Fleet::new(Path::new(PROGRAM)).await;
    fleet.join(steady(Framework::Axum)).await;
    let held = fleet.hold("7").await;
    let gone = fleet.later(0, "7").accepted().await;
    fleet.server.kill();
    fleet.server.restart().await;
    drop(held);
    eventually("the status to be told", async || fleet.see(0, &gone).await.state.is_empty()).await;
    let held = fleet.hold("7").await;
    let mut told = Told::Nothing;
    eventually("new requests to be taken", async || {
        told = fleet.later(0, "7").put().send().await;
        matches!(told, Told::Accepted(_))
    })
    .await;
    let Told::Accepted(id) = told else { panic!("{told:?}") };
    held.release().await;
    assert_eq!(fleet.outcome(0, &id).await.state, "done");
    fleet.leave();
}
