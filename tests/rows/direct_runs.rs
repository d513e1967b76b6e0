//! `Idempotency-Key` of requests that ran directly, and of deferred ones.

use lockgate_tests::{RawConnection, TestCase, TestRequest, TestResponse, TestSite, eventually};

use super::{expect_accepted, lock::expect_busy, wait_for_queue_length};

fn post_with_default_key(site: &TestSite, query: &str) -> TestRequest {
    post_with_key(site, "k", query)
}

fn post_with_key(site: &TestSite, key: &str, query: &str) -> TestRequest {
    site.post(&format!("/remembered/7?{query}")).header("idempotency-key", key)
}

pub(crate) async fn completed_direct_run_is_not_repeated(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let first = post_with_default_key(&site, "tag=one&status=201")
        .body("note")
        .send()
        .await
        .expect_status(201);
    for site in [&site, &other] {
        let answer = post_with_default_key(site, "tag=one&status=201").body("note").send().await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        let job = expect_accepted(answer);
        let document = job.status_document(site).await;
        assert_eq!(document["response"]["status"], 201, "{document}");
        let response = format!("{}/response", job.location);
        let stored = site.get(&response).send().await.expect_status(201);
        assert_eq!(stored.body, first.body);
    }
    // The credential prevents deferral only; a retry of a completed run is not stored.
    let with_credential =
        post_with_default_key(&site, "tag=one&status=201").header("cookie", "a=b");
    let _ = expect_accepted(with_credential.body("note").send().await);
    // A body over the fingerprint limit is not compared, so this request is refused as busy.
    let with_long_body =
        post_with_default_key(&site, "tag=one&status=201").body(vec![b'x'; 64 * 1024 + 1]);
    expect_busy(with_long_body.send().await);
    assert_eq!(case.handler.run_tags(), ["one"]);
    let _ = site.post("/remembered/7").send().await.expect_status(200);
}

pub(crate) async fn key_of_direct_run_with_different_request_is_refused(case: TestCase) {
    let site = case.start_site().await;
    let keyed = |key: &str| site.post("/remembered/7?tag=one").header("idempotency-key", key);
    for (key, body) in [("with", "note"), ("without", "")] {
        let _ = keyed(key).body(body).send().await.expect_status(200);
        let _ = expect_accepted(keyed(key).body(body).send().await);
        let different_requests = [
            keyed(key).body("other"),
            keyed(key).body("other").header("cookie", "a=b"),
            site.post("/remembered/7?tag=two").header("idempotency-key", key).body(body),
        ];
        for different_request in different_requests {
            let _ = different_request.send().await.expect_status(422).problem_document();
        }
    }
    assert_eq!(case.handler.run_tags(), ["one", "one"]);
}

pub(crate) async fn unauthorized_request_may_run_again(case: TestCase) {
    let site = case.start_site().await;
    // A retry may carry a new token.
    for status in [401, 403] {
        let answer =
            post_with_default_key(&site, &format!("tag=refused&status={status}")).send().await;
        let _ = answer.expect_status(status);
    }
    let _ = post_with_default_key(&site, "tag=done").send().await.expect_status(200);
    let _ = expect_accepted(post_with_default_key(&site, "tag=done").send().await);
    assert_eq!(case.handler.run_tags(), ["refused", "refused", "done"]);
}

/// The inner lock and the inner quota refuse before the handler is called.
pub(crate) async fn request_refused_by_inner_gate_may_run_again(case: TestCase) {
    let site = case.start_site().await;
    let sent = |tag: &str, user: &str| {
        let sent = site.post(&format!("/remembered-within/7?tag={tag}"));
        sent.header("x-account", "a").header("x-api-key", user)
    };
    let keyed = |user: &str| sent("one", user).header("idempotency-key", "k");
    let account = site.post("").header("x-account", "a");
    let hold = site.send_held(account, "/account?tag=hold").await;
    for _ in 0..2 {
        expect_busy(keyed("first").send().await);
    }
    let _ = hold.finish().await.expect_status(200);
    let _ = sent("spend", "second").send().await.expect_status(200);
    for _ in 0..2 {
        let _ = keyed("second").send().await.expect_status(429).problem_document();
    }
    let _ = keyed("first").send().await.expect_status(200);
    let _ = expect_accepted(keyed("first").send().await);
    assert_eq!(case.handler.run_tags(), ["hold", "spend", "one"]);
}

