//! Locks: which requests exclude each other.

use std::time::Duration;

use lockgate::{
    Key, LockLoss, Store,
    admin::{Operator, Permission},
    defer::{JobCursor, JobFilter, JobGroup},
    lock::LockInspection,
};
use lockgate_tests::{TestCase, TestResponse, eventually, with_timeout};

use super::{assert_no_token, expect_accepted, response_fence};

/// Expects a busy response with all promised headers and members.
#[track_caller]
pub(super) fn expect_busy(answer: TestResponse) -> serde_json::Value {
    let answer = answer.expect_status(409);
    // At most the remaining lease: a lease ends by itself even if the holder crashes.
    assert!(answer.retry_after_seconds() <= 10, "{answer:?}");
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:busy");
    assert_no_token(&answer, "");
    problem
}

pub(crate) async fn busy_lock_is_answered_with_409(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    expect_busy(other.delete("/orders/7/pay").send().await);
    let _ = site.post("/orders/8/pay").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    let _ = other.post("/orders/7/pay").send().await.expect_status(200);
}

pub(crate) async fn routes_share_the_lock_of_a_parameter(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/orders/7/hurry").send().await);
    expect_busy(site.post("/nested/7").send().await);
    let _ = hold.finish().await.expect_status(200);
    let hold = site.post_held("/nested/7").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    let _ = hold.finish().await.expect_status(200);
}

/// The scope `a:b` with the value `c` differs from the scope `a` with the value `b:c`.
pub(crate) async fn lock_scopes_are_separate(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let user = site.post_held("/users/7").await;
    expect_busy(site.post("/users/7").send().await);
    let _ = user.finish().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    let first_hold = site.post_held("/ab/c").await;
    let second_hold = site.post_held("/a/b:c").await;
    expect_busy(site.post("/a/b%3Ac").send().await);
    let _ = first_hold.finish().await.expect_status(200);
    let _ = second_hold.finish().await.expect_status(200);
}

