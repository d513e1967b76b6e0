//! What both demos do.

use lockgate_tests::{Demo, Framework, eventually};
use serde_json::Value;

use super::{busy, ended, events};

pub(crate) async fn it_says_where_it_listens_and_what_it_has(demo: Framework, store: &str) {
    let demo = Demo::start(demo, store).await;
    let _ = demo.get("/healthz").send().await.expect(200);
    eventually("lines to try", async || demo.said().len() > 1).await;
    let base = format!("http://{}/", demo.addr);
    for line in &demo.said()[1..] {
        assert!(line.trim().starts_with("curl ") && line.contains(&base), "{line}");
    }
    let page = demo.get("/").send().await.expect(200);
    assert!(page.field("content-type").starts_with("text/html"), "{page:?}");
    let text = page.text();
    for elsewhere in ["src=\"http", "href=\"http", "src=\"//", "@import"] {
        assert!(!text.contains(elsewhere), "{elsewhere}");
    }
    for op in ["pay", "ship", "refund"] {
        let target = format!("/orders/7/{op}");
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            let _ = demo.request(method, &target).send().await.expect(405);
        }
        let _ = demo.post(&format!("{target}?ms=0")).send().await.expect(200);
    }
    let _ = demo.post("/orders/7").send().await.expect(405);
    for target in ["/orders/7/nothing", "/nothing", "/deferred/x"] {
        let _ = demo.get(target).send().await.expect(404);
    }
    let _ = demo.post("/orders/%ff/pay").send().await.expect(400);
    let _ = demo.get("/orders/%ff").send().await.expect(400);
    let _ = demo.post("/orders/7/pay?ms=0&status=102").send().await.expect(400);
}

pub(crate) async fn its_quota_is_ten(demo: Framework, store: &str) {
    let demo = Demo::start(demo, store).await;
    for left in (0..10).rev() {
        let answer = demo.get("/limited").send().await.expect(200);
        assert_eq!(answer.text(), "ok");
        assert_eq!(answer.field("ratelimit-policy"), r#""limited";q=10;w=10"#);
        let told = answer.field("ratelimit");
        assert!(told.starts_with(&format!(r#""limited";r={left};t="#)), "{told}");
    }
    let answer = demo.get("/limited").send().await.expect(429);
    assert!(answer.retry_after() <= 10);
    assert_eq!(answer.problem()["violated-policies"], serde_json::json!(["limited"]));
}

pub(crate) async fn it_tells_what_it_has_done(demo: Framework, store: &str) {
    let demo = Demo::start(demo, store).await;
    for op in ["pay", "ship", "refund"] {
        let answer = demo.post(&format!("/orders/a%2Fb/{op}?ms=1")).send().await;
        let event = answer.expect(200).json();
        assert_eq!(event["order"], "a/b", "{event}");
        assert_eq!(event["op"], op, "{event}");
        assert_eq!(event["pid"], demo.pid(), "{event}");
        let number = |name: &str| event[name].as_u64().expect("a number");
        assert!(number("fence") > 0, "{event}");
        assert!(number("finished_us") >= number("started_us") + 1000, "{event}");
        assert!(event.get("deferred").is_none(), "{event}");
    }
    let refund = demo.post("/orders/7/refund?ms=1&status=418").body("note");
    let event = refund.send().await.expect(418).json();
    assert_eq!(event["note"], "note", "{event}");
    assert_eq!(events(&demo, "7").await, [event]);
    assert!(events(&demo, "8").await.is_empty());
}

pub(crate) async fn pay_ship_and_refund_exclude_each_other(demo: Framework, store: &str) {
    let demo = Demo::start(demo, store).await;
    let work = busy(&demo, "7", 3500).await;
    let answer = demo.post("/orders/7/pay?ms=0").send().await.expect(409);
    let _ = answer.retry_after();
    let _ = answer.problem();
    let ship = demo.post("/orders/7/ship?ms=1").spawn();
    let refund = demo.post("/orders/7/refund?ms=1").send().await.expect(202);
    let _ = demo.post("/orders/8/pay?ms=0").send().await.expect(200);
    let _ = work.answer().await.expect(200);
    let _ = ship.answer().await.expect(200);
    assert_eq!(ended(&demo, &refund).await["state"], "done");
    let events = events(&demo, "7").await;
    let time = |event: &Value, name: &str| event[name].as_u64().expect("a number");
    for pair in events.windows(2) {
        let (first, second) = (&pair[0], &pair[1]);
        assert!(time(first, "finished_us") <= time(second, "started_us"), "{events:?}");
        assert!(time(first, "fence") < time(second, "fence"), "{events:?}");
    }
}

pub(crate) async fn a_refund_waits_for_its_turn(demo: Framework, store: &str) {
    let demo = Demo::start(demo, store).await;
    let work = busy(&demo, "7", 3500).await;
    let large = vec![b'x'; 64 * 1024 + 1];
    let _ = demo.post("/orders/7/refund").body(large).send().await.expect(409);
    let large = "x".repeat(64 * 1024);
    let refund = demo.post("/orders/7/refund?ms=1").body(large.clone());
    let accepted = refund.send().await.expect(202);
    let id = accepted.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(accepted.field("location"), format!("/deferred/{id}"));
    let _ = work.answer().await.expect(200);
    let document = ended(&demo, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let event = &document["response"]["body"];
    assert_eq!(event["op"], "refund", "{document}");
    assert_eq!(event["note"], large);
    assert_eq!(event["deferred"], serde_json::json!({ "id": id, "attempt": 1 }));
    let response = demo.get(&format!("/deferred/{id}/response")).send().await;
    assert_eq!(response.expect(200).json(), *event);
    // Of which the journal keeps a part.
    let mut kept = event.clone();
    kept["note"] = "x".repeat(200).into();
    assert_eq!(events(&demo, "7").await.last(), Some(&kept));
}

pub(crate) async fn a_panic_is_not_its_end(demo: Framework, store: &str) {
    let demo = Demo::start(demo, store).await;
    assert!(demo.post("/orders/7/pay?panic=1&ms=0").try_send().await.is_err());
    let _ = demo.post("/orders/7/ship?ms=0").send().await.expect(200);
    let work = busy(&demo, "7", 3500).await;
    let refund = demo.post("/orders/7/refund?panic=1&ms=0").send().await.expect(202);
    let _ = work.answer().await.expect(200);
    let document = ended(&demo, &refund).await;
    assert_eq!(document["state"], "dead", "{document}");
    let _ = demo.post("/orders/7/ship?ms=0").send().await.expect(200);
}

pub(crate) async fn told_to_stop_it_ends_what_it_has_begun(demo: Framework, store: &str) {
    let mut demo = Demo::start(demo, store).await;
    let work = busy(&demo, "7", 5000).await;
    demo.terminate();
    let _ = work.answer().await.expect(200);
    let status = demo.ended().await;
    assert_eq!(status.code(), Some(0), "{status}");
}
