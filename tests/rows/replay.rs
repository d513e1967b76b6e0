//! Runs of deferred requests.

use std::time::Duration;

use lockgate::Keyring;
use lockgate_tests::{TestCase, TestRequest, TestSite};
use proptest::{
    collection::vec,
    prop_oneof,
    sample::select,
    strategy::{Strategy as _, ValueTree as _},
    test_runner::TestRunner,
};
use serde_json::{Value, json};

use super::{JobReceipt, defer::defer_refund, expect_accepted, lock::expect_busy, measure_acquire};

/// Returns the values of a header as the handler saw it.
fn replayed_header<'a>(seen: &'a Value, name: &str) -> Vec<&'a str> {
    let fields = seen["headers"].as_array().expect("a list");
    let named = fields.iter().filter(|field| field[0] == name);
    named.filter_map(|field| field[1].as_str()).collect()
}

async fn defer_put(site: &TestSite, query: &str) -> JobReceipt {
    let target = format!("/orders/7/refund?{query}");
    expect_accepted(site.put(&target).send().await)
}

pub(crate) async fn replay_keeps_request_without_connection_headers(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let sent = site
        .put("/orders/%37/refund?a=b%20c&d")
        .header("connection", "keep-alive, host")
        .header("connection", "idempotency-key")
        .header("te", "trailers")
        .header("keep-alive", "timeout=5")
        .header("prefer", "respond-async")
        .header("x-many", "one")
        .header("accept-language", "de")
        .header("X-Many", "two")
        .header("idempotency-key", "\"mine\"")
        .body("note");
    let job = expect_accepted(sent.send().await);
    let _ = hold.finish().await.expect_status(200);
    let seen = job.wait_until_done(&site).await;
    assert_eq!(seen["method"], "PUT");
    assert_eq!(seen["target"], "/orders/%37/refund?a=b%20c&d");
    assert_eq!(seen["route"], "/orders/{id}/refund");
    assert_eq!(seen["body"], "note");
    assert_eq!(replayed_header(&seen, "x-many"), ["one", "two"]);
    assert_eq!(replayed_header(&seen, "accept-language"), ["de"]);
    // `Connection` nominates these two headers; they are not dropped.
    assert_eq!(replayed_header(&seen, "host"), [site.addr.to_string()]);
    assert_eq!(replayed_header(&seen, "idempotency-key"), ["\"mine\""]);
    assert_eq!(replayed_header(&seen, "content-length"), ["4"]);
    for hop in ["connection", "te", "keep-alive", "prefer"] {
        assert!(replayed_header(&seen, hop).is_empty(), "{hop}: {seen}");
    }
}

/// Headers that belong to one connection or one exchange, as listed in the README.
const DROPPED_HEADERS: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    "prefer",
    "accept-encoding",
];

/// Credentials of [`generate_header_lists`].
const CREDENTIALS: [&str; 3] = ["authorization", "cookie", "x-api-key"];

