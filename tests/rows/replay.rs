//! How a deferred request runs.

use std::time::Duration;

use lockgate::Keyring;
use lockgate_tests::{Case, Request, Site};
use proptest::{
    collection::vec,
    prop_oneof,
    sample::select,
    strategy::{Strategy as _, ValueTree as _},
    test_runner::TestRunner,
};
use serde_json::{Value, json};

use super::{Job, accepted, defer::refund, lock::busy, passes_at_once};

/// The values of a field, as a handler saw them.
fn field<'a>(seen: &'a Value, name: &str) -> Vec<&'a str> {
    let fields = seen["headers"].as_array().expect("a list");
    let named = fields.iter().filter(|field| field[0] == name);
    named.filter_map(|field| field[1].as_str()).collect()
}

async fn put(site: &Site, query: &str) -> Job {
    let target = format!("/orders/7/refund?{query}");
    accepted(site.put(&target).send().await)
}

pub(crate) async fn the_request_is_the_same_without_its_connection(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
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
    let job = accepted(sent.send().await);
    let _ = hold.let_go().await.expect(200);
    let seen = job.done(&site).await;
    assert_eq!(seen["method"], "PUT");
    assert_eq!(seen["target"], "/orders/%37/refund?a=b%20c&d");
    assert_eq!(seen["route"], "/orders/{id}/refund");
    assert_eq!(seen["body"], "note");
    assert_eq!(field(&seen, "x-many"), ["one", "two"]);
    assert_eq!(field(&seen, "accept-language"), ["de"]);
    // Though `RedisConnection` nominates these two.
    assert_eq!(field(&seen, "host"), [site.addr.to_string()]);
    assert_eq!(field(&seen, "idempotency-key"), ["\"mine\""]);
    assert_eq!(field(&seen, "content-length"), ["4"]);
    for hop in ["connection", "te", "keep-alive", "prefer"] {
        assert!(field(&seen, hop).is_empty(), "{hop}: {seen}");
    }
}

