//! When a request is accepted, and what a route may say of how it runs.

use std::time::{Duration, Instant};

use http::StatusCode;
use lockgate_tests::{Answer, Case, Request, Site, eventually};
use parking_lot::Mutex;
use serde_json::Value;

use super::{Job, accepted, line_is, lock::busy};

#[track_caller]
fn applied(answer: &Answer, preference: &str) {
    assert_eq!(answer.field("preference-applied"), preference, "{answer:?}");
}

fn preferring(site: &Site, target: &str, preference: &str) -> Request {
    site.post(target).header("prefer", preference)
}

pub(crate) async fn who_waits_long_enough_is_not_deferred(case: Case) {
    let (site, one, two) = (case.site().await, case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let route = one.post("/waits/7?tag=route").spawn();
    line_is(site.store(), "7", 1).await;
    let client = preferring(&two, "/orders/7/refund?tag=client", "wait=20").spawn();
    line_is(site.store(), "7", 2).await;
    let _ = hold.let_go().await.expect(200);
    let _ = route.answer().await.expect(200);
    let _ = client.answer().await.expect(200);
    assert_eq!(case.desk.tags(), ["hold", "route", "client"]);
}

pub(crate) async fn who_waits_too_long_is_deferred(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let asked = Instant::now();
    let answer = preferring(&site, "/waits/7?tag=job", "wait=1").send().await;
    assert!(asked.elapsed() >= Duration::from_secs(1));
    applied(&answer, "wait=1");
    let job = accepted(answer);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    assert_eq!(case.desk.tags(), ["hold", "job"]);
}

pub(crate) async fn a_client_may_rather_have_a_202(case: Case) {
    let site = case.site().await;
    let sent = preferring(&site, "/async/7?tag=job", "respond-async");
    let answer = sent.body("note").send().await;
    applied(&answer, "respond-async");
    let job = accepted(answer);
    assert_eq!(job.done(&site).await["body"], "note");
    // Only if it says so, and the route heeds it.
    let _ = site.post("/async/7").send().await.expect(200);
    let answer = preferring(&site, "/orders/7/refund", "respond-async").send().await.expect(200);
    assert!(!answer.has("preference-applied"), "{answer:?}");
    // With a wait the free lock is taken.
    let _ = preferring(&site, "/async/7", "respond-async, wait=5").send().await.expect(200);
    // What can't be stored runs now.
    let sent = preferring(&site, "/async/7", "respond-async").header("cookie", "a=b");
    let _ = sent.send().await.expect(200);
    let sent = preferring(&site, "/async/7", "respond-async").body(vec![b'x'; 64 * 1024 + 1]);
    let _ = sent.send().await.expect(200);
    let long = format!("/async/7?long={}", "x".repeat(16 * 1024));
    let _ = preferring(&site, &long, "respond-async").send().await.expect(200);
}

pub(crate) async fn a_background_request_never_runs_at_once(case: Case) {
    let site = case.site().await;
    let answer = site.post("/always/7?tag=job").send().await;
    assert_eq!(answer.json()["state"], "queued");
    let job = accepted(answer);
    assert_eq!(job.done(&site).await["deferred"]["attempt"], 1);
    busy(site.post("/always/7?tag=long").body([b'x'; 17].to_vec()).send().await);
    assert_eq!(case.desk.tags(), ["job"]);
    // Under two permits nothing is deferred, so there it is our fault.
    let _ = site.post("/always-shared/7").send().await.expect(500).problem();
}

/// Nobody could say under which lock it would run. What answers before a handler is reached keeps its answer.
pub(crate) async fn a_background_request_without_a_lock_is_refused(case: Case) {
    let site = case.site().await;
    for query in ["", "?status=303"] {
        let told = site.post(&format!("/always-unlocked/7{query}")).send().await.expect(500);
        assert_eq!(told.problem()["type"], "urn:lockgate:problem:server-error");
    }
    let _ = site.post("/always-unlocked/7?status=404").send().await.expect(404);
    let _ = site.get("/always-unlocked/7").send().await.expect(200);
}

pub(crate) async fn a_worker_can_be_required(case: Case) {
    let mut site = case.plan().await.no_worker().start().await;
    let hold = site.hold("/orders/7/pay").await;
    busy(site.post("/manned/7").send().await);
    let job = accepted(site.post("/orders/7/refund").send().await);
    site.start_worker();
    let accepted = async || site.post("/manned/7").send().await.status.as_u16() == 202;
    eventually("a worker to be seen", accepted).await;
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

pub(crate) async fn bodies_have_no_more_room_than_there_is(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    busy(site.post("/no-room/7").body(vec![b'x'; 4_096]).send().await);
    // What other tests of this process read counts, too.
    let answer = Mutex::new(None);
    eventually("as much room as a head takes", async || {
        let sent = site.post("/no-room/7").send().await;
        let is_deferred = sent.status == StatusCode::ACCEPTED;
        *answer.lock() = Some(sent);
        is_deferred
    })
    .await;
    let job = accepted(answer.into_inner().expect("it was sent"));
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

pub(crate) async fn methods_can_be_named(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    busy(site.post("/puts/7").send().await);
    let job = accepted(site.put("/puts/7").send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

async fn put(site: &Site, target: &str, body: &'static str) -> Job {
    accepted(site.put(target).body(body).send().await)
}

pub(crate) async fn of_several_the_first_can_win(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let first = put(&site, "/first/7?tag=a", "one").await;
    assert_eq!(put(&site, "/first/7?tag=a", "two").await.id, first.id);
    let other = put(&site, "/first/7?tag=b", "one").await;
    assert_ne!(other.id, first.id, "another target");
    let post = || site.post("/first/7?tag=c").send();
    let (one, two) = (accepted(post().await), accepted(post().await));
    assert_ne!(one.id, two.id, "a method that may not be left out");
    let _ = hold.let_go().await.expect(200);
    assert_eq!(first.done(&site).await["body"], "one");
    let _ = two.done(&site).await;
    assert_eq!(case.desk.tags(), ["hold", "a", "b", "c", "c"]);
    let again = put_now(&site).await;
    assert_eq!(again["body"], "three", "what has run merges nothing");
}

async fn put_now(site: &Site) -> Value {
    site.put("/first/7?tag=a").body("three").send().await.expect(200).json()
}

pub(crate) async fn of_several_the_last_can_win(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let first = put(&site, "/last/7?tag=a", "one").await;
    let last = put(&site, "/last/7?tag=a", "two").await;
    assert_ne!(first.id, last.id);
    let document = first.document(&site).await;
    assert_eq!(document["state"], "cancelled", "{document}");
    assert_eq!(document["reason"], "superseded", "{document}");
    let _ = hold.let_go().await.expect(200);
    assert_eq!(last.done(&site).await["body"], "two");
    assert_eq!(case.desk.tags(), ["hold", "a"]);
}

/// Also the one that was superseded: a retry of it brings nothing back.
pub(crate) async fn each_of_several_is_known_by_its_own_key(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let sent = |key: &str, body: &'static str| {
        let put = site.put("/last/7?tag=a").header("idempotency-key", key);
        put.body(body).send()
    };
    let first = accepted(sent("a", "one").await);
    let last = accepted(sent("b", "two").await);
    assert_ne!(first.id, last.id);
    assert_eq!(first.document(&site).await["reason"], "superseded");
    let again = sent("a", "one").await;
    assert_eq!(again.json()["state"], "cancelled", "{again:?}");
    assert_eq!(accepted(again).id, first.id);
    assert_eq!(accepted(sent("b", "two").await).id, last.id);
    for key in ["a", "b"] {
        let _ = sent(key, "three").await.expect(422).problem();
    }
    let document = last.document(&site).await;
    assert_eq!((&document["state"], &document["position"]), (&"queued".into(), &1.into()));
    let _ = hold.let_go().await.expect(200);
    assert_eq!(last.done(&site).await["body"], "two");
    assert_eq!(accepted(sent("a", "one").await).id, first.id);
    assert_eq!(case.desk.tags(), ["hold", "a"]);
}

pub(crate) async fn a_delay_is_kept(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let asked = Instant::now();
    let answer = site.post("/delayed/7").send().await;
    assert!(answer.json()["position"].is_null(), "not in line yet: {answer:?}");
    let job = accepted(answer);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
}

pub(crate) async fn what_is_too_late_expires(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let job = accepted(site.post("/brief-lived/7?tag=late").send().await);
    let document = job.ended(&site).await;
    assert_eq!(document["state"], "expired", "{document}");
    // It will never have a response, and that is no fault of whoever tells it: asking again does not help.
    let answer = site.get(&format!("{}/response", job.location)).send().await.expect(410);
    assert!(!answer.has("retry-after"), "{answer:?}");
    let problem = answer.problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:no-response");
    assert_eq!((&problem["state"], &problem["status"]), (&"expired".into(), &410.into()));
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/orders/7/pay?tag=next").send().await.expect(200);
    assert_eq!(case.desk.tags(), ["hold", "next"]);
}

pub(crate) async fn every_method_can_run_again(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/repeated/7?fail=1").send().await);
    let worse = accepted(site.post("/repeated/7?fail=2").send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(job.done(&site).await["deferred"]["attempt"], 2);
    let document = worse.dead(&site, "failed").await;
    assert_eq!(document["attempts"], 2, "{document}");
}
