//! `Idempotency-Key` of requests that ran at once, and of those that waited.

use lockgate_tests::{Answer, Case, Raw, Request, Site, eventually};

use super::{accepted, line_is, lock::busy};

fn keyed(site: &Site, query: &str) -> Request {
    under(site, "k", query)
}

fn under(site: &Site, key: &str, query: &str) -> Request {
    site.post(&format!("/remembered/7?{query}")).header("idempotency-key", key)
}

pub(crate) async fn what_ran_at_once_does_not_run_again(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let first = keyed(&site, "tag=one&status=201").body("note").send().await.expect(201);
    for site in [&site, &other] {
        let answer = keyed(site, "tag=one&status=201").body("note").send().await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        let job = accepted(answer);
        let document = job.document(site).await;
        assert_eq!(document["response"]["status"], 201, "{document}");
        let response = format!("{}/response", job.location);
        let stored = site.get(&response).send().await.expect(201);
        assert_eq!(stored.body, first.body);
    }
    // Whatever keeps it from being stored: it is not to be stored.
    let same = keyed(&site, "tag=one&status=201").header("cookie", "a=b");
    let _ = accepted(same.body("note").send().await);
    // Nobody reads as much to tell that it is another one.
    let long = keyed(&site, "tag=one&status=201").body(vec![b'x'; 64 * 1024 + 1]);
    busy(long.send().await);
    assert_eq!(case.desk.tags(), ["one"]);
    let _ = site.post("/remembered/7").send().await.expect(200);
}

pub(crate) async fn another_request_under_the_key_of_one_that_ran_is_refused(case: Case) {
    let site = case.site().await;
    let sent = |key: &str| site.post("/remembered/7?tag=one").header("idempotency-key", key);
    for (key, body) in [("with", "note"), ("without", "")] {
        let _ = sent(key).body(body).send().await.expect(200);
        let _ = accepted(sent(key).body(body).send().await);
        let others = [
            sent(key).body("other"),
            sent(key).body("other").header("cookie", "a=b"),
            site.post("/remembered/7?tag=two").header("idempotency-key", key).body(body),
        ];
        for other in others {
            let _ = other.send().await.expect(422).problem();
        }
    }
    assert_eq!(case.desk.tags(), ["one", "one"]);
}

pub(crate) async fn what_was_not_let_in_runs_again(case: Case) {
    let site = case.site().await;
    // A retry may bring a new token.
    for status in [401, 403] {
        let answer = keyed(&site, &format!("tag=refused&status={status}")).send().await;
        let _ = answer.expect(status);
    }
    let _ = keyed(&site, "tag=done").send().await.expect(200);
    let _ = accepted(keyed(&site, "tag=done").send().await);
    assert_eq!(case.desk.tags(), ["refused", "refused", "done"]);
}

/// A lock and a quota within the lock: neither calls the handler.
pub(crate) async fn what_a_gate_within_refuses_runs_again(case: Case) {
    let site = case.site().await;
    let sent = |tag: &str, user: &str| {
        let sent = site.post(&format!("/remembered-within/7?tag={tag}"));
        sent.header("x-account", "a").header("x-api-key", user)
    };
    let keyed = |user: &str| sent("one", user).header("idempotency-key", "k");
    let account = site.post("").header("x-account", "a");
    let hold = site.hold_with(account, "/account?tag=hold").await;
    for _ in 0..2 {
        busy(keyed("first").send().await);
    }
    let _ = hold.let_go().await.expect(200);
    let _ = sent("spend", "second").send().await.expect(200);
    for _ in 0..2 {
        let _ = keyed("second").send().await.expect(429).problem();
    }
    let _ = keyed("first").send().await.expect(200);
    let _ = accepted(keyed("first").send().await);
    assert_eq!(case.desk.tags(), ["hold", "spend", "one"]);
}

/// It may have done its work before: the status alone tells nothing.
pub(crate) async fn what_the_handler_refuses_has_run(case: Case) {
    let site = case.site().await;
    for status in [409, 423, 425, 429, 503] {
        let key = format!("k{status}");
        let sent = || under(&site, &key, &format!("tag={status}&status={status}"));
        let _ = sent().send().await.expect(status);
        let answer = sent().send().await;
        if matches!(status, 409 | 423) {
            let document = accepted(answer).document(&site).await;
            assert_eq!(document["response"]["status"], status, "{document}");
        } else {
            is_dead(&site, answer, "failed, may have run").await;
        }
    }
    assert_eq!(case.desk.tags(), ["409", "423", "425", "429", "503"]);
}

