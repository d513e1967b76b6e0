//! A request that has a lock does not wait for itself; and what it tells of its lock.

use lockgate::{Key, SharedSecret};
use lockgate_tests::{Answer, Case};

use super::{accepted, fence, lock::busy, passes_at_once};

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
        let (name, word) = guard.held().header(&store, &SharedSecret::new([byte; 32]))?;
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
    passes_at_once(&site, "7").await;
}
