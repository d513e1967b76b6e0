//! Behaviour that both demos have.

use lockgate_tests::{DemoProcess, WebFramework, eventually};
use serde_json::Value;

use super::{order_events, start_long_ship, wait_for_final_status};

pub(crate) async fn start_lists_address_and_routes(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    let _ = demo.get("/healthz").send().await.expect_status(200);
    eventually("lines to try", async || demo.stdout_lines().len() > 1).await;
    let base = format!("http://{}/", demo.addr);
    for line in &demo.stdout_lines()[1..] {
        assert!(line.trim().starts_with("curl ") && line.contains(&base), "{line}");
    }
    let page = demo.get("/").send().await.expect_status(200);
    assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
    let text = page.text();
    for external_reference in ["src=\"http", "href=\"http", "src=\"//", "@import"] {
        assert!(!text.contains(external_reference), "{external_reference}");
    }
    for op in ["pay", "ship", "refund"] {
        let target = format!("/orders/7/{op}");
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            let _ = demo.request(method, &target).send().await.expect_status(405);
        }
        let _ = demo.post(&format!("{target}?ms=0")).send().await.expect_status(200);
    }
    let _ = demo.post("/orders/7").send().await.expect_status(405);
    for target in ["/orders/7/nothing", "/nothing", "/deferred/x"] {
        let _ = demo.get(target).send().await.expect_status(404);
    }
    let _ = demo.post("/orders/%ff/pay").send().await.expect_status(400);
    let _ = demo.get("/orders/%ff").send().await.expect_status(400);
    let _ = demo.post("/orders/7/pay?ms=0&status=102").send().await.expect_status(400);
}

