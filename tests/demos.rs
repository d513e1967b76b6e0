//! The two demos, as processes: they behave alike, and can share one Redis.

#[path = "demos/console.rs"]
mod console;
#[path = "demos/contract.rs"]
mod contract;

use std::time::{Duration, Instant};

use lockgate::{Key, LockGuard, Store};
use lockgate_tests::{
    DemoProcess, PendingResponse, TestResponse, WebFramework, connect_with_long_timeout,
    eventually, shared_server, with_timeout,
};
use serde_json::Value;

/// Tests of parts of the contract: both demos on this store.
macro_rules! contract {
    ($contract:ident on $store:expr => $($part:ident),+ $(,)?) => {$(
        mod $part {
            use lockgate_tests::WebFramework;

            #[tokio::test]
            async fn axum() {
                crate::$contract::$part(WebFramework::Axum, $store).await;
            }

            #[tokio::test]
            async fn actix() {
                crate::$contract::$part(WebFramework::Actix, $store).await;
            }
        }
    )+};
}

mod on_memory {
    contract! { contract on "memory" =>
        start_lists_address_and_routes,
        limited_route_admits_ten_requests,
        order_events_are_recorded,
        order_operations_exclude_each_other,
        busy_refund_is_deferred,
        active_run_is_listed,
        dead_refund_can_be_redriven,
        panicking_handler_does_not_stop_the_demo,
        sigterm_finishes_active_request,
    }
}

mod console_on_memory {
    contract! { console on "memory" => console_refuses_other_hosts_and_origins }
}

/// Parts in which the store takes part.
mod on_redis {
    contract! { contract on &crate::namespace().await =>
        limited_route_admits_ten_requests,
        order_operations_exclude_each_other,
        busy_refund_is_deferred,
        dead_refund_can_be_redriven,
    }
}

/// Returns the URL of an unused namespace.
async fn namespace() -> String {
    let name = uuid::Uuid::new_v4().simple().to_string();
    shared_server().await.url(&name)
}

/// Starts a long request that holds the lock of an order, and returns when it runs. It waits in the
/// queue, so no other request overtakes it.
async fn start_long_ship(demo: &DemoProcess, order: &str, ms: u32) -> PendingResponse {
    let pending = demo.post(&format!("/orders/{order}/ship?ms={ms}")).spawn();
    eventually("the order to be busy", async || {
        let probe = format!("/orders/{order}/pay?ms=0");
        demo.post(&probe).send().await.status == 409
    })
    .await;
    pending
}

/// Waits for the end of an accepted job and returns its status document.
async fn wait_for_final_status(demo: &DemoProcess, accepted: &TestResponse) -> Value {
    let location = accepted.header("location").to_owned();
    with_timeout("the refund to end", async {
        loop {
            let wait = demo.get(&location).header("prefer", "wait=1");
            let document = wait.send().await.expect_status(200).json();
            if !matches!(document["state"].as_str(), Some("queued" | "running")) {
                return document;
            }
        }
    })
    .await
}

async fn order_events(demo: &DemoProcess, order: &str) -> Vec<Value> {
    let answer = demo.get(&format!("/orders/{order}")).send().await.expect_status(200);
    assert_eq!(answer.json()["order"], order);
    answer.json()["events"].as_array().expect("a list").clone()
}

async fn start_both_demos(store: &str) -> (DemoProcess, DemoProcess) {
    let axum = DemoProcess::start(WebFramework::Axum, store).await;
    (axum, DemoProcess::start(WebFramework::Actix, store).await)
}

/// Acquires the lock of an order in the test process.
async fn acquire_order_lock(store: &Store, order: &str) -> LockGuard {
    let request = store.lock(Key::path_param("id", order));
    let request = request.wait(Duration::from_secs(30));
    request.acquire().await.expect("the lock")
}

