//! `Idempotency-Key` of requests that ran at once, and of those that waited.

use lockgate_tests::{Case, Raw, Request, Site, eventually};

use super::{accepted, line_is, lock::busy};

fn keyed(site: &Site, query: &str) -> Request {
    under(site, "k", query)
}

fn under(site: &Site, key: &str, query: &str) -> Request {
    site.post(&format!("/remembered/7?{query}")).header("idempotency-key", key)
}

pub(crate) async fn what_ran_at_once_does_not_run_again(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let _ = keyed(&site, "tag=one&status=201").body("note").send().await.expect(201);
    for site in [&site, &other] {
        let answer = keyed(site, "tag=one&status=201").body("note").send().await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        let job = accepted(answer);
        let document = job.document(site).await;
        assert_eq!(document["response"]["status"], 201, "{document}");
        let response = format!("{}/response", job.location);
        let _ = site.get(&response).send().await.expect(410).problem();
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

pub(crate) async fn what_failed_runs_again(case: Case) {
    let site = case.site().await;
    for status in [500, 429, 409, 423] {
        let answer = keyed(&site, &format!("tag=failed&status={status}")).send().await;
        let _ = answer.expect(status);
    }
    let _ = keyed(&site, "tag=done").send().await.expect(200);
    let _ = accepted(keyed(&site, "tag=done").send().await);
    assert_eq!(case.desk.tags(), ["failed", "failed", "failed", "failed", "done"]);
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

pub(crate) async fn a_stream_that_breaks_off_runs_again(case: Case) {
    let site = case.site().await;
    for how in ["error", "panic", "leaver"] {
        let mut raw = streams(&site, how, &format!("tag={how}&stream={how}&breaks={how}")).await;
        if how == "leaver" {
            drop(raw);
        } else {
            case.desk.gates.open(how);
            let rest = raw.read_to_end().await;
            assert!(!rest.contains("last"), "{rest}");
        }
        // Until that is noticed it is busy; and a retry at that very moment is deferred.
        eventually("it to be forgotten", async || {
            let answer = under(&site, how, "tag=again").send().await;
            assert!(matches!(answer.status.as_u16(), 200 | 202 | 409), "{answer:?}");
            case.desk.tags() == [how, "again"]
        })
        .await;
        case.desk.forget();
    }
}

/// It is stored nowhere, and may be the one that runs in the end: so it is not accepted.
pub(crate) async fn a_retry_meanwhile_is_told_that_it_is_busy(case: Case) {
    let site = case.site().await;
    let first = keyed(&site, "gate=first").spawn();
    case.desk.gates.arrived("first").await;
    busy(keyed(&site, "gate=first").send().await);
    case.desk.gates.open("first");
    let _ = first.answer().await.expect(200);
    let answer = keyed(&site, "gate=first").send().await;
    assert_eq!(answer.json()["state"], "done", "{answer:?}");
    let document = accepted(answer).document(&site).await;
    assert_eq!(document["response"]["status"], 200, "{document}");
    assert_eq!(case.desk.gates.arrivals("first"), 1);
}

pub(crate) async fn a_retry_meanwhile_of_what_fails_may_run(case: Case) {
    let site = case.site().await;
    let failing = || keyed(&site, "tag=failed&status=500&gate=first");
    let first = failing().spawn();
    case.desk.gates.arrived("first").await;
    busy(failing().send().await);
    case.desk.gates.open("first");
    let _ = first.answer().await.expect(500);
    // The gate is open.
    let _ = failing().send().await.expect(500);
    assert_eq!(case.desk.tags(), ["failed", "failed"]);
}

pub(crate) async fn who_went_away_may_come_again(case: Case) {
    let site = case.site().await;
    let leaver = keyed(&site, "gate=leaver").spawn();
    case.desk.gates.arrived("leaver").await;
    leaver.disconnect().await;
    // Until that is noticed it is busy; and a retry at that very moment is deferred.
    eventually("it to be forgotten", async || {
        let answer = keyed(&site, "tag=again").send().await;
        assert!(matches!(answer.status.as_u16(), 200 | 202 | 409), "{answer:?}");
        case.desk.tags() == ["again"]
    })
    .await;
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
        let _ = sent(&site, "tag=failed&status=429").send().await.expect(429);
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
