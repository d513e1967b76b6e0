//! Reentrant locks: a request that holds a lock does not wait for itself. Delegation headers.

use lockgate::{Key, SharedSecret};
use lockgate_tests::{TestCase, TestResponse};

use super::{
    expect_accepted, lock::expect_busy, measure_acquire, misconfiguration::expect_server_error,
    response_fence,
};

/// Returns the values of a header as the handler saw it.
fn received_header(answer: &TestResponse, name: &str) -> Vec<String> {
    let document = answer.json();
    let fields = document["headers"].as_array().expect("a list").clone();
    let named = fields.iter().filter(|field| field[0] == name);
    named.filter_map(|field| field[1].as_str().map(str::to_owned)).collect()
}

pub(crate) async fn handler_acquires_its_own_lock_reentrantly(case: TestCase) {
    let site = case.start_site().await;
    let answer = site.post("/within/7").send().await.expect_status(200);
    assert_eq!(answer.json()["inner"], response_fence(&answer), "{answer:?}");
    // The layer releases the lock, once.
    measure_acquire(&site, "7").await;
    let hold = site.post_held("/within/7").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn reentrant_lock_survives_rebuilt_request(case: TestCase) {
    let site = case.start_site().await;
    let post = || site.post("/within-rebuilt").header("x-account", "a");
    let first = post().send().await.expect_status(200);
    assert_eq!(first.json()["inner"], response_fence(&first), "{first:?}");
    let second = post().send().await.expect_status(200);
    assert!(response_fence(&second) > response_fence(&first));
}

pub(crate) async fn deferred_run_acquires_its_lock_reentrantly(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/within-refund/7").send().await);
    let _ = hold.finish().await.expect_status(200);
    let seen = job.wait_until_done(&site).await;
    assert!(seen["fence"].is_u64() && seen["inner"] == seen["fence"], "{seen}");
    measure_acquire(&site, "7").await;
}

pub(crate) async fn shared_lock_cannot_be_upgraded(case: TestCase) {
    let site = case.start_site().await;
    let problem = site.post("/upgrade/7").send().await.expect_status(500).problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:server-error");
    assert_eq!(case.handler.completed_runs().len(), 0);
    measure_acquire(&site, "7").await;
    let reader = site.get("/document/7").send().await.expect_status(200);
    let inner_error = reader.json()["inner"].as_str().unwrap_or_default().to_owned();
    assert!(inner_error.contains("the request itself holds the lock"), "{reader:?}");
    measure_acquire(&site, "7").await;
}

/// A permit of one inside a permit of two: the smaller limit needs a permit of its own.
pub(crate) async fn permit_of_larger_limit_is_not_reentrant_for_smaller(case: TestCase) {
    let site = case.start_site().await;
    expect_server_error(site.post("/fewer/7").send().await);
    assert_eq!(case.handler.completed_runs().len(), 0);
    let _ = site.post("/more/7").send().await.expect_status(200);
    measure_acquire(&site, "7").await;
}

/// Covers direct and deferred requests.
pub(crate) async fn lock_of_another_database_is_acquired(case: TestCase) {
    let second = case.new_store_in_other_database().await;
    let site = case.site_builder().await.second_store(second.clone()).start().await;
    let live = site.post("/two-stores/7").send().await.expect_status(200).json();
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/two-stores/7").send().await);
    let other_guard = second.lock(Key::path_param("id", "7")).acquire().await.expect("it is free");
    let _ = hold.finish().await.expect_status(200);
    // The job returns to the queue, uncharged, while the other lock is held.
    let _ = job.wait_for_status(&site, |document| document["reason"] == "busy").await;
    assert_eq!(case.handler.completed_runs().len(), 2, "the direct run and the holder have run");
    other_guard.release().await;
    let deferred = job.wait_until_done(&site).await;
    for seen in [live, deferred] {
        let locks = seen["locks"].as_array().expect("locks");
        assert_eq!(
            (locks.len(), &locks[0][0], &locks[1][0]),
            (2, &"p:id::7".into(), &"p:id::7".into())
        );
    }
}

/// For example the store handle of a library. Covers direct and deferred requests.
pub(crate) async fn lock_of_another_store_handle_is_reentrant(case: TestCase) {
    let site = case.site_builder().await.second_store(case.new_store().await).start().await;
    let live = site.post("/two-stores/7").send().await.expect_status(200).json();
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/two-stores/7").send().await);
    let _ = hold.finish().await.expect_status(200);
    for seen in [live, job.wait_until_done(&site).await] {
        assert_eq!(seen["locks"].as_array().map(Vec::len), Some(1), "{seen}");
    }
    measure_acquire(&site, "7").await;
}

pub(crate) async fn fence_header_replaces_forged_values(case: TestCase) {
    let site = case.start_site().await;
    let forged = |method| {
        let request = site.request(method, "/fence/7").header("X-Fence", "18446744073709551615");
        request.header("x-fence", "1")
    };
    let answer = forged("POST").send().await.expect_status(200);
    assert_eq!(received_header(&answer, "x-fence"), [response_fence(&answer).to_string()]);
    let answer = forged("GET").send().await.expect_status(200);
    assert_eq!(
        received_header(&answer, "x-fence"),
        [""; 0],
        "a request without a lock has no fence: {answer:?}"
    );
}

pub(crate) async fn delegation_shares_lock_with_called_service(case: TestCase) {
    let (store, site) = (case.new_store().await, case.start_site().await);
    let guard = store.lock(Key::path_param("id", "7")).acquire().await.expect("it is free");
    let delegation = |byte| {
        let (name, delegation) =
            guard.held_lock().delegation_header(&store, &SharedSecret::new([byte; 32]))?;
        assert_eq!(name, "lockgate-held");
        Some(delegation)
    };
    let (delegation, forged) =
        (delegation(7).expect("it is held"), delegation(8).expect("it is held"));
    let call = |target| site.post(target).header("Lockgate-Held", &delegation);
    expect_busy(site.post("/called/7").send().await);
    expect_busy(site.post("/called/7").header("lockgate-held", &forged).send().await);
    expect_busy(call("/orders/7/pay").send().await);
    let answer = call("/called/7").send().await.expect_status(200);
    assert_eq!(response_fence(&answer), guard.fence());
    assert_eq!(answer.json()["inner"], guard.fence(), "{answer:?}");
    assert!(
        answer.json()["delegation"].is_string(),
        "the handler can delegate the lock again: {answer:?}"
    );
    assert_eq!(received_header(&answer, "lockgate-held"), [""; 0], "it is not for the handler");
    // The caller still holds the lock.
    expect_busy(site.post("/orders/7/pay").send().await);
    let _ = call("/called/8").send().await.expect_status(200);
    guard.release().await;
    // The delegation names a lock of the same name in another database.
    let other = case.new_store_in_other_database().await;
    let other_guard = other.lock(Key::path_param("id", "7")).acquire().await.expect("it is free");
    let (_, delegation) = other_guard
        .held_lock()
        .delegation_header(&other, &SharedSecret::new([7; 32]))
        .expect("it is held");
    let call = || site.post("/called/7").header("lockgate-held", &delegation);
    let answer = call().send().await.expect_status(200);
    assert_ne!(response_fence(&answer), other_guard.fence(), "{answer:?}");
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(call().send().await);
    let _ = hold.finish().await.expect_status(200);
    measure_acquire(&site, "7").await;
}
