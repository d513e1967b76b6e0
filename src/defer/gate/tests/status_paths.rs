//! `Location` of a 202: the routes that are mounted, unless the layer names another path.

use super::*;
#[cfg(feature = "serve")]
use crate::gate::{GateRequest as _, StatusProbe};
use crate::{
    defer::{StatusReply, StatusResource},
    store::CapturedLog,
};

const NOT_MOUNTED: &str = "the Location of deferred requests leads nowhere";
const ELSEWHERE: &str = "the status of a job was requested under another path";

fn mount(store: Option<&Store>, path: &str) -> StatusResource<()> {
    let resource = StatusResource::new();
    let resource = match store {
        Some(store) => resource.store(store),
        None => resource,
    };
    resource.mounted_at(path)
}

/// The path of the `Location` of a request that the layer accepts.
async fn location_path(gate: &TestDeferLayer) -> String {
    location_path_in(gate, &Store::memory()).await
}

async fn location_path_in(gate: &TestDeferLayer, store: &Store) -> String {
    let accepted = accept(gate, store).await;
    let (path, _) = location(&accepted).rsplit_once('/').expect("a path");
    path.to_owned()
}

#[tokio::test(start_paused = true)]
async fn location_is_the_path_of_the_only_mount() {
    let (log, _reads) = CapturedLog::start_capture();
    let gate = TestDeferLayer::new();
    let other_path = gate.clone().status_path("/deferred");
    assert_eq!(location_path(&other_path).await, "/deferred", "nothing is mounted here");
    {
        let _jobs = mount(None, "jobs/");
        assert_eq!(location_path(&gate).await, "/jobs");
        assert_eq!(
            location_path(&TestDeferLayer::new().status_path("/api/jobs")).await,
            "/api/jobs"
        );
        let store = Store::memory();
        let _own = mount(Some(&store), "/own");
        assert_eq!(location_path_in(&gate, &store).await, "/own");
        assert_eq!(location_path_in(&gate, &store.as_another_process()).await, "/own");
        assert_eq!(location_path(&gate).await, "/jobs", "not the store's");
        let _deferred = mount(None, "/deferred");
        assert_eq!(location_path(&gate).await, "/deferred", "the default, if it is among several");
    }
    assert_eq!(location_path(&other_path).await, "/deferred", "the routes are gone");
    let _nested = (mount(None, "/"), mount(None, "/tenants/{tenant}/jobs"), mount(None, "/a b"));
    assert_eq!(location_path(&gate).await, "/deferred", "not known to clients by these");
    assert!(!log.text().contains(NOT_MOUNTED), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn location_that_leads_nowhere_is_warned_of_once() {
    for (gate, mounts) in [
        (TestDeferLayer::new().status_path("/status"), &["/jobs"][..]),
        (TestDeferLayer::new(), &["/jobs", "/admin/jobs"][..]),
    ] {
        let (log, _reads) = CapturedLog::start_capture();
        let store = Store::memory();
        let _mounts: Vec<_> = mounts.iter().map(|path| mount(Some(&store), path)).collect();
        for _ in 0..2 {
            let _ = location_path_in(&gate, &store).await;
            assert_eq!(log.text().matches(NOT_MOUNTED).count(), 1, "{}", log.text());
        }
        log.assert_contains("set .status_path(..) on the DeferLayer");
        log.assert_contains("/jobs");
    }
}

/// Nothing is mounted, or only the routes of another store.
#[tokio::test(start_paused = true)]
async fn location_without_status_routes_of_its_store_is_warned_of_once() {
    let other = Store::memory();
    for mounted_store in [None, Some(&other)] {
        let (log, _reads) = CapturedLog::start_capture();
        let _mount = mounted_store.map(|store| mount(Some(store), "/deferred"));
        let (gate, store) = (TestDeferLayer::new(), Store::memory());
        let configured = gate.clone().status_path("/deferred");
        assert_eq!(location_path_in(&configured, &store).await, "/deferred");
        assert!(!log.text().contains(NOT_MOUNTED), "another process serves it: {}", log.text());
        for _ in 0..2 {
            assert_eq!(location_path_in(&gate, &store).await, "/deferred");
            assert_eq!(log.text().matches(NOT_MOUNTED).count(), 1, "{}", log.text());
        }
        log.assert_contains("add deferred_routes(..) with the store of the LockLayer");
    }
}

/// Asks for a job as under the route `/orders/{id}` of the fake request.
async fn request_status(store: &Store, id: &JobId) -> u16 {
    let resource = StatusResource::new().store(store);
    let request = resource.parse_request(&mut FakeGateRequest::new("GET"), id.as_str(), false);
    match request.expect("it is well formed").execute().await {
        StatusReply::Complete(reply) => reply.status,
        StatusReply::Events(..) => panic!("it streams"),
    }
}

#[tokio::test(start_paused = true)]
async fn job_found_under_another_path_is_warned_of_once() {
    let (log, _reads) = CapturedLog::start_capture();
    let _nested = mount(None, "/");
    let store = Store::memory();
    let accepted = accept(&TestDeferLayer::new(), &store).await;
    let id = JobId::parse(location(&accepted).trim_start_matches("/deferred/")).expect("an id");
    assert_eq!(request_status(&store, &JobId::new(&Key::custom("7"))).await, 404);
    assert!(!log.text().contains(ELSEWHERE), "an unknown id says nothing: {}", log.text());
    for _ in 0..2 {
        assert_eq!(request_status(&store, &id).await, 200);
        assert_eq!(log.text().matches(ELSEWHERE).count(), 1, "{}", log.text());
    }
    log.assert_contains("set .status_path(\"/orders\") on the DeferLayer");
}

/// The path itself, or with the prefix of a proxy.
#[tokio::test(start_paused = true)]
async fn job_found_under_the_path_of_its_location_is_no_warning() {
    let (log, _reads) = CapturedLog::start_capture();
    let _nested = mount(None, "/");
    for path in ["/orders", "/public/orders"] {
        let store = Store::memory();
        let accepted = accept(&TestDeferLayer::new().status_path(path), &store).await;
        let id = location(&accepted).rsplit('/').next().and_then(JobId::parse).expect("an id");
        assert_eq!(request_status(&store, &id).await, 200);
        assert_eq!(location_path_in(&TestDeferLayer::new(), &store).await, "/deferred");
        assert_eq!(request_status(&store, &id).await, 200, "another layer has another path");
    }
    assert!(!log.text().contains(ELSEWHERE), "{}", log.text());
}

/// The paths that are dead if the application serves `served` and all else is answered with this
/// status.
#[cfg(feature = "serve")]
async fn dead_paths(served: &str, other_status: Option<u16>) -> Vec<String> {
    crate::defer::find_dead_status_paths(async |target: String, probe: StatusProbe| {
        let (path, id) = target.rsplit_once('/')?;
        if path != served {
            return other_status;
        }
        let mut view = FakeGateRequest::new("GET");
        view.insert_extension(probe);
        let reply = StatusResource::new().parse_request(&mut view, id, false);
        Some(reply.expect_err("it is answered without a store").status)
    })
    .await
}

#[cfg(feature = "serve")]
#[tokio::test]
async fn path_that_the_application_answers_with_404_is_dead() {
    TestDeferLayer::new().validate_settings(); // of another application that has ended
    let gate = TestDeferLayer::new();
    gate.validate_settings();
    assert!(dead_paths("/deferred", Some(404)).await.is_empty(), "another process serves them");
    let _nested = mount(None, "/");
    assert_eq!(dead_paths("/api/jobs", Some(404)).await, ["/deferred"]);
    let _jobs = mount(None, "/jobs");
    assert_eq!(dead_paths("/api/jobs", Some(404)).await, ["/jobs"]);
    assert!(dead_paths("/jobs", Some(404)).await.is_empty());
    for status in [Some(200), Some(401), Some(403), Some(429), Some(500), None] {
        assert!(dead_paths("/api/jobs", status).await.is_empty(), "{status:?} tells nothing");
    }
    let configured = gate.clone().status_path("/public/api/jobs");
    configured.validate_settings();
    assert_eq!(dead_paths("/jobs", Some(404)).await, Vec::<String>::new(), "behind a proxy");
    assert_eq!(dead_paths("/v2/jobs", Some(404)).await, ["/jobs", "/public/api/jobs"]);
    let _several = mount(None, "/admin/jobs");
    assert_eq!(dead_paths("/v2/jobs", Some(404)).await, ["/public/api/jobs"], "of which store?");
}