pub(crate) async fn limited_route_admits_ten_requests(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    for remaining in (0..10).rev() {
        let answer = demo.get("/limited").send().await.expect_status(200);
        assert_eq!(answer.text(), "ok");
        assert_eq!(answer.header("ratelimit-policy"), r#""limited";q=10;w=10"#);
        let header = answer.header("ratelimit");
        assert!(header.starts_with(&format!(r#""limited";r={remaining};t="#)), "{header}");
    }
    let answer = demo.get("/limited").send().await.expect_status(429);
    assert!(answer.retry_after_seconds() <= 10);
    assert_eq!(answer.problem_document()["violated-policies"], serde_json::json!(["limited"]));
}

pub(crate) async fn order_events_are_recorded(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    for op in ["pay", "ship", "refund"] {
        let answer = demo.post(&format!("/orders/a%2Fb/{op}?ms=1")).send().await;
        let event = answer.expect_status(200).json();
        assert_eq!(event["order"], "a/b", "{event}");
        assert_eq!(event["op"], op, "{event}");
        assert_eq!(event["pid"], demo.pid(), "{event}");
        let number = |name: &str| event[name].as_u64().expect("a number");
        assert!(number("fence") > 0, "{event}");
        assert!(number("finished_us") >= number("started_us") + 1000, "{event}");
        assert!(event.get("deferred").is_none(), "{event}");
    }
    let refund = demo.post("/orders/7/refund?ms=1&status=418").body("note");
    let event = refund.send().await.expect_status(418).json();
    assert_eq!(event["note"], "note", "{event}");
    assert_eq!(order_events(&demo, "7").await, [event]);
    assert!(order_events(&demo, "8").await.is_empty());
}

pub(crate) async fn order_operations_exclude_each_other(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    let work = start_long_ship(&demo, "7", 3500).await;
    let answer = demo.post("/orders/7/pay?ms=0").send().await.expect_status(409);
    let _ = answer.retry_after_seconds();
    let _ = answer.problem_document();
    let ship = demo.post("/orders/7/ship?ms=1").spawn();
    let refund = demo.post("/orders/7/refund?ms=1").send().await.expect_status(202);
    let _ = demo.post("/orders/8/pay?ms=0").send().await.expect_status(200);
    let _ = work.response().await.expect_status(200);
    let _ = ship.response().await.expect_status(200);
    assert_eq!(wait_for_final_status(&demo, &refund).await["state"], "done");
    let events = order_events(&demo, "7").await;
    let time = |event: &Value, name: &str| event[name].as_u64().expect("a number");
    for pair in events.windows(2) {
        let (first, second) = (&pair[0], &pair[1]);
        assert!(time(first, "finished_us") <= time(second, "started_us"), "{events:?}");
        assert!(time(first, "fence") < time(second, "fence"), "{events:?}");
    }
}

pub(crate) async fn busy_refund_is_deferred(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    let pending = start_long_ship(&demo, "7", 3500).await;
    let large = vec![b'x'; 64 * 1024 + 1];
    let _ = demo.post("/orders/7/refund").body(large).send().await.expect_status(409);
    let large = "x".repeat(64 * 1024);
    let refund = demo.post("/orders/7/refund?ms=1").body(large.clone());
    let accepted = refund.send().await.expect_status(202);
    let id = accepted.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(accepted.header("location"), format!("/deferred/{id}"));
    let _ = pending.response().await.expect_status(200);
    let document = wait_for_final_status(&demo, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let event = &document["response"]["body"];
    assert_eq!(event["op"], "refund", "{document}");
    assert_eq!(event["note"], large);
    assert_eq!(event["deferred"], serde_json::json!({ "id": id, "attempt": 1 }));
    let response = demo.get(&format!("/deferred/{id}/response")).send().await;
    assert_eq!(response.expect_status(200).json(), *event);
    // The journal stores only the start of the note.
    let mut stored_event = event.clone();
    stored_event["note"] = "x".repeat(200).into();
    assert_eq!(order_events(&demo, "7").await.last(), Some(&stored_event));
}

pub(crate) async fn panicking_handler_does_not_stop_the_demo(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    // Not a closed connection, after which a browser would send the request again.
    let _ = demo.post("/orders/7/pay?panic=1&ms=0").send().await.expect_status(500);
    let _ = demo.post("/orders/7/ship?ms=0").send().await.expect_status(200);
    let pending = start_long_ship(&demo, "7", 3500).await;
    let refund = demo.post("/orders/7/refund?panic=1&ms=0").send().await.expect_status(202);
    let _ = pending.response().await.expect_status(200);
    let document = wait_for_final_status(&demo, &refund).await;
    assert_eq!(document["state"], "dead", "{document}");
    let _ = demo.post("/orders/7/ship?ms=0").send().await.expect_status(200);
}

pub(crate) async fn dead_refund_can_be_redriven(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    let work = start_long_ship(&demo, "7", 3500).await;
    let refund = demo.post("/orders/7/refund?fails=1&ms=0").send().await.expect_status(202);
    let id = refund.json()["id"].as_str().expect("an id").to_owned();
    let redrive = format!("/dead/{id}/redrive");
    let _ = work.response().await.expect_status(200);
    let document = wait_for_final_status(&demo, &refund).await;
    assert_eq!(document["state"], "dead", "{document}");
    let listed = demo.get("/dead").send().await.expect_status(200).json();
    let letter = serde_json::json!({
        "id": id, "method": "POST", "path": "/orders/7/refund", "reason": "panicked", "attempts": 1,
    });
    assert_eq!(listed, serde_json::json!({ "jobs": [letter] }));
    let accepted = demo.post(&redrive).send().await.expect_status(202);
    assert_eq!(accepted.header("location"), format!("/deferred/{id}"));
    assert_eq!(accepted.json(), serde_json::json!({ "id": id, "state": "queued" }));
    let document = wait_for_final_status(&demo, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let listed = demo.get("/dead").send().await.expect_status(200).json();
    assert_eq!(listed, serde_json::json!({ "jobs": [] }));
    let _ = demo.post(&redrive).send().await.expect_status(409);
}

pub(crate) async fn active_run_is_listed(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    let work = start_long_ship(&demo, "7", 3500).await;
    let live = demo.get("/live/7").send().await.expect_status(200);
    assert_eq!(live.header("access-control-allow-origin"), "*");
    let live = live.json();
    assert_eq!(live["pid"], demo.pid(), "{live}");
    let [run] = &live["running"].as_array().expect("a list")[..] else { panic!("{live}") };
    assert_eq!(run["op"], "ship", "{live}");
    assert!(run["fence"].as_u64() > Some(0), "{live}");
    assert!((1..=10_000).contains(&run["lease_ms"].as_u64().expect("a number")), "{live}");
    let event = work.response().await.expect_status(200).json();
    assert_eq!(event["started_us"], run["started_us"], "{live}");
    let live = demo.get("/live/7").send().await.expect_status(200).json();
    assert_eq!(live["running"], serde_json::json!([]), "{live}");
    assert_eq!(live["events"].as_array().and_then(|events| events.last()), Some(&event), "{live}");
}

pub(crate) async fn sigterm_finishes_active_request(demo: WebFramework, store: &str) {
    let mut demo = DemoProcess::start(demo, store).await;
    let work = start_long_ship(&demo, "7", 5000).await;
    demo.terminate();
    let _ = work.response().await.expect_status(200);
    let status = demo.wait_for_exit().await;
    assert_eq!(status.code(), Some(0), "{status}");
}