/// Returns the header lines that a handler saw, in order, without fixed headers, lockgate's own
/// headers, credentials and the idempotency key.
fn replayed_headers(seen: &Value) -> Vec<(String, String)> {
    let lines = seen["headers"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines: Vec<_> = lines.map(|line| (text(&line[0]), text(&line[1]))).collect();
    let is_dropped = |name: &str| DROPPED_HEADERS.contains(&name) || CREDENTIALS.contains(&name);
    lines.retain(|(name, _)| {
        !is_dropped(name) && !name.starts_with("lockgate-") && name != "idempotency-key"
    });
    lines.sort_by(|(first, _), (second, _)| first.cmp(second));
    lines
}

/// Name and value of a header line.
type HeaderLine = (String, Vec<u8>);

/// Generates lists of header lines with arbitrary names and bytes. Excluded are headers that change
/// the exchange: upgrades, expectations, lengths, hosts and replay markers.
fn generate_header_lists() -> Vec<Vec<HeaderLine>> {
    const KNOWN_NAMES: &[&str] = &[
        "x-user-id",
        "x-role",
        "x-forwarded-for",
        "x-forwarded-host",
        "forwarded",
        "content-type",
        "if-match",
        "range",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "prefer",
        "accept-encoding",
        "lockgate-job",
        "cookie",
        "x-api-key",
    ];
    let name = || {
        let any = "[a-z0-9!#$%&'*+.^_`|~-]{1,12}";
        prop_oneof![select(KNOWN_NAMES).prop_map(str::to_owned), any]
    };
    let value = vec(prop_oneof![0x21..=0x7e_u8, 0x80..=0xff_u8], 0..20);
    let nominates = vec(name(), 1..6)
        .prop_map(|names| ("connection".to_owned(), names.join(", ").into_bytes()));
    // Repeated lines of one name.
    let repeated = (name(), vec(value.clone(), 0..3)).prop_map(|(name, values)| {
        values.into_iter().map(|value| (name.clone(), value)).collect::<Vec<HeaderLine>>()
    });
    let lines = vec(prop_oneof![3 => (name(), value), 1 => nominates], 0..16);
    let list = (repeated, lines).prop_map(|(repeated, lines)| [repeated, lines].concat());
    let mut runner = TestRunner::deterministic();
    (0..LIST_COUNT).map(|_| list.new_tree(&mut runner).expect("a list").current()).collect()
}

/// Number of lists sent to each framework on each store.
const LIST_COUNT: usize = 32;

/// The deferred run sees the same header lines as the direct one, whatever `Connection` nominates.
pub(crate) async fn arbitrary_headers_are_replayed(case: TestCase) {
    let site = case.start_site().await;
    let send = |target: &str, list: &[HeaderLine]| {
        let request = site.post(target).header("authorization", "Bearer ann");
        let add =
            |request: TestRequest, (name, value): &HeaderLine| request.header_bytes(name, value);
        list.iter().fold(request, add).send()
    };
    let hold = site.post_held("/orders/7/pay").await;
    let mut sent_lists = Vec::new();
    for list in generate_header_lists() {
        let job = expect_accepted(send("/carried/7", &list).await);
        sent_lists.push((list, job));
    }
    let _ = hold.finish().await.expect_status(200);
    for (list, job) in sent_lists {
        let deferred = job.wait_until_done(&site).await;
        let direct = send("/carried/8", &list).await.expect_status(200).json();
        assert_eq!(replayed_headers(&deferred), replayed_headers(&direct), "{list:?}");
    }
}

pub(crate) async fn kept_credential_is_replayed(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let sent = site.post("/kept/7").header("authorization", "Bearer x");
    let job = expect_accepted(sent.send().await);
    for (name, value) in [("cookie", "a=b"), ("x-api-key", "k")] {
        expect_busy(site.post("/kept/7").header(name, value).send().await);
    }
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(replayed_header(&job.wait_until_done(&site).await, "authorization"), ["Bearer x"]);
}

pub(crate) async fn user_snapshot_is_replayed_without_credential(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job =
        expect_accepted(site.post("/carried/7").header("authorization", "Bearer ann").send().await);
    let without_user = expect_accepted(site.post("/carried/7").send().await);
    let with_credentials = site.post("/carried/7").header("authorization", "Bearer bob");
    let with_credentials =
        with_credentials.header("x-api-key", "k").header("x-forwarded-access-token", "t");
    let with_credentials = expect_accepted(with_credentials.send().await);
    // The owner of the cookie is unknown, so the request is not deferred.
    expect_busy(site.post("/carried/7").header("cookie", "a=b").send().await);
    let _ = hold.finish().await.expect_status(200);
    let seen = job.wait_until_done(&site).await;
    assert_eq!(seen["user"], "ann", "{seen}");
    assert!(replayed_header(&seen, "authorization").is_empty(), "{seen}");
    assert!(without_user.wait_until_done(&site).await["user"].is_null());
    let seen = with_credentials.wait_until_done(&site).await;
    assert_eq!(seen["user"], "bob", "{seen}");
    for name in ["x-api-key", "x-forwarded-access-token"] {
        assert!(replayed_header(&seen, name).is_empty(), "{name}: {seen}");
    }
}

/// Permissions of a user may be revoked while the request waits.
pub(crate) async fn revoked_user_does_not_run(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let send = |token| site.put("/carried/7").header("authorization", token).send();
    let (eve, ann) =
        (expect_accepted(send("Bearer eve").await), expect_accepted(send("Bearer ann").await));
    case.handler.revoke_user("eve");
    let _ = hold.finish().await.expect_status(200);
    let document = eve.wait_until_dead(&site, "not authorized any more").await;
    assert!(document.get("response").is_none(), "{document}");
    let answer = site.get(&format!("{}/response", eve.location)).send().await.expect_status(403);
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:not-authorized");
    assert_eq!(problem["state"], "dead");
    assert_eq!(ann.wait_until_done(&site).await["user"], "ann");
    assert_eq!(case.handler.completed_runs().len(), 2, "the holder and the other one");
}

pub(crate) async fn missing_idempotency_key_is_generated(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let retried = defer_put(&site, "fail=1").await;
    let sent = site.post("/orders/7/refund").header("idempotency-key", "\"mine\"");
    let named = expect_accepted(sent.send().await);
    let _ = hold.finish().await.expect_status(200);
    let seen = retried.wait_until_done(&site).await;
    let [made] = replayed_header(&seen, "idempotency-key")[..] else { panic!("{seen}") };
    assert!(made.len() > 30 && !made.contains(&retried.id), "{made}");
    assert_eq!(
        replayed_header(&named.wait_until_done(&site).await, "idempotency-key"),
        ["\"mine\""]
    );
    let seen = site.post("/orders/7/refund").send().await.expect_status(200).json();
    assert!(
        replayed_header(&seen, "idempotency-key").is_empty(),
        "a direct request has no injected key: {seen}"
    );
}

/// Neither the worker nor the next job waits for the end of the stream.
pub(crate) async fn event_stream_is_not_stored(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "stream=never&events=1").await;
    let next = defer_refund(&site, "").await;
    let _ = hold.finish().await.expect_status(200);
    let _ = next.wait_until_done(&site).await;
    let document = job.wait_for_final_status(&site).await;
    let response = &document["response"];
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!((&response["status"], &response["stored"]), (&json!(200), &json!("stream")));
    assert_eq!(response["headers"]["content-type"], "text/event-stream", "{document}");
    let answer = site.get(&format!("{}/response", job.location)).send().await.expect_status(410);
    assert_eq!(answer.json()["stored"], "stream", "{answer:?}");
}