pub(crate) async fn header_can_name_the_lock(case: TestCase) {
    let site = case.start_site().await;
    let post = || site.post("/account");
    let _ = post().send().await.expect_status(400).problem_document();
    let twice = post().header("x-account", "a").header("x-account", "a");
    let _ = twice.send().await.expect_status(400).problem_document();
    let hold = site.send_held(post().header("x-account", "a"), "/account").await;
    expect_busy(post().header("X-Account", "a").send().await);
    let _ = post().header("x-account", "b").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn nested_layers_of_one_key_do_not_block_each_other(case: TestCase) {
    let site = case.start_site().await;
    let first = site.post("/nested/7").send().await.expect_status(200);
    // The outer layer releases the lock, once.
    let second = site.post("/nested/7").send().await.expect_status(200);
    assert!(response_fence(&second) > response_fence(&first));
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
}

/// Another process asks. The pattern is shown, and never the path.
pub(crate) async fn operators_see_each_holder_and_its_route(case: TestCase) {
    let (site, operator) = (case.start_site().await, case.new_store().await);
    let hold = site.post_held("/orders/7/pay").await;
    let lock = inspect_with_answers(&operator, Key::path_param("id", "7")).await;
    let [holder] = &lock.holders[..] else { panic!("one holder: {lock:?}") };
    assert_eq!(holder.route.as_deref(), Some("POST /orders/{id}/pay"));
    assert_eq!((holder.pid, holder.is_run), (Some(std::process::id()), Some(false)));
    assert!(lock.to_string().contains(" in POST /orders/{id}/pay for "), "{lock}");
    let fence = response_fence(&hold.finish().await.expect_status(200));
    assert_eq!(holder.fence, Some(fence));

    let readers = [site.store(), site.store(), &case.new_store().await].map(|store| {
        let request = store.lock("catalog").shared();
        async move { request.acquire().await.expect("readers share it") }
    });
    let readers = futures_util::future::join_all(readers).await;
    let mut fences: Vec<_> = readers.iter().map(lockgate::LockGuard::fence).collect();
    fences.sort_unstable();
    let lock = inspect_with_answers(&operator, Key::custom("catalog")).await;
    let mut seen: Vec<_> = lock.holders.iter().filter_map(|holder| holder.fence).collect();
    seen.sort_unstable();
    assert_eq!(seen, fences, "each holder has its own hold");
    assert!(lock.holders.iter().all(|holder| holder.route.is_none()), "taken in code: {lock:?}");
}

/// Inspects a lock when all its holders answer: a process with its first lock does so a moment
/// later, when it listens.
async fn inspect_with_answers(operator: &Store, key: Key) -> LockInspection {
    let mut inspected = None;
    eventually("the holders to answer", async || {
        let lock = operator.lock(key.clone()).inspect().await.expect("the store answers");
        let do_answer = lock.holders.iter().all(|holder| holder.pid.is_some());
        inspected = Some(lock);
        do_answer
    })
    .await;
    inspected.expect("it was inspected")
}

pub(crate) async fn operators_see_the_route_of_a_run(case: TestCase) {
    let (site, operator) = (case.start_site().await, case.new_store().await);
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/orders/7/refund?gate=run").send().await);
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let lock = inspect_with_answers(&operator, Key::path_param("id", "7")).await;
    let holders = lock.holders.iter().map(|holder| (holder.is_run, holder.route.as_deref()));
    let route = Some("POST /orders/{id}/refund");
    assert_eq!(holders.collect::<Vec<_>>(), [(Some(true), route)]);
    let fleet = operator.fleet().await.expect("it answers");
    let holds = fleet.processes.iter().flat_map(|process| &process.holds);
    assert_eq!(holds.map(|hold| hold.route.as_deref()).collect::<Vec<_>>(), [route]);
    let find = async |group, text: &str| {
        let filter = JobFilter::new(group).route(text);
        let page = operator.deferred_jobs().find(&filter, JobCursor::default(), 10).await;
        let jobs = page.expect("it answers").jobs.into_iter();
        jobs.map(|job| job.route.unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(find(JobGroup::Running, "id}/refund").await, ["POST /orders/{id}/refund"]);
    assert_eq!(find(JobGroup::Running, "orders/7").await, [""; 0], "the path is not shown");
    case.handler.sync_points.open("run");
    let _ = job.wait_for_final_status(&site).await;
    assert_eq!(find(JobGroup::Done, "POST /orders").await, ["POST /orders/{id}/refund"]);
}

/// The guard is told: its next renewal would be later than the end of the test.
pub(crate) async fn forced_release_takes_the_lock_from_its_holder(case: TestCase) {
    let (holder, operator) = (case.new_store().await, case.new_store().await);
    let lock = holder.lock(Key::path_param("id", "7")).lease(Duration::from_secs(600));
    let guard = lock.max_hold(Duration::from_secs(3_600)).acquire().await.expect("it is free");
    let site = case.start_site().await;
    expect_busy(site.post("/orders/7/pay").send().await);
    let waiter = site.post("/orders/7/ship").spawn();
    eventually("the request to wait", async || {
        let lock = operator.lock(Key::path_param("id", "7")).inspect().await;
        lock.expect("it answers").waiter_count == 1
    })
    .await;
    let admin = operator.admin(Operator::new("ada", Permission::Act));
    let released = admin.force_release(Key::path_param("id", "7"), "it hangs").await;
    assert_eq!(released.expect("it has a holder"), 1);
    let loss = with_timeout("the holder to be told", guard.lost()).await;
    assert_eq!(loss, LockLoss::Taken);
    let answer = waiter.response().await.expect_status(200);
    assert!(response_fence(&answer) > guard.fence());
}

pub(crate) async fn safe_methods_and_preflights_take_no_lock(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let answer = site.get("/orders/7/pay").send().await.expect_status(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    let answer = site.get("/orders/7/refund").send().await.expect_status(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    let _ = site.request("HEAD", "/orders/7/pay").send().await.expect_status(200);
    let _ = site.request("OPTIONS", "/orders/7/pay").send().await.expect_status(200);
    for target in ["/orders/7/pay", "/orders/7/refund"] {
        let preflight = site
            .request("OPTIONS", target)
            .header("origin", "https://shop.example")
            .header("access-control-request-method", "POST");
        let _ = preflight.send().await.expect_status(200);
    }
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn unrouted_requests_take_no_lock(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let _ = site.post("/orders/7/nothing").send().await.expect_status(404);
    let _ = site.post("/nothing").send().await.expect_status(404);
    let _ = hold.finish().await.expect_status(200);
    let _ = site.request("PATCH", "/orders/7/pay").send().await.expect_status(405);
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
}

/// The handler reads the first half before the client sends the second.
pub(crate) async fn request_body_is_streamed_under_the_lock(case: TestCase) {
    let site = case.start_site().await;
    for target in ["/orders/7/pay", "/orders/8/refund"] {
        let gate = target.replace('/', "-");
        let mut raw = site.raw_connection().await;
        let head = format!(
            "POST {target}?first={gate} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-length: 10\r\n\r\nfirst"
        );
        raw.write(head).await;
        case.handler.sync_points.wait_for_arrival(&gate).await;
        raw.write("other").await;
        case.handler.sync_points.open(&gate);
        let answer = raw.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains(r#""body":"firstother""#), "{answer}");
    }
}
