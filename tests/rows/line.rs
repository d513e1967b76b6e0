//! Waiting in line.

use lockgate_tests::Case;

use super::{ROUNDS, left_at_once, line_is, lock::busy, mostly_at_once, passes_at_once};

/// Three processes: each has one place in the line. (Who waits in the holder's own process has none: it is
/// handed the lock there.)
pub(crate) async fn waiters_pass_in_the_order_they_came(case: Case) {
    let (store, holder, a) = (case.store().await, case.site().await, case.site().await);
    let b = case.plan().await.framework(case.framework.other());
    let (b, c) = (b.start().await, case.site().await);
    let hold = holder.hold("/orders/7/pay?tag=holder").await;
    let first = b.post("/orders/7/ship?tag=first").spawn();
    line_is(&store, "7", 1).await;
    let second = c.post("/orders/7/ship?tag=second").spawn();
    line_is(&store, "7", 2).await;
    let third = a.post("/orders/7/ship?tag=third").spawn();
    line_is(&store, "7", 3).await;
    busy(a.post("/orders/7/pay").send().await);
    let _ = hold.let_go().await.expect(200);
    for waiter in [first, second, third] {
        let _ = waiter.answer().await.expect(200);
    }
    assert_eq!(case.desk.tags(), ["holder", "first", "second", "third"]);
}

pub(crate) async fn all_waiters_pass_one_by_one(case: Case) {
    let (a, b) = (case.site().await, case.site().await);
    let hold = a.hold("/orders/7/pay").await;
    let sites = [&a, &b];
    let waiters: Vec<_> = (0..16).map(|n| sites[n % 2].post("/orders/7/ship").spawn()).collect();
    let _ = hold.let_go().await.expect(200);
    for waiter in waiters {
        let _ = waiter.answer().await.expect(200);
    }
    let fences: Vec<_> = case.desk.ran().into_iter().map(|ran| ran.fence).collect();
    assert_eq!(fences.len(), 17);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn who_waits_too_long_is_told_so(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let problem = busy(site.post("/orders/7/hurry").send().await);
    assert!(problem["waited_ms"].as_u64().is_some_and(|ms| ms >= 100), "{problem}");
    let problem = busy(site.post("/orders/7/pay").send().await);
    assert!(problem["waited_ms"].is_null(), "nobody waited: {problem}");
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/orders/7/hurry").send().await.expect(200);
}

pub(crate) async fn a_waiter_that_leaves_keeps_no_place(case: Case) {
    let (store, holder, site) = (case.store().await, case.site().await, case.site().await);
    let hold = holder.hold("/orders/7/pay").await;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let waiter = site.post("/orders/7/ship?tag=gone").spawn();
        line_is(&store, "7", 1).await;
        waiter.disconnect().await;
        took.push(left_at_once(&store, "7", 0).await);
    }
    mostly_at_once("a place is given back", took);
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    assert_eq!(case.desk.tags(), ["", ""]);
}

pub(crate) async fn a_second_waiter_passes_when_the_first_has_left(case: Case) {
    let (store, holder) = (case.store().await, case.site().await);
    let (a, b) = (case.site().await, case.site().await);
    let hold = holder.hold("/orders/7/pay").await;
    let gone = a.post("/orders/7/ship?tag=gone").spawn();
    line_is(&store, "7", 1).await;
    let second = b.post("/orders/7/ship?tag=second").spawn();
    line_is(&store, "7", 2).await;
    gone.disconnect().await;
    left_at_once(&store, "7", 1).await;
    let _ = hold.let_go().await.expect(200);
    let _ = second.answer().await.expect(200);
    passes_at_once(&a, "7").await;
    assert_eq!(case.desk.tags(), ["", "second", ""]);
}
