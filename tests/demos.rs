//! The two demos, as the processes that people start: alike from outside, and able to share one Redis.

#[path = "demos/contract.rs"]
mod contract;

use std::time::{Duration, Instant};

use lockgate::{Key, LockGuard, Store};
use lockgate_tests::{
    Answer, Demo, Framework, Pending, eventually, patient_store, shared_server, within,
};
use serde_json::Value;

/// Parts of the contract: both demos on this store.
macro_rules! contract {
    ($store:expr => $($part:ident),+ $(,)?) => {$(
        mod $part {
            use lockgate_tests::Framework;

            #[tokio::test]
            async fn axum() {
                crate::contract::$part(Framework::Axum, $store).await;
            }

            #[tokio::test]
            async fn actix() {
                crate::contract::$part(Framework::Actix, $store).await;
            }
        }
    )+};
}

mod on_memory {
    contract! { "memory" =>
        it_says_where_it_listens_and_what_it_has,
        its_quota_is_ten,
        it_tells_what_it_has_done,
        pay_ship_and_refund_exclude_each_other,
        a_refund_waits_for_its_turn,
        a_panic_is_not_its_end,
        told_to_stop_it_ends_what_it_has_begun,
    }
}

/// Those in which the store takes part.
mod on_redis {
    contract! { &crate::namespace().await =>
        its_quota_is_ten,
        pay_ship_and_refund_exclude_each_other,
        a_refund_waits_for_its_turn,
    }
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
    let answer = demo.get(&format!("/orders/{order}")).send().await.expect(200);
    assert_eq!(answer.json()["order"], order);
    answer.json()["events"].as_array().expect("a list").clone()
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
        ("POST", "/orders/7/pay?status=204&ms=0"),
        ("POST", "/orders/7/pay?status=205&ms=0"),
        ("POST", "/orders/7/pay?status=304&ms=0"),
        ("POST", "/orders//pay?ms=0"),
        ("GET", "/orders//pay"),
        ("GET", "/orders/"),
    ];
    for (method, target) in exchanges {
        let shape = |answer: Answer| {
            let json = serde_json::from_slice::<Value>(&answer.body).ok();
            let keys = json.and_then(|json| {
                let keys = json.as_object()?.keys().cloned();
                Some(keys.collect::<Vec<_>>())
            });
            let kind = answer.list("content-type").to_lowercase();
            let told = ["retry-after", "ratelimit", "ratelimit-policy", "cache-control"];
            let told: Vec<_> = told.map(|name| (name, answer.has(name))).into();
            // Also where it says how many there would be, if they were sent.
            let length = answer.list("content-length");
            let has_bytes = !answer.body.is_empty() || !matches!(&*length, "" | "0");
            (answer.status, kind, told, keys, has_bytes)
        };
        let here = shape(axum.request(method, target).send().await);
        let there = shape(actix.request(method, target).send().await);
        assert_eq!(here, there, "{method} {target}");
    }
}

/// Accepted by one, whose process is killed while it holds the lock and watches the job; run by the other.
async fn takes_over_from_the_killed(first: Framework, second: Framework) {
    let url = namespace().await;
    let store = patient_store(&url).await;
    let mut first = Demo::start(first, &url).await;
    let _work = busy(&first, "7", 60_000).await;
    let refund = first.post("/orders/7/refund?ms=1").body("note");
    let accepted = refund.send().await.expect(202);
    let second = Demo::start(second, &url).await;
    let killed = Instant::now();
    first.kill();
    let lock = held(&store, "7").await;
    let took = killed.elapsed();
    // A lease of 10 s, and a look every second at most.
    assert!(took < Duration::from_secs(25), "the lock came free after {took:?}");
    lock.release().await;
    let document = ended(&second, &accepted).await;
    assert_eq!(document["state"], "done", "{document}");
    let event = &document["response"]["body"];
    assert_eq!(event["pid"], second.pid(), "{document}");
    assert_eq!(event["note"], "note", "{document}");
}

#[tokio::test]
async fn actix_takes_over_when_axum_is_killed() {
    takes_over_from_the_killed(Framework::Axum, Framework::Actix).await;
}

#[tokio::test]
async fn axum_takes_over_when_actix_is_killed() {
    takes_over_from_the_killed(Framework::Actix, Framework::Axum).await;
}

/// Its handler runs for longer than it may when the demo is told to stop. A lease would be 10 s more.
#[tokio::test]
async fn axum_gives_back_what_it_cuts_off() {
    gives_back_what_it_cuts_off(Framework::Axum).await;
}

#[tokio::test]
async fn actix_gives_back_what_it_cuts_off() {
    gives_back_what_it_cuts_off(Framework::Actix).await;
}

async fn gives_back_what_it_cuts_off(framework: Framework) {
    let url = namespace().await;
    let store = patient_store(&url).await;
    let mut demo = Demo::start(framework, &url).await;
    let work = busy(&demo, "7", 60_000).await;
    demo.terminate();
    let _ = work.answer().await.expect(503);
    assert_eq!(demo.ended().await.code(), Some(0));
    let request = store.lock(Key::path_param("id", "7")).wait(Duration::from_secs(4));
    request.acquire().await.expect("it was given back").release().await;
}

#[tokio::test]
async fn a_store_may_be_reached_by_tls() {
    // Nobody listens there; the URL is one that the demos understand.
    let (axum, actix) = both("rediss://127.0.0.1:1/?ns=tls").await;
    for demo in [&axum, &actix] {
        let _ = demo.get("/healthz").send().await.expect(503);
    }
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
        let _ = demo.post("/orders/7/pay?ms=0").send().await.expect(503).retry_after();
        let _ = demo.get("/limited").send().await.expect(200);
    }
    server.restart().await;
    healthy(200).await;
}