/// A request whose handler panics, whatever becomes of its connection.
async fn panics(request: Request) {
    let answer = request.try_send().await;
    assert!(
        answer.as_ref().is_ok_and(|answer| answer.status == 500) || answer.is_err(),
        "{answer:?}"
    );
}

/// As of a deferred request.
async fn is_dead(site: &Site, answer: Answer, reason: &str) {
    assert_eq!(answer.json()["state"], "dead", "{answer:?}");
    let job = accepted(answer);
    let document = job.document(site).await;
    assert_eq!(document["reason"], reason, "{document}");
    let _ = site.get(&format!("{}/response", job.location)).send().await.expect(410).problem();
}

pub(crate) async fn what_failed_may_have_run(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let failed = || keyed(&site, "tag=failed&status=500");
    let _ = failed().send().await.expect(500);
    is_dead(&site, failed().send().await, "failed, may have run").await;
    let panicked = |site: &Site| under(site, "p", "tag=panicked&panic=1");
    panics(panicked(&site)).await;
    for site in [&site, &other] {
        is_dead(site, panicked(site).send().await, "stopped, may have run").await;
    }
    assert_eq!(case.desk.tags(), ["failed", "panicked"]);
    // The lock is free.
    let _ = site.post("/remembered/7").send().await.expect(200);
}

pub(crate) async fn what_failed_and_does_nothing_twice_runs_again(case: Case) {
    let site = case.site().await;
    for (method, path) in [("PUT", "/remembered/7"), ("POST", "/remembered-again/7")] {
        let sent = |query: &str| {
            let sent = site.request(method, &format!("{path}?{query}"));
            sent.header("idempotency-key", "k")
        };
        let _ = sent("tag=failed&status=500").send().await.expect(500);
        panics(sent("tag=panicked&panic=1")).await;
        let _ = sent("tag=done").send().await.expect(200);
        assert_eq!(accepted(sent("tag=done").send().await).document(&site).await["state"], "done");
        assert_eq!(case.desk.tags(), ["failed", "panicked", "done"], "{method} {path}");
        case.desk.forget();
    }
}

/// `max_hold` is over while the handler works: what it has done is unknown.
pub(crate) async fn what_lost_its_lock_may_have_run(case: Case) {
    let site = case.site().await;
    let sent = |key: &str| {
        let sent = site.post("/remembered-briefly/7?tag=one&after=never");
        sent.header("idempotency-key", key)
    };
    let _ = sent("waits").send().await.expect(503).problem();
    is_dead(&site, sent("waits").send().await, "stopped, may have run").await;
    // The same where its client has left before.
    let leaver = sent("leaves").spawn();
    case.desk.gates.arrived("never").await;
    leaver.disconnect().await;
    eventually("it to be stopped", async || sent("leaves").send().await.status == 202).await;
    is_dead(&site, sent("leaves").send().await, "stopped, may have run").await;
    assert_eq!(case.desk.tags(), ["one", "one"]);
}

/// With the head out, and the lock free.
async fn streams(site: &Site, key: &str, query: &str) -> Raw {
    let mut raw = site.raw().await;
    raw.write(&format!(
        "POST /remembered/7?{query} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\nconnection: close\r\n\r\n"
    ))
    .await;
    let answer = raw.read_until("first").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    raw
}

pub(crate) async fn a_stream_is_remembered_when_it_has_ended(case: Case) {
    let site = case.site().await;
    let mut raw = streams(&site, "k", "tag=one&stream=more").await;
    busy(keyed(&site, "tag=one&stream=more").send().await);
    let _ = site.post("/orders/7/pay?tag=other").send().await.expect(200);
    case.desk.gates.open("more");
    let rest = raw.read_until("\r\n0\r\n\r\n").await;
    assert!(rest.contains("last"), "{rest}");
    // It was written down before the client could see the end.
    let answer = keyed(&site, "tag=one&stream=more").send().await;
    assert_eq!(answer.json()["state"], "done", "{answer:?}");
    assert_eq!(accepted(answer).document(&site).await["response"]["status"], 200);
    // What has no end is not waited for.
    let events = "tag=events&stream=never&events=1";
    let _raw = streams(&site, "e", events).await;
    let answer = under(&site, "e", events).send().await;
    assert_eq!(answer.json()["state"], "done", "{answer:?}");
    assert_eq!(case.desk.tags(), ["one", "other", "events"]);
}