/// Header lines that belong to one connection or one exchange, as the README names them.
const FIXED: [&str; 11] = [
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

/// Credentials of [`lists`].
const CREDENTIALS: [&str; 3] = ["authorization", "cookie", "x-api-key"];

/// All lines that a handler saw, those of one name in their order, but for the fixed ones, ours, the credentials and the
/// idempotency key.
fn lasting(seen: &Value) -> Vec<(String, String)> {
    let lines = seen["headers"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines: Vec<_> = lines.map(|line| (text(&line[0]), text(&line[1]))).collect();
    let is_dropped = |name: &str| FIXED.contains(&name) || CREDENTIALS.contains(&name);
    lines.retain(|(name, _)| {
        !is_dropped(name) && !name.starts_with("lockgate-") && name != "idempotency-key"
    });
    lines.sort_by(|(one, _), (other, _)| one.cmp(other));
    lines
}

/// Name and value of a header line.
type Line = (String, Vec<u8>);

/// Lists of lines with any names and bytes that a client may send. Left out is what would make it another exchange: an upgrade,
/// an expectation, another length or host, a claim to be a run.
fn lists() -> Vec<Vec<Line>> {
    const KNOWN: &[&str] = &[
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
        prop_oneof![select(KNOWN).prop_map(str::to_owned), any]
    };
    let value = vec(prop_oneof![0x21..=0x7e_u8, 0x80..=0xff_u8], 0..20);
    let nominates = vec(name(), 1..6)
        .prop_map(|names| ("connection".to_owned(), names.join(", ").into_bytes()));
    // Lines of one name.
    let again = (name(), vec(value.clone(), 0..3)).prop_map(|(name, values)| {
        values.into_iter().map(|value| (name.clone(), value)).collect::<Vec<Line>>()
    });
    let lines = vec(prop_oneof![3 => (name(), value), 1 => nominates], 0..16);
    let list = (again, lines).prop_map(|(again, lines)| [again, lines].concat());
    let mut runner = TestRunner::deterministic();
    (0..LISTS).map(|_| list.new_tree(&mut runner).expect("a list").current()).collect()
}

/// Lists that are sent to each framework on each store.
const LISTS: usize = 32;

/// Whatever the lines are, and whatever `RedisConnection` nominates: the run sees what the direct one does.
pub(crate) async fn lines_of_any_names_come_along(case: Case) {
    let site = case.site().await;
    let send = |target: &str, list: &[Line]| {
        let request = site.post(target).header("authorization", "Bearer ann");
        let add = |request: Request, (name, value): &Line| request.header_bytes(name, value);
        list.iter().fold(request, add).send()
    };
    let hold = site.hold("/orders/7/pay").await;
    let mut listed = Vec::new();
    for list in lists() {
        let job = accepted(send("/carried/7", &list).await);
        listed.push((list, job));
    }
    let _ = hold.let_go().await.expect(200);
    for (list, job) in listed {
        let deferred = job.done(&site).await;
        let direct = send("/carried/8", &list).await.expect(200).json();
        assert_eq!(lasting(&deferred), lasting(&direct), "{list:?}");
    }
}

pub(crate) async fn a_credential_that_is_kept_comes_along(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let sent = site.post("/kept/7").header("authorization", "Bearer x");
    let job = accepted(sent.send().await);
    for (name, value) in [("cookie", "a=b"), ("x-api-key", "k")] {
        busy(site.post("/kept/7").header(name, value).send().await);
    }
    let _ = hold.let_go().await.expect(200);
    assert_eq!(field(&job.done(&site).await, "authorization"), ["Bearer x"]);
}

pub(crate) async fn who_it_was_comes_along_and_not_the_credential(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/carried/7").header("authorization", "Bearer ann").send().await);
    let nobody = accepted(site.post("/carried/7").send().await);
    let both = site.post("/carried/7").header("authorization", "Bearer bob");
    let both = both.header("x-api-key", "k").header("x-forwarded-access-token", "t");
    let both = accepted(both.send().await);
    // Whose cookie it is nobody has said.
    busy(site.post("/carried/7").header("cookie", "a=b").send().await);
    let _ = hold.let_go().await.expect(200);
    let seen = job.done(&site).await;
    assert_eq!(seen["user"], "ann", "{seen}");
    assert!(field(&seen, "authorization").is_empty(), "{seen}");
    assert!(nobody.done(&site).await["user"].is_null());
    let seen = both.done(&site).await;
    assert_eq!(seen["user"], "bob", "{seen}");
    for name in ["x-api-key", "x-forwarded-access-token"] {
        assert!(field(&seen, name).is_empty(), "{name}: {seen}");
    }
}

/// What a user may do can change while a request waits.
pub(crate) async fn who_lost_the_right_to_it_does_not_run(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let send = |token| site.put("/carried/7").header("authorization", token).send();
    let (eve, ann) = (accepted(send("Bearer eve").await), accepted(send("Bearer ann").await));
    case.desk.revoke("eve");
    let _ = hold.let_go().await.expect(200);
    let document = eve.dead(&site, "not authorized any more").await;
    assert!(document.get("response").is_none(), "{document}");
    let answer = site.get(&format!("{}/response", eve.location)).send().await.expect(403);
    let problem = answer.problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:not-authorized");
    assert_eq!(problem["state"], "dead");
    assert_eq!(ann.done(&site).await["user"], "ann");
    assert_eq!(case.desk.ran().len(), 2, "the holder and the other one");
}

pub(crate) async fn a_key_is_made_if_none_was_sent(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let retried = put(&site, "fail=1").await;
    let sent = site.post("/orders/7/refund").header("idempotency-key", "\"mine\"");
    let named = accepted(sent.send().await);
    let _ = hold.let_go().await.expect(200);
    let seen = retried.done(&site).await;
    let [made] = field(&seen, "idempotency-key")[..] else { panic!("{seen}") };
    assert!(made.len() > 30 && !made.contains(&retried.id), "{made}");
    assert_eq!(field(&named.done(&site).await, "idempotency-key"), ["\"mine\""]);
    let seen = site.post("/orders/7/refund").send().await.expect(200).json();
    assert!(field(&seen, "idempotency-key").is_empty(), "only for runs: {seen}");
}

/// Neither waits the worker for its end, nor the next job.
pub(crate) async fn a_stream_is_not_kept(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = refund(&site, "stream=never&events=1").await;
    let next = refund(&site, "").await;
    let _ = hold.let_go().await.expect(200);
    let _ = next.done(&site).await;
    let document = job.ended(&site).await;
    let response = &document["response"];
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!((&response["status"], &response["stored"]), (&json!(200), &json!("stream")));
    assert_eq!(response["headers"]["content-type"], "text/event-stream", "{document}");
    let answer = site.get(&format!("{}/response", job.location)).send().await.expect(410);
    assert_eq!(answer.json()["stored"], "stream", "{answer:?}");
}

pub(crate) async fn a_body_of_no_known_length_is_kept_up_to_the_limit(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let short = refund(&site, "stream=open").await;
    let long = refund(&site, "stream=open&mib=2").await;
    case.desk.gates.open("open");
    let _ = hold.let_go().await.expect(200);
    let document = short.ended(&site).await;
    assert_eq!(document["response"]["stored"], "body", "{document}");
    let whole = site.get(&format!("{}/response", short.location)).send().await.expect(200);
    assert_eq!(whole.body, "first-last", "{whole:?}");
    let document = long.ended(&site).await;
    assert_eq!(document["response"]["stored"], "stream", "{document}");
}

pub(crate) async fn what_is_sealed_runs_and_is_told(case: Case) {
    let ring = || Keyring::new("one", [7; 32]).require_sealed();
    let site = case.site().await;
    let _sealed = site.store().clone().with_keyring(ring());
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/orders/7/refund").body("note").send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(job.done(&site).await["body"], "note");
    let other = case.plan().await.no_worker().start().await;
    let response = format!("{}/response", job.location);
    let _ = other.get(&response).send().await.expect(503);
    let _opened = other.store().clone().with_keyring(ring());
    let answer = other.get(&response).send().await.expect(200);
    assert_eq!(answer.json()["body"], "note", "{answer:?}");
}

/// Its lock is named by the address: without it the run would not be recognised.
pub(crate) async fn the_client_keeps_its_address(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/peer").await;
    let job = accepted(site.post("/peer").send().await);
    let _ = hold.let_go().await.expect(200);
    let seen = job.done(&site).await;
    let peer = seen["peer"].as_str().unwrap_or_default();
    assert!(peer.starts_with("127.0.0.1:"), "{seen}");
}

pub(crate) async fn a_quota_is_charged_once(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let answer = site.post("/metered/7").send().await;
    assert!(answer.field("ratelimit").contains(";r=4;"), "{answer:?}");
    let job = accepted(answer);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    let answer = site.get("/metered/7").send().await.expect(200);
    assert!(answer.field("ratelimit").contains(";r=3;"), "{answer:?}");
}

/// The worker was given routes with the authentication around them, and a run has nothing to show.
pub(crate) async fn authentication_in_the_way_is_a_dead_letter(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let _ = site.post("/guarded/7").send().await.expect(401);
    let sent = site.post("/guarded/7?tag=guarded").header("x-pass", "1");
    let job = accepted(sent.send().await);
    let _ = hold.let_go().await.expect(200);
    let document = job.dead(&site, "auth").await;
    assert!(document["response"].is_null(), "{document}");
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    assert_eq!(case.desk.tags(), ["", ""]);
}

pub(crate) async fn a_route_that_is_missing_is_waited_for(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/unknown/7?tag=unknown").send().await);
    let _ = hold.let_go().await.expect(200);
    let document = job.becomes(&site, |document| document["reason"] == "unroutable").await;
    assert_eq!(document["state"], "queued", "{document}");
    assert_eq!(document["attempts"], 0, "uncharged: {document}");
    // Nobody else waits for it, but while it is tried again.
    passes_at_once(&site, "7").await;
    assert_eq!(case.desk.tags(), ["", ""]);
}

pub(crate) async fn forged_markers_are_nothing(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = refund(&site, "").await;
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
    let second = accepted(forged.clone().send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(second.done(&site).await["deferred"], json!({ "id": second.id, "attempt": 1 }));
    let seen = forged.send().await.expect(200).json();
    assert!(seen["deferred"].is_null(), "{seen}");
    assert!(seen["fence"].is_u64(), "{seen}");
    assert!(field(&seen, "lockgate-held").is_empty(), "{seen}");
    // One that says of itself that it is a run is not deferred, takes its lock as ever, and its handler hears
    // nothing of that.
    let said = |target| site.post(target).header("Lockgate-Replay", "1;forged");
    let hold = site.hold("/orders/7/pay").await;
    busy(said("/orders/7/refund").send().await);
    let _ = hold.let_go().await.expect(200);
    for target in ["/orders/7/refund", "/orders/7/pay"] {
        let seen = said(target).send().await.expect(200).json();
        assert!(seen["deferred"].is_null() && seen["fence"].is_u64(), "{seen}");
        assert!(field(&seen, "lockgate-replay").is_empty(), "{seen}");
    }
    // Nor does it get around what its layer is there for: a route that defers all, a key that has been used.
    let ran = case.desk.ran().len();
    busy(said("/always/7").send().await);
    // Nor in bytes that are no text.
    let mut raw = site.raw().await;
    let head =
        b"POST /always/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nlockgate-replay: \xff\r\n\r\n";
    raw.write(head).await;
    let answer = raw.read_until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    let keyed = |request: Request| request.header("Idempotency-Key", "used");
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(keyed(site.post("/orders/7/refund")).send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    busy(keyed(said("/orders/7/refund")).send().await);
    assert_eq!(case.desk.ran().len(), ran + 2, "the holder and the job");
}

pub(crate) async fn a_post_that_fails_or_panics_is_a_dead_letter(case: Case) {
    let site = case.plan().await.concurrency(1).start().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let failed = refund(&site, "status=500&tag=failed").await;
    let panicked = refund(&site, "panic=1&tag=panicked").await;
    let next = refund(&site, "tag=next").await;
    let _ = hold.let_go().await.expect(200);
    for (job, reason) in [(failed, "failed"), (panicked, "panicked")] {
        let document = job.dead(&site, reason).await;
        assert_eq!(document["attempts"], 1, "{document}");
    }
    // The worker lives on.
    let _ = next.done(&site).await;
    assert_eq!(case.desk.tags(), ["hold", "failed", "panicked", "next"], "each has run once");
}

pub(crate) async fn a_put_that_fails_runs_again(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let job = put(&site, "fail=1&tag=job").await;
    let _ = hold.let_go().await.expect(200);
    let document = job.ended(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!(document["attempts"], 2, "{document}");
    let seen = &document["response"]["body"]["deferred"];
    assert_eq!(*seen, json!({ "id": job.id, "attempt": 2 }));
    assert_eq!(case.desk.tags(), ["hold", "job", "job"]);
}

pub(crate) async fn a_post_whose_worker_died_is_a_dead_letter(case: Case) {
    let mut site = case.plan().await.lease(Duration::from_secs(3)).start().await;
    let other = case.plan().await.no_worker().start().await;
    let hold = other.hold("/orders/7/pay?tag=hold").await;
    let job = refund(&other, "gate=run&tag=job").await;
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    site.crash_worker().await;
    site.start_worker();
    let document = job.dead(&other, "crashed").await;
    assert_eq!(document["attempts"], 1, "{document}");
    let _ = other.post("/orders/7/pay?tag=last").send().await.expect(200);
    assert_eq!(case.desk.tags(), ["hold", "last"], "the run was cut off, and none came after it");
}

pub(crate) async fn a_put_whose_worker_died_runs_again(case: Case) {
    let mut site = case.plan().await.lease(Duration::from_secs(3)).start().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let job = put(&site, "gate=run&tag=job").await;
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    site.crash_worker().await;
    site.start_worker();
    case.desk.gates.arrived_times("run", 2).await;
    case.desk.gates.open("run");
    let document = job.ended(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!(document["attempts"], 2, "{document}");
    assert_eq!(case.desk.tags(), ["hold", "job"]);
}

pub(crate) async fn without_a_worker_the_others_go_on(case: Case) {
    let site = case.plan().await.no_worker().start().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let jobs = [refund(&site, "tag=1").await, refund(&site, "tag=2").await];
    let _ = hold.let_go().await.expect(200);
    let answer = site.get(&jobs[0].location).send().await.expect(200);
    assert!(answer.retry_after() >= 10, "nobody will run it in a second");
    let document = answer.json();
    assert_eq!(document["state"], "queued", "{document}");
    assert_eq!(document["reason"], "no worker", "{document}");
    assert_eq!(document["worker"], false, "{document}");
    for _ in 0..2 {
        let _ = site.post("/orders/7/ship?tag=others").send().await.expect(200);
        let _ = site.post("/orders/7/pay?tag=others").send().await.expect(200);
    }
    // What is deferred while others wait stands behind them.
    let hold = site.hold("/orders/7/pay?tag=others").await;
    let last = refund(&site, "tag=3").await;
    let _ = hold.let_go().await.expect(200);
    let other = case.plan().await.framework(case.framework.other()).start().await;
    for job in jobs.iter().chain([&last]) {
        let _ = job.done(&other).await;
    }
    let others = ["others"; 5];
    assert_eq!(case.desk.tags(), [&["hold"][..], &others, &["1", "2", "3"]].concat());
}
