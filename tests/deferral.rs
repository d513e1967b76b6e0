//! Faults of deferral.

use std::path::Path;

use lockgate_tests::{
    Framework,
    ledger::{Fleet, Setup},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockgate-faults");

#[tokio::test]
async fn a_fleet_of_both_frameworks_serves_one_queue() {
    let mut fleet = Fleet::new(Path::new(PROGRAM)).await;
    let axum = fleet.join(Setup::new(Framework::Axum)).await;
    let actix = fleet.join(Setup::new(Framework::Actix)).await;
    let lock = fleet.hold("7").await;
    for node in [axum, actix, axum, actix] {
        fleet.later(node, "7").accepted().await;
    }
    lock.release().await;
    let looked = fleet.settle(axum).await.is_good();
    assert_eq!((looked.runs, looked.ordered), (4, 3));
}
