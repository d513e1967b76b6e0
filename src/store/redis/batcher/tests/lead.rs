//! Callers who take along what stands in the queue.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Call, DEADLINE, Field, arrived, begun, call, poll, settle};
use crate::{
    error::ErrorKind,
    store::redis::batcher::{BatchFault, CallBatcher},
};

/// A step that is only put, and a caller who leads it.
fn put_and_led(combiner: &Arc<CallBatcher<Field>>) -> (Call, Call) {
    let put = combiner.submit(1, Instant::now() + DEADLINE).expect("there is a runtime");
    (Box::pin(put), begun(combiner, 2))
}

#[tokio::test(start_paused = true)]
async fn a_caller_takes_along_what_nobody_has_come_for() {
    let (combiner, field) = Field::new();
    let (put, led) = put_and_led(&combiner);
    // No other task has run.
    assert_eq!(field.sent(), [vec![1, 2]]);
    settle().await;
    // Nor has the one that was called for them anything to do, nor do others go ahead.
    let third = begun(&combiner, 3);
    settle().await;
    assert_eq!(field.sent(), [vec![1, 2]]);
    field.arrive(2);
    assert_eq!((arrived(led).await, arrived(put).await), (2, 1));
    assert_eq!(arrived(third).await, 3);
    assert_eq!(field.sent(), [vec![1, 2], vec![3]]);
}

/// Behind a lock that was given back in the background the next call would take two ways instead of one.
#[tokio::test(start_paused = true)]
async fn a_caller_does_not_wait_for_what_nobody_waits_for() {
    let (combiner, field) = Field::new();
    let put = combiner.submit(1, Instant::now() + DEADLINE).expect("there is a runtime");
    settle().await;
    assert_eq!(field.sent(), [vec![1]], "it is under way, and not back");
    let second = begun(&combiner, 2);
    assert_eq!(field.sent(), [vec![1], vec![2]], "it goes at once, behind it");
    // For this one somebody waits: the others have company, and so has what is put.
    let third = begun(&combiner, 3);
    let fourth = combiner.submit(4, Instant::now() + DEADLINE).expect("there is a runtime");
    settle().await;
    assert_eq!(field.sent(), [vec![1], vec![2]]);
    field.arrive(3);
    assert_eq!((arrived(second).await, arrived(third).await), (2, 3));
    assert_eq!((put.await.unwrap().first, fourth.await.unwrap().first), (1, 4));
    assert_eq!(field.sent(), [vec![1], vec![2], vec![3, 4]]);
}

#[tokio::test(start_paused = true)]
async fn those_who_were_led_go_on_without_their_leader() {
    let (combiner, field) = Field::new();
    let (put, led) = put_and_led(&combiner);
    let third = begun(&combiner, 3);
    drop(led);
    settle().await;
    // In their order; and nothing for one who is gone.
    assert_eq!(field.sent(), [vec![1, 2], vec![1, 3]]);
    field.arrive(2);
    assert_eq!(put.await.unwrap().attempts, 2);
    assert_eq!(arrived(third).await, 3);
}

#[tokio::test(start_paused = true)]
async fn what_a_leader_meets_is_met_by_all() {
    for fault in
        [|| BatchFault::NoScript, || BatchFault::NotExecuted, || BatchFault::ConnectionLost]
    {
        let (combiner, field) = Field::new();
        field.meets(fault());
        let (put, led) = put_and_led(&combiner);
        field.arrive(4);
        let (led, put) = (led.await.unwrap(), put.await.unwrap());
        assert_eq!((put.first, led.first), (1, 2));
        assert_eq!(field.sent()[..2], [vec![1, 2], vec![1, 2]]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_waits_no_longer_than_it_may() {
    let (combiner, field) = Field::new();
    let put = combiner.submit(1, Instant::now() + DEADLINE * 2).expect("there is a runtime");
    let led = begun(&combiner, 2);
    let since = Instant::now();
    assert_eq!(led.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(since.elapsed(), DEADLINE);
    // The other one has more time, and another flight.
    field.arrive(2);
    assert_eq!(put.await.unwrap().first, 1);
}

/// They would hear nothing while the leader is not polled.
#[tokio::test(start_paused = true)]
async fn callers_are_not_led() {
    let (combiner, field) = Field::new();
    let put = combiner.submit(1, Instant::now() + DEADLINE).expect("there is a runtime");
    field.close(true);
    let second = begun(&combiner, 2);
    field.close(false);
    let third = begun(&combiner, 3);
    assert!(field.sent().is_empty());
    settle().await;
    assert_eq!(field.sent(), [vec![1, 2, 3]]);
    field.arrive(1);
    assert_eq!((arrived(second).await, arrived(third).await), (2, 3));
    put.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_a_way_nobody_leads() {
    let (combiner, field) = Field::new();
    field.close(true);
    let put = combiner.submit(1, Instant::now() + DEADLINE).expect("there is a runtime");
    let mut led = call(&combiner, 2);
    assert!(poll(&mut led).is_none());
    assert_eq!(led.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(put.await.is_err());
    assert!(field.sent().is_empty());
}
