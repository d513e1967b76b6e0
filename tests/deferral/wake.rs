//! Rows 11 and 12: nobody is told, and the holder does not come back.

use std::time::Instant;

use futures_util::future::join_all;
use lockgate_tests::Framework;

use super::{BOTH, SECOND, short, with_web};

/// A sign of life of the worker, at which it looks everywhere, and what a machine takes.
const LATEST: std::time::Duration = std::time::Duration::from_secs(8);

#[tokio::test]
async fn a_message_that_is_lost_costs_a_look() {
    join_all(BOTH.map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        let worker = fleet.join(short(framework)).await;
        let lock = fleet.hold("7").await;
        let ids = [
            fleet.later(web, "7").accepted().await,
            fleet.later(web, "7").put().wish("fail=1").accepted().await,
            fleet.later(web, "7").accepted().await,
        ];
        fleet.proxy(worker).lose_messages(true);
        fleet.proxy(web).lose_messages(true);
        let released = Instant::now();
        lock.release().await;
        fleet.started(&ids[0]).await;
        let waited = released.elapsed();
        println!("figure: longest wait without a message {} ms", waited.as_millis());
        assert!(waited < LATEST, "{waited:?}");
        assert!(fleet.proxy(worker).lost() > 0, "no message was lost");
        for id in &ids {
            assert_eq!(fleet.outcome(web, id).await.state, "done");
        }
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.repeated), (4, 1));
    }))
    .await;
}

#[tokio::test]
async fn a_subscriber_that_is_cut_off_costs_a_look() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let _worker = fleet.join(short(Framework::Actix)).await;
    let lock = fleet.hold("7").await;
    let id = fleet.later(web, "7").accepted().await;
    let _ = fleet.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let released = Instant::now();
    lock.release().await;
    fleet.started(&id).await;
    let waited = released.elapsed();
    println!("figure: longest wait without a message {} ms", waited.as_millis());
    assert!(waited < LATEST, "{waited:?}");
    assert_eq!(fleet.settle(web).await.is_good().runs, 1);
}

/// Also one whose death nobody was told of: the end of its lease is known to the worker.
#[tokio::test]
async fn a_holder_that_dies_costs_its_lease() {
    join_all([false, true].map(|deaf| async move {
        let (mut fleet, web) = with_web(Framework::Actix).await;
        let holder = fleet.join(short(Framework::Axum).web_only()).await;
        let worker = fleet.join(short(Framework::Actix)).await;
        let ship = fleet.later(holder, "7").ship().wish("ms=60000");
        let ship = tokio::spawn(ship.send());
        while fleet.runs().is_empty() {
            tokio::time::sleep(SECOND / 100).await;
        }
        let ids = [fleet.later(web, "7").accepted().await, fleet.later(web, "7").accepted().await];
        fleet.proxy(worker).lose_messages(deaf);
        let killed = Instant::now();
        fleet.kill(holder).await;
        fleet.started(&ids[0]).await;
        // Its lease of a second, at which the worker looks by itself.
        let most = if deaf { LATEST } else { 4 * SECOND };
        let (waited, deaf) = (killed.elapsed(), if deaf { "without a message" } else { "told" });
        println!("figure: longest wait behind a dead holder, {deaf} {} ms", waited.as_millis());
        assert!(waited < most, "{waited:?}");
        let _ = ship.await.expect("the client does not panic");
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.direct), (2, 1));
    }))
    .await;
}