pub(crate) async fn body_of_unknown_length_is_stored_up_to_limit(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let short = defer_refund(&site, "stream=open").await;
    let over_limit = defer_refund(&site, "stream=open&mib=2").await;
    case.handler.sync_points.open("open");
    let _ = hold.finish().await.expect_status(200);
    let document = short.wait_for_final_status(&site).await;
    assert_eq!(document["response"]["stored"], "body", "{document}");
    let whole = site.get(&format!("{}/response", short.location)).send().await.expect_status(200);
    assert_eq!(whole.body, "first-last", "{whole:?}");
    let document = over_limit.wait_for_final_status(&site).await;
    assert_eq!(document["response"]["stored"], "stream", "{document}");
}

pub(crate) async fn sealed_job_runs_and_is_readable_with_key(case: TestCase) {
    let ring = || Keyring::new("one", [7; 32]).require_sealed();
    let site = case.start_site().await;
    let _sealed = site.store().clone().with_keyring(ring());
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/orders/7/refund").body("note").send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(job.wait_until_done(&site).await["body"], "note");
    let other = case.site_builder().await.without_worker().start().await;
    let response = format!("{}/response", job.location);
    let _ = other.get(&response).send().await.expect_status(503);
    let _opened = other.store().clone().with_keyring(ring());
    let answer = other.get(&response).send().await.expect_status(200);
    assert_eq!(answer.json()["body"], "note", "{answer:?}");
}

