//! The two demos, as the processes that people start: alike from outside, and able to share one Redis.

use std::time::{Duration, Instant};

use lockgate::{Key, LockGuard, Store};
use lockgate_tests::{Answer, Demo, Framework, Pending, eventually, shared_server, within};
use serde_json::Value;

/// Each part of the contract: both demos on both stores.
macro_rules! contract {
    ($($part:ident),+ $(,)?) => {$(
        mod $part {
            use lockgate_tests::Framework;

            #[tokio::test]
            async fn axum_on_memory() {
                crate::parts::$part(Framework::Axum, "memory").await;
            }

            #[tokio::test]
            async fn axum_on_redis() {
                crate::parts::$part(Framework::Axum, &crate::namespace().await).await;
            }

            #[tokio::test]
            async fn actix_on_memory() {
                crate::parts::$part(Framework::Actix, "memory").await;
            }

            #[tokio::test]
            async fn actix_on_redis() {
                crate::parts::$part(Framework::Actix, &crate::namespace().await).await;
            }
        }
    )+};
}

contract! {
    it_says_where_it_listens_and_what_to_try,
    its_page_needs_nothing_from_elsewhere,
    its_quota_is_ten,
    it_tells_what_it_has_done,
    pay_ship_and_refund_exclude_each_other,
    a_refund_waits_for_its_turn,
    what_it_does_not_have_is_404_and_405,
    a_panic_is_not_its_end,
    told_to_stop_it_ends_what_it_has_begun,
}

/// The URL of a namespace that is nobody else's.
async fn namespace() -> String {
    let name = uuid::Uuid::new_v4().simple().to_string();
    shared_server().await.url(&name)
}

/// Keeps an order busy, and returns when it is. It waits in line, so nothing takes its place.
async fn busy(demo: &Demo, order: &str, ms: u32) -> Pending {
    let work = demo.post(&format!("/orders/{order}/ship?ms={ms}")).spawn();
    eventually("the order to be busy", async || {
        let probe = format!("/orders/{order}/pay?ms=0");
        demo.post(&probe).send().await.status == 409
    })
    .await;
    work
}

/// The status document of a 202, when it is no longer pending.
async fn ended(demo: &Demo, accepted: &Answer) -> Value {
    let location = accepted.field("location").to_owned();
    within("the refund to end", async {
        loop {
            let wait = demo.get(&location).header("prefer", "wait=1");
            let document = wait.send().await.expect(200).json();
            if !matches!(document["state"].as_str(), Some("queued" | "running")) {
                return document;
            }
        }
    })
    .await
}

async fn events(demo: &Demo, order: &str) -> Vec<Value> {
    let answer = demo
        .get(&format!("/orders/{order}"))
        .send()
        .await
        .expect(200);
    assert_eq!(answer.json()["order"], order);
    answer.json()["events"].as_array().expect("a list").clone()
}

mod parts {
    use super::*;

    pub(crate) async fn it_says_where_it_listens_and_what_to_try(demo: Framework, store: &str) {
        let demo = Demo::start(demo, store).await;
        let _ = demo.get("/healthz").send().await.expect(200);
        eventually("lines to try", async || demo.said().len() > 1).await;
        let base = format!("http://{}/", demo.addr);
        for line in &demo.said()[1..] {
            assert!(
                line.trim().starts_with("curl ") && line.contains(&base),
                "{line}"
            );
        }
    }

    pub(crate) async fn its_page_needs_nothing_from_elsewhere(demo: Framework, store: &str) {
        let demo = Demo::start(demo, store).await;
        let page = demo.get("/").send().await.expect(200);
        assert!(
            page.field("content-type").starts_with("text/html"),
            "{page:?}"
        );
        let text = page.text();
        for elsewhere in ["src=\"http", "href=\"http", "src=\"//", "@import"] {
            assert!(!text.contains(elsewhere), "{elsewhere}");
        }
    }

