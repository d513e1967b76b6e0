//! Responses while Redis is unavailable, and afterwards. Each row has a server of its own, and
//! stops it.

use std::time::{Duration, Instant};

use lockgate::{ErrorKind, Store};
use lockgate_tests::{RedisServer, TestCase, TestRequest, TestResponse, TestSite, eventually};

use super::{JobReceipt, lock::expect_busy, recovery::measure_deferred_run};

/// Longest time to a response while the store is unavailable.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(1);

pub(super) async fn start_site(case: &TestCase, server: &RedisServer) -> TestSite {
    // Above the default, so that a loaded machine is no outage. A killed server refuses connections
    // at once, and a response that still waited for the deadline would exceed `MAX_ANSWER_TIME`.
    start_site_with_timeout(case, server, Duration::from_secs(5)).await
}

pub(super) async fn start_site_with_timeout(
    case: &TestCase,
    server: &RedisServer,
    deadline: Duration,
) -> TestSite {
    let store = Store::builder(&server.url("scenario")).call_timeout(deadline);
    case.site_builder_on(store.connect().await.expect("a store")).start().await
}

/// Sends a repeatable request and expects a prompt response during an outage. Up to three tries,
/// since a loaded machine may delay one of them. [`AnswerTimes`] is for requests that are counted.
pub(super) async fn send_promptly(request: TestRequest) -> TestResponse {
    let mut elapsed_times = Vec::new();
    for _ in 0..3 {
        let (answer, elapsed) = send_timed(request.clone()).await;
        if elapsed < MAX_ANSWER_TIME {
            return answer;
        }
        elapsed_times.push(elapsed);
    }
    panic!("answered after {elapsed_times:?}")
}

async fn send_timed(request: TestRequest) -> (TestResponse, Duration) {
    let sent = Instant::now();
    let answer = request.send().await;
    let elapsed = sent.elapsed();
    println!("figure: longest answer while the store is unavailable {} ms", elapsed.as_millis());
    (answer, elapsed)
}

/// Like [`send_promptly`] for requests that are counted: each is sent once, and at least one
/// response has to be prompt.
#[derive(Default)]
struct AnswerTimes(Vec<Duration>);

impl AnswerTimes {
    async fn send_once(&mut self, request: TestRequest) -> TestResponse {
        let (answer, elapsed) = send_timed(request).await;
        self.0.push(elapsed);
        answer
    }

    fn assert_any_prompt(self) {
        assert!(
            self.0.iter().any(|elapsed| *elapsed < MAX_ANSWER_TIME),
            "answered after {:?}",
            self.0
        );
    }
}

#[track_caller]
pub(super) fn expect_unavailable(answer: TestResponse) {
    let answer = answer.expect_status(503);
    let _ = answer.retry_after_seconds();
    let problem = answer.problem_document();
    let kind = problem["type"].as_str().unwrap_or_default();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
    assert_tells_nothing_of_store(&answer);
}

#[track_caller]
fn assert_tells_nothing_of_store(answer: &TestResponse) {
    assert!(!answer.text().to_lowercase().contains("redis"), "{answer:?}");
    super::assert_no_token(answer, "");
}

pub(super) async fn wait_for_recovery(site: &TestSite) {
    eventually("the lock to be there again", async || {
        site.post("/orders/back/pay").send().await.status == 200
    })
    .await;
}

pub(crate) async fn lock_is_503_during_outage_and_recovers(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    wait_for_recovery(&site).await;
    server.kill();
    let at_once: Vec<_> =
        (0..8).map(|_| tokio::spawn(send_promptly(site.post("/orders/7/pay")))).collect();
    for answer in at_once {
        expect_unavailable(answer.await.unwrap());
    }
    expect_unavailable(send_promptly(site.post("/orders/7/ship")).await);
    expect_unavailable(
        send_promptly(site.get("/deferred/00112233445566778899aabbccddeeff00")).await,
    );
    let _ = send_promptly(site.get("/orders/7/pay?tag=safe")).await.expect_status(200);
    let completed_runs = case.handler.completed_runs();
    let locked_runs = completed_runs.iter().filter(|completed_runs| completed_runs.tag != "safe");
    assert!(
        locked_runs.clone().all(|completed_runs| completed_runs.fence.is_some()),
        "{completed_runs:?}"
    );
    server.restart().await;
    wait_for_recovery(&site).await;
    let _ = site.post("/orders/7/ship").send().await.expect_status(200);
}

/// A request that is always deferred does not depend on a busy lock; its enqueue fails. If the
/// command was written before the connection was known to be lost, the reply gives a location,
/// which is 404 in the end.
pub(crate) async fn always_deferred_request_is_503_during_outage(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    wait_for_recovery(&site).await;
    let post_respond_async = |path: &str| site.post(path).header("prefer", "respond-async");
    let _ = post_respond_async("/async/7?tag=before").send().await.expect_status(202);
    server.kill();
    let mut locations = Vec::new();
    for request in [site.post("/always/7?tag=away"), post_respond_async("/async/7?tag=away")] {
        let answer = send_promptly(request).await;
        if answer.problem_document()["type"] == "urn:lockgate:problem:outcome-unknown" {
            let answer = answer.expect_status(503);
            let _ = answer.retry_after_seconds();
            assert_tells_nothing_of_store(&answer);
            locations.push(answer.header("location").to_owned());
        } else {
            expect_unavailable(answer);
        }
    }
    server.restart().await;
    wait_for_recovery(&site).await;
    for location in locations {
        let _ = site.get(&location).send().await.expect_status(404);
    }
    let _ = site.post("/always/8?tag=after").send().await.expect_status(202);
    let completed_runs = case.handler.completed_runs();
    assert!(
        completed_runs.iter().all(|completed_runs| completed_runs.tag != "away"),
        "{completed_runs:?}"
    );
}