/// The lock's key is the client address; without it the run would not match its job.
pub(crate) async fn replay_keeps_client_address(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/peer").await;
    let job = expect_accepted(site.post("/peer").send().await);
    let _ = hold.finish().await.expect_status(200);
    let seen = job.wait_until_done(&site).await;
    let peer = seen["peer"].as_str().unwrap_or_default();
    assert!(peer.starts_with("127.0.0.1:"), "{seen}");
}

pub(crate) async fn deferred_request_is_charged_once(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let answer = site.post("/metered/7").send().await;
    assert!(answer.header("ratelimit").contains(";r=4;"), "{answer:?}");
    let job = expect_accepted(answer);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    let answer = site.get("/metered/7").send().await.expect_status(200);
    assert!(answer.header("ratelimit").contains(";r=3;"), "{answer:?}");
}

/// The worker's routes include the authentication, and a run carries no credential.
pub(crate) async fn authentication_around_worker_routes_is_a_dead_letter(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let _ = site.post("/guarded/7").send().await.expect_status(401);
    let sent = site.post("/guarded/7?tag=guarded").header("x-pass", "1");
    let job = expect_accepted(sent.send().await);
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_until_dead(&site, "auth").await;
    assert!(document["response"].is_null(), "{document}");
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["", ""]);
}

pub(crate) async fn job_without_route_stays_queued(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/unknown/7?tag=unknown").send().await);
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_for_status(&site, |document| document["reason"] == "unroutable").await;
    assert_eq!(document["state"], "queued", "{document}");
    assert_eq!(document["attempts"], 0, "uncharged: {document}");
    // The job blocks other requests only during its retries.
    measure_acquire(&site, "7").await;
    assert_eq!(case.handler.run_tags(), ["", ""]);
}