/// The handler may have had effects before it refused; the status alone does not show that.
pub(crate) async fn response_of_refusing_handler_is_final(case: TestCase) {
    let site = case.start_site().await;
    for status in [409, 423, 425, 429, 503] {
        let key = format!("k{status}");
        let sent = || post_with_key(&site, &key, &format!("tag={status}&status={status}"));
        let _ = sent().send().await.expect_status(status);
        let answer = sent().send().await;
        if matches!(status, 409 | 423) {
            let document = expect_accepted(answer).status_document(&site).await;
            assert_eq!(document["response"]["status"], status, "{document}");
        } else {
            assert_dead(&site, answer, "failed, may have run").await;
        }
    }
    assert_eq!(case.handler.run_tags(), ["409", "423", "425", "429", "503"]);
}

/// Sends a request whose handler panics. The server answers 500 or closes the connection.
async fn send_panicking(request: TestRequest) {
    let answer = request.try_send().await;
    assert!(
        answer.as_ref().is_ok_and(|answer| answer.status == 500) || answer.is_err(),
        "{answer:?}"
    );
}

/// Expects the status document of a dead job, as for a deferred request.
async fn assert_dead(site: &TestSite, answer: TestResponse, reason: &str) {
    assert_eq!(answer.json()["state"], "dead", "{answer:?}");
    let job = expect_accepted(answer);
    let document = job.status_document(site).await;
    assert_eq!(document["reason"], reason, "{document}");
    let _ = site
        .get(&format!("{}/response", job.location))
        .send()
        .await
        .expect_status(410)
        .problem_document();
}

pub(crate) async fn failed_post_is_not_repeated(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let failed = || post_with_default_key(&site, "tag=failed&status=500");
    let _ = failed().send().await.expect_status(500);
    assert_dead(&site, failed().send().await, "failed, may have run").await;
    let panicked = |site: &TestSite| post_with_key(site, "p", "tag=panicked&panic=1");
    send_panicking(panicked(&site)).await;
    for site in [&site, &other] {
        assert_dead(site, panicked(site).send().await, "stopped, may have run").await;
    }
    assert_eq!(case.handler.run_tags(), ["failed", "panicked"]);
    // The lock is released.
    let _ = site.post("/remembered/7").send().await.expect_status(200);
}

pub(crate) async fn failed_rerunnable_request_runs_again(case: TestCase) {
    let site = case.start_site().await;
    for (method, path) in [("PUT", "/remembered/7"), ("POST", "/remembered-again/7")] {
        let sent = |query: &str| {
            let sent = site.request(method, &format!("{path}?{query}"));
            sent.header("idempotency-key", "k")
        };
        let _ = sent("tag=failed&status=500").send().await.expect_status(500);
        send_panicking(sent("tag=panicked&panic=1")).await;
        let _ = sent("tag=done").send().await.expect_status(200);
        assert_eq!(
            expect_accepted(sent("tag=done").send().await).status_document(&site).await["state"],
            "done"
        );
        assert_eq!(case.handler.run_tags(), ["failed", "panicked", "done"], "{method} {path}");
        case.handler.clear_runs();
    }
}