    pub(crate) async fn its_quota_is_ten(demo: Framework, store: &str) {
        let demo = Demo::start(demo, store).await;
        for left in (0..10).rev() {
            let answer = demo.get("/limited").send().await.expect(200);
            assert_eq!(answer.text(), "ok");
            assert_eq!(answer.field("ratelimit-policy"), r#""limited";q=10;w=10"#);
            let told = answer.field("ratelimit");
            assert!(
                told.starts_with(&format!(r#""limited";r={left};t="#)),
                "{told}"
            );
        }
        let answer = demo.get("/limited").send().await.expect(429);
        assert!(answer.retry_after() <= 10);
        assert_eq!(
            answer.problem()["violated-policies"],
            serde_json::json!(["limited"])
        );
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
            assert!(
                number("finished_us") >= number("started_us") + 1000,
                "{event}"
            );
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
        let work = busy(&demo, "7", 700).await;
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
            assert!(
                time(first, "finished_us") <= time(second, "started_us"),
                "{events:?}"
            );
            assert!(time(first, "fence") < time(second, "fence"), "{events:?}");
        }
    }

    pub(crate) async fn a_refund_waits_for_its_turn(demo: Framework, store: &str) {
        let demo = Demo::start(demo, store).await;
        let work = busy(&demo, "7", 700).await;
        let large = vec![b'x'; 64 * 1024 + 1];
        let _ = demo
            .post("/orders/7/refund")
            .body(large)
            .send()
            .await
            .expect(409);
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
        assert_eq!(
            event["deferred"],
            serde_json::json!({ "id": id, "attempt": 1 })
        );
        let response = demo.get(&format!("/deferred/{id}/response")).send().await;
        assert_eq!(response.expect(200).json(), *event);
        assert_eq!(events(&demo, "7").await.last(), Some(event));
    }

    pub(crate) async fn what_it_does_not_have_is_404_and_405(demo: Framework, store: &str) {
        let demo = Demo::start(demo, store).await;
        for op in ["pay", "ship", "refund"] {
            let target = format!("/orders/7/{op}");
            for method in ["GET", "PUT", "DELETE", "PATCH"] {
                let _ = demo.request(method, &target).send().await.expect(405);
            }
            let _ = demo
                .post(&format!("{target}?ms=0"))
                .send()
                .await
                .expect(200);
        }
        let _ = demo.post("/orders/7").send().await.expect(405);
        for target in ["/orders/7/nothing", "/nothing", "/deferred/x"] {
            let _ = demo.get(target).send().await.expect(404);
        }
        let _ = demo.post("/orders/%ff/pay").send().await.expect(400);
    }

    pub(crate) async fn a_panic_is_not_its_end(demo: Framework, store: &str) {
        let demo = Demo::start(demo, store).await;
        assert!(
            demo.post("/orders/7/pay?panic=1&ms=0")
                .try_send()
                .await
                .is_err()
        );
        let _ = demo.post("/orders/7/ship?ms=0").send().await.expect(200);
        let work = busy(&demo, "7", 500).await;
        let refund = demo
            .post("/orders/7/refund?panic=1&ms=0")
            .send()
            .await
            .expect(202);
        let _ = work.answer().await.expect(200);
        let document = ended(&demo, &refund).await;
        assert_eq!(document["state"], "dead", "{document}");
        let _ = demo.post("/orders/7/ship?ms=0").send().await.expect(200);
    }

    pub(crate) async fn told_to_stop_it_ends_what_it_has_begun(demo: Framework, store: &str) {
        let mut demo = Demo::start(demo, store).await;
        let work = busy(&demo, "7", 1000).await;
        demo.terminate();
        let _ = work.answer().await.expect(200);
        let status = demo.ended().await;
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

async fn both(store: &str) -> (Demo, Demo) {
    let axum = Demo::start(Framework::Axum, store).await;
    (axum, Demo::start(Framework::Actix, store).await)
}

/// The lock of an order, held by the test.
async fn held(store: &Store, order: &str) -> LockGuard {
    let request = store.lock(Key::path_param("id", order));
    let request = request.wait(Duration::from_secs(30));
    request.acquire().await.expect("the lock")
}

#[tokio::test]
async fn the_demos_can_not_be_told_apart() {
    let (axum, actix) = both("memory").await;
    let exchanges = [
        ("POST", "/orders/7/pay?ms=0"),
        ("GET", "/orders/7"),
        ("PUT", "/orders/7/pay"),
        ("GET", "/limited"),
        ("GET", "/healthz"),
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/nothing"),
        ("GET", "/deferred/x"),
        ("POST", "/deferred/x"),
        ("POST", "/orders/%ff/pay"),
        ("POST", "/orders/7/pay?ms=x"),
        ("POST", "/orders/7/pay?status=500&ms=0"),
    ];
    for (method, target) in exchanges {
        let shape = |answer: Answer| {
            let json = serde_json::from_slice::<Value>(&answer.body).ok();
            let keys = json.and_then(|json| {
                let keys = json.as_object()?.keys().cloned();
                Some(keys.collect::<Vec<_>>())
            });
            let kind = answer.list("content-type").to_lowercase();
            let told = [
                "retry-after",
                "ratelimit",
                "ratelimit-policy",
                "cache-control",
            ];
            let told: Vec<_> = told.map(|name| (name, answer.has(name))).into();
            (answer.status, kind, told, keys)
        };
        let here = shape(axum.request(method, target).send().await);
        let there = shape(actix.request(method, target).send().await);
        assert_eq!(here, there, "{method} {target}");
    }
}

#[tokio::test]
async fn the_demos_share_locks_and_quotas() {
    let (axum, actix) = both(&namespace().await).await;
    for (here, there) in [(&axum, &actix), (&actix, &axum)] {
        let work = busy(here, "a%2Fb", 500).await;
        let _ = there
            .post("/orders/a%2Fb/pay?ms=0")
            .send()
            .await
            .expect(409);
        let _ = there
            .post("/orders/a%2Fb/ship?ms=0")
            .send()
            .await
            .expect(200);
        let _ = work.answer().await.expect(200);
    }
    for demo in [&axum, &actix, &axum, &actix] {
        let _ = demo.get("/limited").send().await.expect(200);
    }
    let answer = axum.get("/limited").send().await.expect(200);
    assert!(answer.field("ratelimit").contains(";r=5;"), "{answer:?}");
}

/// Accepted by one, which then stops; run by the other.
async fn runs_what_the_other_has_accepted(first: Framework, second: Framework) {
    let url = namespace().await;
    let store = Store::connect(&url).await.expect("a store");
    let lock = held(&store, "7").await;
    let mut first = Demo::start(first, &url).await;
    let refund = first.post("/orders/7/refund?ms=1").body("note");
    let accepted = refund.send().await.expect(202);
    first.terminate();
    assert_eq!(first.ended().await.code(), Some(0));
    let second = Demo::start(second, &url).await;
    lock.release().await;
    let document = ended(&second, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let event = &document["response"]["body"];
    assert_eq!(event["pid"], second.pid(), "{document}");
    assert_eq!(event["note"], "note", "{document}");
}

#[tokio::test]
async fn actix_runs_what_axum_has_accepted() {
    runs_what_the_other_has_accepted(Framework::Axum, Framework::Actix).await;
}

#[tokio::test]
async fn axum_runs_what_actix_has_accepted() {
    runs_what_the_other_has_accepted(Framework::Actix, Framework::Axum).await;
}

/// The other's process is killed while it holds the lock and watches the job.
async fn takes_over_from_the_killed(first: Framework, second: Framework) {
    let url = namespace().await;
    let store = Store::connect(&url).await.expect("a store");
    let mut first = Demo::start(first, &url).await;
    let _work = busy(&first, "7", 60_000).await;
    let accepted = first.post("/orders/7/refund?ms=1").send().await.expect(202);
    let second = Demo::start(second, &url).await;
    let killed = Instant::now();
    first.kill();
    let lock = held(&store, "7").await;
    let took = killed.elapsed();
    // A lease of 10 s, and a look every second at most.
    assert!(
        took < Duration::from_secs(13),
        "the lock came free after {took:?}"
    );
    lock.release().await;
    let document = ended(&second, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let event = &document["response"]["body"];
    assert_eq!(event["pid"], second.pid(), "{document}");
}

#[tokio::test]
async fn actix_takes_over_when_axum_is_killed() {
    takes_over_from_the_killed(Framework::Axum, Framework::Actix).await;
}

#[tokio::test]
async fn axum_takes_over_when_actix_is_killed() {
    takes_over_from_the_killed(Framework::Actix, Framework::Axum).await;
}

#[tokio::test]
async fn health_follows_the_store() {
    let mut server = lockgate_tests::Server::start().await;
    let (axum, actix) = both(&server.url("health")).await;
    let healthy = async |status: u16| {
        for demo in [&axum, &actix] {
            eventually("the health to be told", async || {
                demo.get("/healthz").send().await.status == status
            })
            .await;
        }
    };
    healthy(200).await;
    server.kill();
    healthy(503).await;
    for demo in [&axum, &actix] {
        let _ = demo
            .post("/orders/7/pay?ms=0")
            .send()
            .await
            .expect(503)
            .retry_after();
        let _ = demo.get("/limited").send().await.expect(200);
    }
    server.restart().await;
    healthy(200).await;
}