pub(crate) async fn a_stream_that_breaks_off_may_have_run(case: Case) {
    let site = case.site().await;
    for how in ["error", "panic"] {
        let query = format!("tag={how}&stream={how}&breaks={how}");
        let mut raw = streams(&site, how, &query).await;
        case.desk.gates.open(how);
        let rest = raw.read_to_end().await;
        assert!(!rest.contains("last"), "{rest}");
        is_dead(&site, under(&site, how, &query).send().await, "failed, may have run").await;
        assert_eq!(case.desk.tags(), [how]);
        case.desk.forget();
    }
}

/// The handler may do its work as it streams: it goes on to its end, and its answer is kept.
pub(crate) async fn a_stream_goes_on_when_its_client_has_left(case: Case) {
    let site = case.site().await;
    for (key, more, kept) in [("short", "", true), ("long", "&mib=1", false)] {
        let query = format!("tag=one&stream={key}{more}");
        drop(streams(&site, key, &query).await);
        busy(under(&site, key, &query).send().await);
        case.desk.gates.open(key);
        let ended = async || under(&site, key, &query).send().await.status == 202;
        eventually("it to end", ended).await;
        let answer = under(&site, key, &query).send().await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        let response = format!("{}/response", accepted(answer).location);
        let response = site.get(&response).send().await;
        if kept {
            assert_eq!(response.expect(200).body, "first-last");
        } else {
            // It has run, and was too long to be kept.
            assert_eq!(response.expect(410).json()["stored"], "stream");
        }
    }
    assert_eq!(case.desk.tags(), ["one", "one"]);
}

/// Of known length, and longer than what is kept: the client gets it all.
pub(crate) async fn a_long_answer_is_passed_through(case: Case) {
    let site = case.site().await;
    for (key, bytes, stored) in [("fits", 64 << 10, "body"), ("long", (64 << 10) + 1, "too long")] {
        let body = vec![b'x'; bytes];
        let sent = || under(&site, key, "tag=one&echo=1").body(body.clone());
        let answer = sent().send().await.expect(200);
        assert_eq!(
            (answer.headers["content-length"].as_bytes(), answer.body.len()),
            (bytes.to_string().as_bytes(), bytes)
        );
        let answer = under(&site, key, "tag=one&echo=1").body(body.clone()).send().await;
        // The longer body of the request is not compared either: it is taken for the same.
        let document = accepted(answer).document(&site).await;
        assert_eq!(document["response"]["stored"], stored, "{document}");
    }
    assert_eq!(case.desk.tags(), ["one", "one"]);
}

pub(crate) async fn a_retry_meanwhile_of_what_fails_may_run(case: Case) {
    let site = case.site().await;
    let failing = || keyed(&site, "tag=failed&status=401&gate=first");
    let first = failing().spawn();
    case.desk.gates.arrived("first").await;
    busy(failing().send().await);
    case.desk.gates.open("first");
    let _ = first.answer().await.expect(401);
    // The gate is open.
    let _ = failing().send().await.expect(401);
    assert_eq!(case.desk.tags(), ["failed", "failed"]);
}

/// Its work is done at once, and its answer comes when the client has left: one key is one execution.
pub(crate) async fn a_client_that_leaves_ends_nothing(case: Case) {
    let site = case.site().await;
    let sent = || keyed(&site, "tag=one&after=slow&text=paid").body("note");
    let leaver = sent().spawn();
    case.desk.gates.arrived("slow").await;
    leaver.disconnect().await;
    for _ in 0..3 {
        busy(sent().send().await);
    }
    case.desk.gates.open("slow");
    eventually("its answer to be kept", async || sent().send().await.status == 202).await;
    let job = accepted(sent().send().await);
    let response = site.get(&format!("{}/response", job.location)).send().await.expect(200);
    assert_eq!(response.body, "paid");
    assert_eq!(case.desk.tags(), ["one"]);
    assert_eq!(case.desk.gates.arrivals("slow"), 1);
}

/// Nothing has run yet.
pub(crate) async fn a_client_that_leaves_before_it_begins_may_come_again(case: Case) {
    // A waiter in the holder's own process has no place in the store's line.
    let (holder, site) = (case.site().await, case.site().await);
    let hold = holder.hold("/orders/7/pay?tag=hold").await;
    let leaver = keyed(&site, "tag=leaver").header("prefer", "wait=20").spawn();
    line_is(holder.store(), "7", 1).await;
    leaver.disconnect().await;
    line_is(holder.store(), "7", 0).await;
    let _ = hold.let_go().await.expect(200);
    let _ = keyed(&site, "tag=again").send().await.expect(200);
    assert_eq!(case.desk.tags(), ["hold", "again"]);
}