/// `max_hold` ends while the handler runs, so its effects are unknown.
pub(crate) async fn run_that_lost_its_lock_is_not_repeated(case: TestCase) {
    let site = case.start_site().await;
    let sent = |key: &str| {
        let sent = site.post("/remembered-briefly/7?tag=one&after=never");
        sent.header("idempotency-key", key)
    };
    let _ = sent("waits").send().await.expect_status(503).problem_document();
    assert_dead(&site, sent("waits").send().await, "stopped, may have run").await;
    // The same holds if the client disconnected before.
    let disconnected = sent("leaves").spawn();
    case.handler.sync_points.wait_for_arrival("never").await;
    disconnected.disconnect().await;
    eventually("it to be stopped", async || sent("leaves").send().await.status == 202).await;
    assert_dead(&site, sent("leaves").send().await, "stopped, may have run").await;
    assert_eq!(case.handler.run_tags(), ["one", "one"]);
}

/// Starts a keyed request whose response head has arrived and whose lock is free.
async fn start_keyed_stream(site: &TestSite, key: &str, query: &str) -> RawConnection {
    let mut raw = site.raw_connection().await;
    raw.write(&format!(
        "POST /remembered/7?{query} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\nconnection: close\r\n\r\n"
    ))
    .await;
    let answer = raw.read_until("first").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    raw
}

pub(crate) async fn stream_is_recorded_when_it_ends(case: TestCase) {
    let site = case.start_site().await;
    let mut raw = start_keyed_stream(&site, "k", "tag=one&stream=more").await;
    expect_busy(post_with_default_key(&site, "tag=one&stream=more").send().await);
    let _ = site.post("/orders/7/pay?tag=other").send().await.expect_status(200);
    case.handler.sync_points.open("more");
    let rest = raw.read_until("\r\n0\r\n\r\n").await;
    assert!(rest.contains("last"), "{rest}");
    // The result is recorded before the client can see the end of the body.
    let answer = post_with_default_key(&site, "tag=one&stream=more").send().await;
    assert_eq!(answer.json()["state"], "done", "{answer:?}");
    assert_eq!(expect_accepted(answer).status_document(&site).await["response"]["status"], 200);
    // A stream without an end is recorded when it starts.
    let events = "tag=events&stream=never&events=1";
    let _raw = start_keyed_stream(&site, "e", events).await;
    let answer = post_with_key(&site, "e", events).send().await;
    assert_eq!(answer.json()["state"], "done", "{answer:?}");
    assert_eq!(case.handler.run_tags(), ["one", "other", "events"]);
}

pub(crate) async fn failed_stream_is_not_repeated(case: TestCase) {
    let site = case.start_site().await;
    for failure in ["error", "panic"] {
        let query = format!("tag={failure}&stream={failure}&breaks={failure}");
        let mut raw = start_keyed_stream(&site, failure, &query).await;
        case.handler.sync_points.open(failure);
        let rest = raw.read_to_end().await;
        assert!(!rest.contains("last"), "{rest}");
        assert_dead(
            &site,
            post_with_key(&site, failure, &query).send().await,
            "failed, may have run",
        )
        .await;
        assert_eq!(case.handler.run_tags(), [failure]);
        case.handler.clear_runs();
    }
}

/// The handler may have effects while it streams, so the stream runs to its end and is stored.
pub(crate) async fn stream_continues_after_client_disconnect(case: TestCase) {
    let site = case.start_site().await;
    for (key, option, is_stored) in [("short", "", true), ("long", "&mib=1", false)] {
        let query = format!("tag=one&stream={key}{option}");
        drop(start_keyed_stream(&site, key, &query).await);
        expect_busy(post_with_key(&site, key, &query).send().await);
        case.handler.sync_points.open(key);
        let ended = async || post_with_key(&site, key, &query).send().await.status == 202;
        eventually("it to end", ended).await;
        let answer = post_with_key(&site, key, &query).send().await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        let response = format!("{}/response", expect_accepted(answer).location);
        let response = site.get(&response).send().await;
        if is_stored {
            assert_eq!(response.expect_status(200).body, "first-last");
        } else {
            // The run is complete, but its response exceeded the storage limit.
            assert_eq!(response.expect_status(410).json()["stored"], "stream");
        }
    }
    assert_eq!(case.handler.run_tags(), ["one", "one"]);
}