pub(crate) async fn forged_replay_markers_are_ignored(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "").await;
    let mut forged = site.post("/orders/7/refund");
    let names = [
        "x-lockgate-replay",
        "lockgate-held",
        "x-lockgate-deferred",
        "lockgate-job",
        "x-replay",
        "x-deferred",
        "deferred",
        "replay",
        "x-lockgate-fence",
        "x-lockgate-token",
    ];
    for name in names {
        forged = forged.header(name, &job.id);
    }
    let second = expect_accepted(forged.clone().send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(
        second.wait_until_done(&site).await["deferred"],
        json!({ "id": second.id, "attempt": 1 })
    );
    let seen = forged.send().await.expect_status(200).json();
    assert!(seen["deferred"].is_null(), "{seen}");
    assert!(seen["fence"].is_u64(), "{seen}");
    assert!(replayed_header(&seen, "lockgate-held").is_empty(), "{seen}");
    // A request with a forged marker is not deferred, acquires its lock as usual, and the handler
    // does not see the marker.
    let with_forged_marker = |target| site.post(target).header("Lockgate-Replay", "1;forged");
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(with_forged_marker("/orders/7/refund").send().await);
    let _ = hold.finish().await.expect_status(200);
    for target in ["/orders/7/refund", "/orders/7/pay"] {
        let seen = with_forged_marker(target).send().await.expect_status(200).json();
        assert!(seen["deferred"].is_null() && seen["fence"].is_u64(), "{seen}");
        assert!(replayed_header(&seen, "lockgate-replay").is_empty(), "{seen}");
    }
    // A forged marker does not bypass its layers: an always-deferring route, a used key.
    let run_count = case.handler.completed_runs().len();
    expect_busy(with_forged_marker("/always/7").send().await);
    // The same holds for a marker that is not UTF-8.
    let mut raw = site.raw_connection().await;
    let head =
        b"POST /always/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nlockgate-replay: \xff\r\n\r\n";
    raw.write(head).await;
    let answer = raw.read_until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    let keyed = |request: TestRequest| request.header("Idempotency-Key", "used");
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(keyed(site.post("/orders/7/refund")).send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    expect_busy(keyed(with_forged_marker("/orders/7/refund")).send().await);
    assert_eq!(case.handler.completed_runs().len(), run_count + 2, "the holder and the job");
}

pub(crate) async fn failed_or_panicked_post_is_a_dead_letter(case: TestCase) {
    let site = case.site_builder().await.concurrency(1).start().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let failed = defer_refund(&site, "status=500&tag=failed").await;
    let panicked = defer_refund(&site, "panic=1&tag=panicked").await;
    let next = defer_refund(&site, "tag=next").await;
    let _ = hold.finish().await.expect_status(200);
    for (job, reason) in [(failed, "failed"), (panicked, "panicked")] {
        let document = job.wait_until_dead(&site, reason).await;
        assert_eq!(document["attempts"], 1, "{document}");
    }
    // The worker continues after the failed run.
    let _ = next.wait_until_done(&site).await;
    assert_eq!(
        case.handler.run_tags(),
        ["hold", "failed", "panicked", "next"],
        "each has run once"
    );
}

pub(crate) async fn failed_put_is_retried(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = defer_put(&site, "fail=1&tag=job").await;
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!(document["attempts"], 2, "{document}");
    let seen = &document["response"]["body"]["deferred"];
    assert_eq!(*seen, json!({ "id": job.id, "attempt": 2 }));
    assert_eq!(case.handler.run_tags(), ["hold", "job", "job"]);
}

pub(crate) async fn post_of_crashed_worker_is_a_dead_letter(case: TestCase) {
    let mut site = case.site_builder().await.lease(Duration::from_secs(3)).start().await;
    let other = case.site_builder().await.without_worker().start().await;
    let hold = other.post_held("/orders/7/pay?tag=hold").await;
    let job = defer_refund(&other, "gate=run&tag=job").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    site.crash_worker().await;
    site.start_worker();
    let document = job.wait_until_dead(&other, "crashed").await;
    assert_eq!(document["attempts"], 1, "{document}");
    let _ = other.post("/orders/7/pay?tag=last").send().await.expect_status(200);
    assert_eq!(
        case.handler.run_tags(),
        ["hold", "last"],
        "the run was cut off, and none came after it"
    );
}

pub(crate) async fn put_of_crashed_worker_is_retried(case: TestCase) {
    let mut site = case.site_builder().await.lease(Duration::from_secs(3)).start().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = defer_put(&site, "gate=run&tag=job").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    site.crash_worker().await;
    site.start_worker();
    case.handler.sync_points.wait_for_arrivals("run", 2).await;
    case.handler.sync_points.open("run");
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!(document["attempts"], 2, "{document}");
    assert_eq!(case.handler.run_tags(), ["hold", "job"]);
}

pub(crate) async fn jobs_without_worker_do_not_block_requests(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let jobs = [defer_refund(&site, "tag=1").await, defer_refund(&site, "tag=2").await];
    let _ = hold.finish().await.expect_status(200);
    let answer = site.get(&jobs[0].location).send().await.expect_status(200);
    assert!(answer.retry_after_seconds() >= 10, "a blocked job is not expected within a second");
    let document = answer.json();
    assert_eq!(document["state"], "queued", "{document}");
    assert_eq!(document["reason"], "no worker", "{document}");
    assert_eq!(document["worker"], false, "{document}");
    for _ in 0..2 {
        let _ = site.post("/orders/7/ship?tag=others").send().await.expect_status(200);
        let _ = site.post("/orders/7/pay?tag=others").send().await.expect_status(200);
    }
    // A job that is deferred while others wait is queued behind them.
    let hold = site.post_held("/orders/7/pay?tag=others").await;
    let last = defer_refund(&site, "tag=3").await;
    let _ = hold.finish().await.expect_status(200);
    let other = case.site_builder().await.framework(case.framework.other()).start().await;
    for job in jobs.iter().chain([&last]) {
        let _ = job.wait_until_done(&other).await;
    }
    let others = ["others"; 5];
    assert_eq!(case.handler.run_tags(), [&["hold"][..], &others, &["1", "2", "3"]].concat());
}