/// The client vanishes in the middle of its upload, and the handler refuses what has come of it.
pub(crate) async fn a_body_that_was_cut_off_locks_nobody_out(case: Case) {
    let site = case.site().await;
    for status in [400, 500] {
        let (key, gate) = (format!("k{status}"), format!("cut{status}"));
        let mut raw = site.raw().await;
        raw.write(&format!(
            "POST /remembered/7?tag=cut&status={status}&first={gate} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\n\
             content-length: 10\r\n\r\nabc"
        ))
        .await;
        case.desk.gates.arrived(&gate).await;
        drop(raw);
        case.desk.gates.open(&gate);
        eventually("it to be forgotten", async || {
            let answer = under(&site, &key, "tag=again").body("note").send().await;
            assert!(matches!(answer.status.as_u16(), 200 | 202 | 409), "{answer:?}");
            answer.status == 200 || answer.json()["state"] == "done"
        })
        .await;
        assert_eq!(case.desk.tags().last().map(String::as_str), Some("again"));
    }
}

/// One runs; the next is as one whose lock is busy.
pub(crate) async fn runs_are_bounded(case: Case) {
    let site = case.site().await;
    let sent = |id: u32, query: &str| {
        let sent = site.post(&format!("/remembered-one/{id}?{query}"));
        sent.header("idempotency-key", "k")
    };
    let first = sent(7, "tag=first&after=first").spawn();
    case.desk.gates.arrived("first").await;
    let job = accepted(sent(8, "tag=second").send().await);
    let _ = job.done(&site).await;
    // Without the key nothing is remembered.
    let _ = site.post("/remembered-one/9?tag=free").send().await.expect(200);
    case.desk.gates.open("first");
    let _ = first.answer().await.expect(200);
    let _ = sent(9, "tag=third").send().await.expect(200);
    let ran: Vec<_> = case.desk.ran().into_iter().map(|ran| (ran.tag, ran.deferred)).collect();
    let of = |tag: &str, deferred| (tag.to_owned(), deferred);
    assert_eq!(
        ran,
        [of("first", false), of("second", true), of("free", false), of("third", false)]
    );
}

/// One waits for a second, then is deferred; the other has waited from before, and is let in when that
/// has been accepted.
pub(crate) async fn what_was_accepted_while_it_waited_is_known(case: Case) {
    let (site, one, two) = (case.site().await, case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let wait = |site: &Site, seconds: u32| {
        let sent = site.post("/orders/7/refund?tag=once").header("idempotency-key", "k");
        sent.header("prefer", &format!("wait={seconds}"))
    };
    let patient = wait(&one, 20).spawn();
    line_is(site.store(), "7", 1).await;
    let job = accepted(wait(&two, 1).send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(accepted(patient.answer().await).id, job.id);
    let _ = job.done(&site).await;
    assert_eq!(case.desk.tags(), ["hold", "once"]);
}

/// Nothing is deferred under several locks, or a permit; what ran there is known all the same.
pub(crate) async fn what_ran_under_several_locks_or_a_permit_does_not_run_again(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    for (path, gate) in [("/remembered-several/7", "several"), ("/remembered-permits/7", "permit")]
    {
        let one = format!("tag=one&gate={gate}");
        let sent = |site: &Site, query: &str| {
            let sent = site.post(&format!("{path}?{query}")).header("idempotency-key", "k");
            sent.body("note")
        };
        let _ = sent(&site, "tag=failed&status=401").send().await.expect(401);
        let first = sent(&site, &one).spawn();
        case.desk.gates.arrived(gate).await;
        busy(sent(&other, &one).send().await);
        case.desk.gates.open(gate);
        let _ = first.answer().await.expect(200);
        for site in [&site, &other] {
            let job = accepted(sent(site, &one).send().await);
            assert_eq!(job.document(site).await["response"]["status"], 200);
        }
        let _ = sent(&site, "tag=two").send().await.expect(422).problem();
        // Without the key it is another request, which finds its locks free.
        let _ = site.post(&format!("{path}?tag=free")).send().await.expect(200);
        assert_eq!(case.desk.tags(), ["failed", "one", "free"]);
        case.desk.forget();
    }
}