/// The response has a `Content-Length` over the storage limit; the client receives all of it.
pub(crate) async fn response_over_storage_limit_is_passed_through(case: TestCase) {
    let site = case.start_site().await;
    for (key, bytes, stored) in [("fits", 64 << 10, "body"), ("long", (64 << 10) + 1, "too long")] {
        let body = vec![b'x'; bytes];
        let sent = || post_with_key(&site, key, "tag=one&echo=1").body(body.clone());
        let answer = sent().send().await.expect_status(200);
        assert_eq!(
            (answer.headers["content-length"].as_bytes(), answer.body.len()),
            (bytes.to_string().as_bytes(), bytes)
        );
        let answer = post_with_key(&site, key, "tag=one&echo=1").body(body.clone()).send().await;
        // The longer request body is not compared; the request counts as a retry.
        let document = expect_accepted(answer).status_document(&site).await;
        assert_eq!(document["response"]["stored"], stored, "{document}");
    }
    assert_eq!(case.handler.run_tags(), ["one", "one"]);
}

pub(crate) async fn retry_after_unauthorized_run_may_run(case: TestCase) {
    let site = case.start_site().await;
    let failing = || post_with_default_key(&site, "tag=failed&status=401&gate=first");
    let first = failing().spawn();
    case.handler.sync_points.wait_for_arrival("first").await;
    expect_busy(failing().send().await);
    case.handler.sync_points.open("first");
    let _ = first.response().await.expect_status(401);
    // The sync point is open, so this run does not wait.
    let _ = failing().send().await.expect_status(401);
    assert_eq!(case.handler.run_tags(), ["failed", "failed"]);
}

/// The handler has its effects at once and responds after the client has disconnected. One key is
/// one execution.
pub(crate) async fn client_disconnect_does_not_stop_keyed_run(case: TestCase) {
    let site = case.start_site().await;
    let sent = || post_with_default_key(&site, "tag=one&after=slow&text=paid").body("note");
    let disconnected = sent().spawn();
    case.handler.sync_points.wait_for_arrival("slow").await;
    disconnected.disconnect().await;
    for _ in 0..3 {
        expect_busy(sent().send().await);
    }
    case.handler.sync_points.open("slow");
    eventually("its response to be stored", async || sent().send().await.status == 202).await;
    let job = expect_accepted(sent().send().await);
    let response = site.get(&format!("{}/response", job.location)).send().await.expect_status(200);
    assert_eq!(response.body, "paid");
    assert_eq!(case.handler.run_tags(), ["one"]);
    assert_eq!(case.handler.sync_points.arrival_count("slow"), 1);
}

/// The client disconnects while the request waits for its lock, before any run.
pub(crate) async fn client_that_leaves_before_the_run_may_retry(case: TestCase) {
    // A waiter in the holder's process has no entry in the store's queue, hence the second site.
    let (holder, site) = (case.start_site().await, case.start_site().await);
    let hold = holder.post_held("/orders/7/pay?tag=hold").await;
    let disconnected =
        post_with_default_key(&site, "tag=leaver").header("prefer", "wait=20").spawn();
    wait_for_queue_length(holder.store(), "7", 1).await;
    disconnected.disconnect().await;
    wait_for_queue_length(holder.store(), "7", 0).await;
    let _ = hold.finish().await.expect_status(200);
    let _ = post_with_default_key(&site, "tag=again").send().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["hold", "again"]);
}

/// The client disconnects during its upload, and the handler refuses the truncated body.
pub(crate) async fn truncated_body_does_not_block_the_key(case: TestCase) {
    let site = case.start_site().await;
    for status in [400, 500] {
        let (key, gate) = (format!("k{status}"), format!("cut{status}"));
        let mut raw = site.raw_connection().await;
        raw.write(&format!(
            "POST /remembered/7?tag=cut&status={status}&first={gate} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\n\
             content-length: 10\r\n\r\nabc"
        ))
        .await;
        case.handler.sync_points.wait_for_arrival(&gate).await;
        drop(raw);
        case.handler.sync_points.open(&gate);
        eventually("it to be forgotten", async || {
            let answer = post_with_key(&site, &key, "tag=again").body("note").send().await;
            assert!(matches!(answer.status.as_u16(), 200 | 202 | 409), "{answer:?}");
            answer.status == 200 || answer.json()["state"] == "done"
        })
        .await;
        assert_eq!(case.handler.run_tags().last().map(String::as_str), Some("again"));
    }
}

