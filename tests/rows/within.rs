//! A request that has a lock does not wait for itself; and what it tells of its lock.

use lockgate::{Key, SharedSecret};
use lockgate_tests::{Answer, Case};

use super::{accepted, fence, lock::busy, passes_at_once, wiring::our_fault};

/// The values of a field as the handler saw it.
fn field(answer: &Answer, name: &str) -> Vec<String> {
    let document = answer.json();
    let fields = document["headers"].as_array().expect("a list").clone();
    let named = fields.iter().filter(|field| field[0] == name);
    named.filter_map(|field| field[1].as_str().map(str::to_owned)).collect()
}

pub(crate) async fn its_handler_has_the_lock_already(case: Case) {
    let site = case.site().await;
    let answer = site.post("/within/7").send().await.expect(200);
    assert_eq!(answer.json()["inner"], fence(&answer), "{answer:?}");
    // Given back once, by the layer.
    passes_at_once(&site, "7").await;
    let hold = site.hold("/within/7").await;
    busy(site.post("/orders/7/pay").send().await);
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn a_middleware_that_rebuilds_it_changes_nothing(case: Case) {
    let site = case.site().await;
    let post = || site.post("/within-rebuilt").header("x-account", "a");
    let first = post().send().await.expect(200);
    assert_eq!(first.json()["inner"], fence(&first), "{first:?}");
    let second = post().send().await.expect(200);
    assert!(fence(&second) > fence(&first));
}

pub(crate) async fn a_deferred_run_has_its_lock(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/within-refund/7").send().await);
    let _ = hold.let_go().await.expect(200);
    let seen = job.done(&site).await;
    assert!(seen["fence"].is_u64() && seen["inner"] == seen["fence"], "{seen}");
    passes_at_once(&site, "7").await;
}

pub(crate) async fn what_it_shares_it_does_not_get_alone(case: Case) {
    let site = case.site().await;
    let problem = site.post("/upgrade/7").send().await.expect(500).problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:server-error");
    assert_eq!(case.desk.ran().len(), 0);
    passes_at_once(&site, "7").await;
    let reader = site.get("/document/7").send().await.expect(200);
    let told = reader.json()["inner"].as_str().unwrap_or_default().to_owned();
    assert!(told.contains("by this request itself"), "{reader:?}");
    passes_at_once(&site, "7").await;
}

/// A section that one may be in, inside another one.
pub(crate) async fn a_permit_of_many_is_none_of_few(case: Case) {
    let site = case.site().await;
    our_fault(site.post("/fewer/7").send().await);
    assert_eq!(case.desk.ran().len(), 0);
    let _ = site.post("/more/7").send().await.expect(200);
    passes_at_once(&site, "7").await;
}

/// Live and deferred alike.
pub(crate) async fn a_lock_of_another_database_is_taken(case: Case) {
    let second = case.other_database().await;
    let site = case.plan().await.second(second.clone()).start().await;
    let live = site.post("/two-stores/7").send().await.expect(200).json();
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/two-stores/7").send().await);
    let theirs = second.lock(Key::path_param("id", "7")).acquire().await.expect("it is free");
    let _ = hold.let_go().await.expect(200);
    // It comes back in line, uncharged, for as long as somebody has the other lock.
    let _ = job.becomes(&site, |document| document["reason"] == "busy").await;
    assert_eq!(case.desk.ran().len(), 2, "the one that was live, and the one that held");
    theirs.release().await;
    let deferred = job.done(&site).await;
    for seen in [live, deferred] {
        let locks = seen["locks"].as_array().expect("locks");
        assert_eq!(
            (locks.len(), &locks[0][0], &locks[1][0]),
            (2, &"p:id::7".into(), &"p:id::7".into())
        );
    }
}

/// Such as that of a library. Live and deferred alike.
pub(crate) async fn a_lock_of_another_handle_is_there(case: Case) {
    let site = case.plan().await.second(case.store().await).start().await;
    let live = site.post("/two-stores/7").send().await.expect(200).json();
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/two-stores/7").send().await);
    let _ = hold.let_go().await.expect(200);
    for seen in [live, job.done(&site).await] {
        assert_eq!(seen["locks"].as_array().map(Vec::len), Some(1), "{seen}");
    }
    passes_at_once(&site, "7").await;
}

pub(crate) async fn upstreams_are_told_the_fence_and_nothing_else(case: Case) {
    let site = case.site().await;
    let forged = |method| {
        let request = site.request(method, "/fence/7").header("X-Fence", "18446744073709551615");
        request.header("x-fence", "1")
    };
    let answer = forged("POST").send().await.expect(200);
    assert_eq!(field(&answer, "x-fence"), [fence(&answer).to_string()]);
    let answer = forged("GET").send().await.expect(200);
    assert_eq!(field(&answer, "x-fence"), [""; 0], "it takes no lock: {answer:?}");
}

pub(crate) async fn another_service_takes_its_word(case: Case) {
    let (store, site) = (case.store().await, case.site().await);
    let guard = store.lock(Key::path_param("id", "7")).acquire().await.expect("it is free");
    let word = |byte| {
        let (name, word) =
            guard.held_lock().delegation_header(&store, &SharedSecret::new([byte; 32]))?;
        assert_eq!(name, "lockgate-held");
        Some(word)
    };
    let (word, forged) = (word(7).expect("it is held"), word(8).expect("it is held"));
    let call = |target| site.post(target).header("Lockgate-Held", &word);
    busy(site.post("/called/7").send().await);
    busy(site.post("/called/7").header("lockgate-held", &forged).send().await);
    busy(call("/orders/7/pay").send().await);
    let answer = call("/called/7").send().await.expect(200);
    assert_eq!(fence(&answer), guard.fence());
    assert_eq!(answer.json()["inner"], guard.fence(), "{answer:?}");
    assert!(answer.json()["word"].is_string(), "for services further on: {answer:?}");
    assert_eq!(field(&answer, "lockgate-held"), [""; 0], "it is not for the handler");
    // The lock is the caller's, still.
    busy(site.post("/orders/7/pay").send().await);
    let _ = call("/called/8").send().await.expect(200);
    guard.release().await;
    // It is about a lock of the same name in another database.
    let other = case.other_database().await;
    let theirs = other.lock(Key::path_param("id", "7")).acquire().await.expect("it is free");
    let (_, word) = theirs
        .held_lock()
        .delegation_header(&other, &SharedSecret::new([7; 32]))
        .expect("it is held");
    let call = || site.post("/called/7").header("lockgate-held", &word);
    let answer = call().send().await.expect(200);
    assert_ne!(fence(&answer), theirs.fence(), "{answer:?}");
    let hold = site.hold("/orders/7/pay").await;
    busy(call().send().await);
    let _ = hold.let_go().await.expect(200);
    passes_at_once(&site, "7").await;
}