#[tokio::test]
async fn demos_give_equal_responses() {
    let (axum, actix) = start_both_demos("memory").await;
    let exchanges = [
        ("POST", "/orders/7/pay?ms=0"),
        ("GET", "/orders/7"),
        ("PUT", "/orders/7/pay"),
        ("GET", "/limited"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("HEAD", "/metrics"),
        ("POST", "/metrics"),
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/nothing"),
        ("GET", "/deferred/x"),
        ("POST", "/deferred/x"),
        ("POST", "/orders/%ff/pay"),
        ("POST", "/orders/7/pay?ms=x"),
        ("POST", "/orders/7/pay?status=500&ms=0"),
        ("POST", "/orders/9/pay?panic=1&ms=0"),
        ("GET", "/live/7"),
        ("GET", "/live/%ff"),
        ("GET", "/dead"),
        ("POST", "/dead"),
        ("POST", "/dead/x/redrive"),
        ("GET", "/dead/x/redrive"),
        ("POST", "/dead//redrive"),
        ("POST", "/dead/07777777777777777777777777777777777/redrive"),
        ("POST", "/dead/0777777777777777777777777777777777/redrive"),
        ("POST", "/orders/7/pay?status=204&ms=0"),
        ("POST", "/orders/7/pay?status=205&ms=0"),
        ("POST", "/orders/7/pay?status=304&ms=0"),
        ("POST", "/orders//pay?ms=0"),
        ("GET", "/orders//pay"),
        ("GET", "/orders/"),
    ];
    for (method, target) in exchanges {
        let shape = |answer: TestResponse| {
            let json = serde_json::from_slice::<Value>(&answer.body).ok();
            let keys = json.and_then(|json| {
                let keys = json.as_object()?.keys().cloned();
                Some(keys.collect::<Vec<_>>())
            });
            let kind = answer.header_list("content-type").to_lowercase();
            let headers = ["retry-after", "ratelimit", "ratelimit-policy", "cache-control"];
            let headers: Vec<_> = headers.map(|name| (name, answer.has_header(name))).into();
            // The lengths are equal too, if a length is declared without a body.
            let length = answer.header_list("content-length");
            let has_bytes = !answer.body.is_empty() || !matches!(&*length, "" | "0");
            (answer.status, kind, headers, keys, has_bytes)
        };
        let axum_shape = shape(axum.request(method, target).send().await);
        let actix_shape = shape(actix.request(method, target).send().await);
        assert_eq!(axum_shape, actix_shape, "{method} {target}");
    }
}

/// The first demo accepts a job and is killed while it holds the lock and watches the shard; the
/// other demo runs the job.
async fn check_takeover(first: WebFramework, second: WebFramework) {
    let url = namespace().await;
    let store = connect_with_long_timeout(&url).await;
    let mut first = DemoProcess::start(first, &url).await;
    let _work = start_long_ship(&first, "7", 60_000).await;
    let refund = first.post("/orders/7/refund?ms=1").body("note");
    let accepted = refund.send().await.expect_status(202);
    let second = DemoProcess::start(second, &url).await;
    let killed = Instant::now();
    first.kill();
    let lock = acquire_order_lock(&store, "7").await;
    let elapsed = killed.elapsed();
    // A lease of 10 s plus a poll interval of at most 1 s.
    assert!(elapsed < Duration::from_secs(25), "the lock came free after {elapsed:?}");
    lock.release().await;
    let document = wait_for_final_status(&second, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let event = &document["response"]["body"];
    assert_eq!(event["pid"], second.pid(), "{document}");
    assert_eq!(event["note"], "note", "{document}");
}

#[tokio::test]
async fn actix_runs_job_of_killed_axum() {
    check_takeover(WebFramework::Axum, WebFramework::Actix).await;
}

#[tokio::test]
async fn axum_runs_job_of_killed_actix() {
    check_takeover(WebFramework::Actix, WebFramework::Axum).await;
}

/// The handler runs beyond the shutdown time limit. Without a release, the lease would last 10 s
/// longer.
#[tokio::test]
async fn axum_releases_lock_of_aborted_request() {
    check_lock_of_aborted_request(WebFramework::Axum).await;
}

#[tokio::test]
async fn actix_releases_lock_of_aborted_request() {
    check_lock_of_aborted_request(WebFramework::Actix).await;
}

async fn check_lock_of_aborted_request(framework: WebFramework) {
    let url = namespace().await;
    let store = connect_with_long_timeout(&url).await;
    let mut demo = DemoProcess::start(framework, &url).await;
    let pending = start_long_ship(&demo, "7", 60_000).await;
    demo.terminate();
    let _ = pending.response().await.expect_status(503);
    assert_eq!(demo.wait_for_exit().await.code(), Some(0));
    let request = store.lock(Key::path_param("id", "7")).wait(Duration::from_secs(4));
    request.acquire().await.expect("the lock is released").release().await;
}

#[tokio::test]
async fn demos_accept_tls_store_url() {
    // No server listens there; the demos only have to accept the URL.
    let (axum, actix) = start_both_demos("rediss://127.0.0.1:1/?ns=tls").await;
    for demo in [&axum, &actix] {
        let _ = demo.get("/healthz").send().await.expect_status(503);
    }
}

#[tokio::test]
async fn health_check_reports_store_outage() {
    let mut server = lockgate_tests::RedisServer::start().await;
    let (axum, actix) = start_both_demos(&server.url("health")).await;
    let healthy = async |status: u16| {
        for demo in [&axum, &actix] {
            eventually("the health check to answer", async || {
                demo.get("/healthz").send().await.status == status
            })
            .await;
        }
    };
    healthy(200).await;
    server.kill();
    healthy(503).await;
    for demo in [&axum, &actix] {
        let _ =
            demo.post("/orders/7/pay?ms=0").send().await.expect_status(503).retry_after_seconds();
        let _ = demo.get("/limited").send().await.expect_status(200);
    }
    server.restart().await;
    healthy(200).await;
}