/// The limit is one concurrent keyed run; a request beyond it is treated as one with a busy lock.
pub(crate) async fn direct_runs_are_limited(case: TestCase) {
    let site = case.start_site().await;
    let sent = |id: u32, query: &str| {
        let sent = site.post(&format!("/remembered-one/{id}?{query}"));
        sent.header("idempotency-key", "k")
    };
    let first = sent(7, "tag=first&after=first").spawn();
    case.handler.sync_points.wait_for_arrival("first").await;
    let job = expect_accepted(sent(8, "tag=second").send().await);
    let _ = job.wait_until_done(&site).await;
    // A request without a key is not limited.
    let _ = site.post("/remembered-one/9?tag=free").send().await.expect_status(200);
    case.handler.sync_points.open("first");
    let _ = first.response().await.expect_status(200);
    let _ = sent(9, "tag=third").send().await.expect_status(200);
    let completed: Vec<_> = case
        .handler
        .completed_runs()
        .into_iter()
        .map(|completed| (completed.tag, completed.is_deferred))
        .collect();
    let run = |tag: &str, deferred| (tag.to_owned(), deferred);
    assert_eq!(
        completed,
        [run("first", false), run("second", true), run("free", false), run("third", false)]
    );
}

/// The second request waits for 1 s and is deferred. The first one began to wait before it and
/// finds the accepted job when the lock is released.
pub(crate) async fn waiting_request_finds_job_accepted_meanwhile(case: TestCase) {
    let (site, first_site, second_site) =
        (case.start_site().await, case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let wait = |site: &TestSite, seconds: u32| {
        let sent = site.post("/orders/7/refund?tag=once").header("idempotency-key", "k");
        sent.header("prefer", &format!("wait={seconds}"))
    };
    let waiting = wait(&first_site, 20).spawn();
    wait_for_queue_length(site.store(), "7", 1).await;
    let job = expect_accepted(wait(&second_site, 1).send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(expect_accepted(waiting.response().await).id, job.id);
    let _ = job.wait_until_done(&site).await;
    assert_eq!(case.handler.run_tags(), ["hold", "once"]);
}

/// Requests under several locks or a permit are not deferred, but their keyed runs are recorded.
pub(crate) async fn runs_under_lock_sets_and_permits_are_not_repeated(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    for (path, gate) in [("/remembered-several/7", "several"), ("/remembered-permits/7", "permit")]
    {
        let query = format!("tag=one&gate={gate}");
        let sent = |site: &TestSite, query: &str| {
            let sent = site.post(&format!("{path}?{query}")).header("idempotency-key", "k");
            sent.body("note")
        };
        let _ = sent(&site, "tag=failed&status=401").send().await.expect_status(401);
        let first = sent(&site, &query).spawn();
        case.handler.sync_points.wait_for_arrival(gate).await;
        expect_busy(sent(&other, &query).send().await);
        case.handler.sync_points.open(gate);
        let _ = first.response().await.expect_status(200);
        for site in [&site, &other] {
            let job = expect_accepted(sent(site, &query).send().await);
            assert_eq!(job.status_document(site).await["response"]["status"], 200);
        }
        let _ = sent(&site, "tag=two").send().await.expect_status(422).problem_document();
        // A request without the key is a new request and finds its locks free.
        let _ = site.post(&format!("{path}?tag=free")).send().await.expect_status(200);
        assert_eq!(case.handler.run_tags(), ["failed", "one", "free"]);
        case.handler.clear_runs();
    }
}
