//! How the lock of a request ends: what the gate says, and what becomes of the lock.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    SECOND, free,
    seam::{enter, gate},
};
use crate::{
    gate::{Gate as _, Outcome, Verdict, fake::FakeView},
    lock::{LockGate, LockTicket},
    store::{Fault, faulty},
};

async fn pass(gate: &LockGate<()>) -> LockTicket {
    match enter(gate, &mut FakeView::new("POST")).await {
        Verdict::Pass(ticket) => ticket,
        _ => panic!("it is free"),
    }
}

/// How long the answer waits for a store that takes a second for a release.
async fn leaving_takes(set: impl FnOnce(LockGate<()>) -> LockGate<()>) -> Duration {
    let (store, faults) = faulty();
    let gate = set(gate(&store));
    let ticket = pass(&gate).await;
    faults.set("release", Fault::Slow(SECOND), 1);
    let asked = Instant::now();
    gate.leave(ticket, Outcome::Answered(200)).await;
    let took = asked.elapsed();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(faults.left("release"), 0);
    drop(free(&store).await);
    took
}

#[tokio::test(start_paused = true)]
async fn the_answer_waits_for_the_release_unless_it_is_in_the_background() {
    assert_eq!(leaving_takes(|gate| gate).await, SECOND);
    assert_eq!(leaving_takes(LockGate::release_in_background).await, Duration::ZERO);
}
