//! Waits in the queue of a lock.

use lockgate_tests::TestCase;

use super::{
    ROUND_COUNT, assert_median_delay, lock::expect_busy, measure_acquire, measure_queue_leave,
    wait_for_queue_length,
};

/// Three processes with one queue entry each. (A waiter in the holder's process has no entry: it
/// gets the lock by handover.)
pub(crate) async fn waiters_are_served_in_order_of_arrival(case: TestCase) {
    let (store, holder, a) =
        (case.new_store().await, case.start_site().await, case.start_site().await);
    let b = case.site_builder().await.framework(case.framework.other());
    let (b, c) = (b.start().await, case.start_site().await);
    let hold = holder.post_held("/orders/7/pay?tag=holder").await;
    let first = b.post("/orders/7/ship?tag=first").spawn();
    wait_for_queue_length(&store, "7", 1).await;
    let second = c.post("/orders/7/ship?tag=second").spawn();
    wait_for_queue_length(&store, "7", 2).await;
    let third = a.post("/orders/7/ship?tag=third").spawn();
    wait_for_queue_length(&store, "7", 3).await;
    expect_busy(a.post("/orders/7/pay").send().await);
    let _ = hold.finish().await.expect_status(200);
    for waiter in [first, second, third] {
        let _ = waiter.response().await.expect_status(200);
    }
    assert_eq!(case.handler.run_tags(), ["holder", "first", "second", "third"]);
}

pub(crate) async fn waiters_are_served_one_at_a_time(case: TestCase) {
    let (a, b) = (case.start_site().await, case.start_site().await);
    let hold = a.post_held("/orders/7/pay").await;
    let sites = [&a, &b];
    let waiters: Vec<_> = (0..16).map(|n| sites[n % 2].post("/orders/7/ship").spawn()).collect();
    let _ = hold.finish().await.expect_status(200);
    for waiter in waiters {
        let _ = waiter.response().await.expect_status(200);
    }
    let fences: Vec<_> = case.handler.completed_runs().into_iter().map(|ran| ran.fence).collect();
    assert_eq!(fences.len(), 17);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn wait_timeout_is_reported(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let problem = expect_busy(site.post("/orders/7/hurry").send().await);
    assert!(problem["waited_ms"].as_u64().is_some_and(|ms| ms >= 100), "{problem}");
    let problem = expect_busy(site.post("/orders/7/pay").send().await);
    assert!(problem["waited_ms"].is_null(), "the request did not wait: {problem}");
    let _ = hold.finish().await.expect_status(200);
    let _ = site.post("/orders/7/hurry").send().await.expect_status(200);
}

pub(crate) async fn cancelled_waiter_leaves_the_queue(case: TestCase) {
    let (store, holder, site) =
        (case.new_store().await, case.start_site().await, case.start_site().await);
    let hold = holder.post_held("/orders/7/pay").await;
    let mut delays = Vec::new();
    for _ in 0..ROUND_COUNT {
        let waiter = site.post("/orders/7/ship?tag=gone").spawn();
        wait_for_queue_length(&store, "7", 1).await;
        waiter.disconnect().await;
        delays.push(measure_queue_leave(&store, "7", 0).await);
    }
    assert_median_delay("a queue entry is removed", delays);
    let _ = hold.finish().await.expect_status(200);
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["", ""]);
}

pub(crate) async fn second_waiter_is_served_after_first_leaves(case: TestCase) {
    let (store, holder) = (case.new_store().await, case.start_site().await);
    let (a, b) = (case.start_site().await, case.start_site().await);
    let hold = holder.post_held("/orders/7/pay").await;
    let first = a.post("/orders/7/ship?tag=gone").spawn();
    wait_for_queue_length(&store, "7", 1).await;
    let second = b.post("/orders/7/ship?tag=second").spawn();
    wait_for_queue_length(&store, "7", 2).await;
    first.disconnect().await;
    measure_queue_leave(&store, "7", 1).await;
    let _ = hold.finish().await.expect_status(200);
    let _ = second.response().await.expect_status(200);
    measure_acquire(&a, "7").await;
    assert_eq!(case.handler.run_tags(), ["", "second", ""]);
}