pub(crate) async fn fail_open_lock_and_quota_admit_during_outage(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    server.kill();
    for _ in 0..5 {
        let answer = send_promptly(site.get("/quota/admit")).await.expect_status(200);
        assert!(
            !answer.has_header("ratelimit") && !answer.has_header("ratelimit-policy"),
            "{answer:?}"
        );
        assert!(answer.json()["remaining"].is_null(), "{answer:?}");
    }
    expect_unavailable(send_promptly(site.get("/quota/refuse")).await);
    let answer = send_promptly(site.post("/orders/7/anyway")).await.expect_status(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    server.restart().await;
    wait_for_recovery(&site).await;
    let answer = site.post("/orders/7/anyway").send().await.expect_status(200);
    assert!(answer.json()["fence"].is_u64(), "{answer:?}");
    let answer = site.get("/quota/admit").send().await.expect_status(200);
    assert!(answer.header("ratelimit").contains(";r=2;"), "{answer:?}");
}

/// By default a process continues with the remaining units of the quota until the store recovers.
pub(crate) async fn outage_limiter_enforces_quota_in_process(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    let _ = site.get("/quota/three").send().await.expect_status(200);
    server.kill();
    let mut answer_times = AnswerTimes::default();
    for _ in 0..2 {
        let answer = answer_times.send_once(site.get("/quota/three")).await.expect_status(200);
        assert!(
            !answer.has_header("ratelimit") && !answer.has_header("ratelimit-policy"),
            "{answer:?}"
        );
    }
    let answer = answer_times.send_once(site.get("/quota/three")).await.expect_status(429);
    answer_times.assert_any_prompt();
    assert!(answer.retry_after_seconds() <= 20, "one of three a minute: {answer:?}");
    server.restart().await;
    // The killed server lost its counters.
    eventually("quotas to be counted in the store again", async || {
        let answer = site.get("/quota/three").send().await;
        answer.status == 200 && answer.has_header("ratelimit")
    })
    .await;
}

/// The store fails after the lock was found busy: nothing is stored, and the response promises
/// nothing.
pub(crate) async fn request_is_not_deferred_during_outage(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    let hold = site.post_held("/orders/7/pay").await;
    let refused = site.post("/late/7?after=late").spawn();
    case.handler.sync_points.wait_for_arrival("late").await;
    server.kill();
    // The circuit breaker is open, so later calls are not sent. (The call that opens it may have
    // run; the next row covers that case.)
    expect_unavailable(send_promptly(site.post("/orders/7/pay")).await);
    case.handler.sync_points.open("late");
    let answer = refused.response().await;
    // The response depends on whether the connection broke before or during the call.
    if answer.has_header("location") {
        let _ = answer.expect_status(503).problem_document();
    } else {
        expect_busy(answer);
    }
    expect_unavailable(send_promptly(site.post("/orders/7/refund")).await);
    let _ = send_promptly(site.post("/orders/7/refund")).await.expect_status(503);
    let _ = hold.finish().await.expect_status(200);
}

/// As above, but the store hangs: the response carries the `Location` under which the job may
/// exist.
pub(crate) async fn uncertain_enqueue_returns_503_with_location(case: TestCase) {
    let server = RedisServer::start().await;
    let site = start_site_with_timeout(&case, &server, Duration::from_secs(3)).await;
    // An unloaded script would not be sent a second time to a hanging server.
    measure_deferred_run(&site).await;
    let hold = site.post_held("/orders/7/pay").await;
    let refused = site.post("/late/7?after=late").spawn();
    case.handler.sync_points.wait_for_arrival("late").await;
    server.pause();
    case.handler.sync_points.open("late");
    let answer = refused.response().await.expect_status(503);
    let _ = answer.retry_after_seconds();
    let _ = answer.problem_document();
    let location = answer.header("location").to_owned();
    server.resume();
    // The call was in the server's socket buffer and has run by now.
    eventually("the job to be found", async || site.get(&location).send().await.status == 200)
        .await;
    let id = location.trim_start_matches("/deferred/").to_owned();
    let job = JobReceipt { id, location };
    assert_eq!(job.status_document(&site).await["state"], "queued");
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
}

pub(crate) async fn frozen_store_is_unavailable(case: TestCase) {
    let server = RedisServer::start().await;
    // Default settings.
    let store = Store::connect(&server.url("scenario")).await.expect("a store");
    let site = case.site_builder_on(store).start().await;
    wait_for_recovery(&site).await;
    server.pause();
    for _ in 0..8 {
        expect_unavailable(send_promptly(site.post("/orders/7/pay")).await);
    }
    let _ = send_promptly(site.get("/quota/three")).await.expect_status(200);
    server.resume();
    wait_for_recovery(&site).await;
    // Locks acquired by unanswered calls are undone.
    eventually("the lock to be free", async || {
        site.post("/orders/7/ship").send().await.status == 200
    })
    .await;
}

pub(crate) async fn wrong_password_is_a_configuration_error() {
    let server = RedisServer::start_with_password("c0rrect").await;
    let _ = Store::connect(&server.url("scenario")).await.expect("a store");
    let url = server.url("scenario");
    for wrong_url in [url.replace("c0rrect", "s3cret"), url.replace(":c0rrect@", "")] {
        let store = Store::builder(&wrong_url).call_timeout(Duration::from_secs(10));
        let error = store.connect().await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        let error_text = format!("{error} {error:?}");
        assert!(!error_text.contains("s3cret") && !error_text.contains("c0rrect"), "{error_text}");
    }
}
