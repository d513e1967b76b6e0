//! Commands on deferred requests, which a demo accepts and runs.

use lockgate::Key;
use lockgate_tests::{DemoProcess, WebFramework, eventually};
use serde_json::json;

use crate::shop::Shop;

/// The lock of order 7 as operators name it.
const LOCK: &str = "p:id::7";

/// A demo beside the store of a shop.
struct Demo {
    shop: Shop,
    process: DemoProcess,
}

impl Demo {
    async fn start() -> Self {
        let shop = Shop::start().await;
        let process = DemoProcess::start(WebFramework::Axum, &shop.url).await;
        Self { shop, process }
    }

    /// Sends refunds of order 7 while its lock is held, and returns the ids of the requests.
    async fn defer<const N: usize>(&self, query: &str, bodies: [&'static [u8]; N]) -> Vec<String> {
        let mut ids = Vec::new();
        for body in bodies {
            let refund = self.process.post(&format!("/orders/7/refund?{query}"));
            let refund = refund.header("x-note", "a gift").body(body);
            let response = refund.send().await.expect_status(202);
            ids.push(response.header("location").rsplit('/').next().expect("an id").to_owned());
        }
        ids
    }

    /// Returns the ids that `jobs list` prints.
    async fn list(&self, args: &[&str]) -> Vec<String> {
        let rows = self.shop.run_json(&[&["jobs", "list"], args].concat()).await;
        let ids = rows.as_array().expect("rows").iter().map(|row| row["id"].as_str());
        ids.map(|id| id.expect("an id").to_owned()).collect()
    }

    async fn act(&self, args: &[&str]) -> (Option<i32>, String) {
        let options = ["--reason", "a test", "--yes"];
        let (code, text, _) = self.shop.run(&[&["jobs"], args, &options].concat()).await;
        (code, text.trim_end().to_owned())
    }
}

const DONE: (Option<i32>, &str) = (Some(0), "done");

#[tokio::test]
async fn waiting_request_is_found_looked_at_and_cancelled() {
    let demo = Demo::start().await;
    let lock = demo.shop.store.lock(Key::path_param("id", "7"));
    let _held = lock.acquire().await.expect("it is free");
    let ids = demo.defer("ms=1", [b"a\x1b[2J\nb", b"\xff\x1b"]).await;
    let (id, binary) = (ids[0].as_str(), ids[1].as_str());
    for (args, count) in [
        (["--route", "POST /orders"], 2),
        (["--route", "/pay"], 0),
        (["--lock", LOCK], 2),
        (["--lock", "p:id::8"], 0),
        (["--owner", "ada"], 0),
        (["--reason", "status 503"], 0),
        (["--limit", "1"], 1),
    ] {
        assert_eq!(demo.list(&args).await.len(), count, "{args:?}");
    }

    let look = ["jobs", "payload", id, "--reason", "a test"];
    let (code, text, error) = demo.shop.run(&look).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(text.starts_with("POST /orders/7/refund?ms=1\n"), "{text}");
    assert!(text.ends_with("\n\na\u{fffd}[2J\nb\n"), "{text:?}");
    let request = demo.shop.run_json(&look).await;
    assert_eq!((&request["method"], &request["body"]), (&"POST".into(), &"a\x1b[2J\nb".into()));
    assert_eq!(request["target"], "/orders/7/refund?ms=1");
    let headers = request["headers"].as_array().expect("pairs");
    assert!(headers.contains(&json!(["x-note", "a gift"])), "{headers:?}");
    let request = demo.shop.run_json(&["jobs", "payload", binary, "--reason", "a test"]).await;
    assert_eq!(request["body_base64"], "/xs=");

    let act = async |args: &[&str]| demo.act(args).await;
    let (code, text) = act(&["cancel", id]).await;
    assert_eq!((code, text.as_str()), DONE);
    assert_eq!(demo.shop.run_json(&["jobs", "show", id]).await["state"], "cancelled");
    let (code, text) = act(&["purge", id]).await;
    assert_eq!((code, text.as_str()), DONE);
    assert_eq!(demo.shop.run_json(&["jobs", "show", id]).await["tombstone"], true);
    assert_eq!(act(&["purge", binary]).await.0, Some(1), "it waits");
}

#[tokio::test]
async fn request_runs_now_unless_it_has_ended() {
    let demo = Demo::start().await;
    let lock = demo.shop.store.lock(Key::path_param("id", "7"));
    let held = lock.acquire().await.expect("it is free");
    let ids = demo.defer("ms=1", [b""]).await;
    let run_now = ["run-now", ids[0].as_str()];
    let (code, text) = demo.act(&run_now).await;
    assert_eq!((code, text.as_str()), DONE);
    assert_eq!(demo.list(&["--state", "waiting"]).await, ids, "its lock is held");
    let _ = held.release().await;
    eventually("its end", async || demo.list(&["--state", "done"]).await == ids).await;
    assert_eq!(demo.act(&run_now).await.0, Some(1), "it has ended");
}

#[tokio::test]
async fn dead_requests_are_purged() {
    let demo = Demo::start().await;
    let lock = demo.shop.store.lock(Key::path_param("id", "7"));
    let held = lock.acquire().await.expect("it is free");
    let ids = demo.defer("fails=1&ms=1", [b""; 3]).await;
    let _ = held.release().await;
    let dead = ["--state", "dead", "--reason", "panicked"];
    eventually("all to be dead", async || demo.list(&dead).await.len() == 3).await;
    let (code, text) = demo.act(&["purge", ids[0].as_str()]).await;
    assert_eq!((code, text.as_str()), DONE);
    for (age, text) in [("3600", "0 deleted"), ("0", "2 deleted")] {
        let purge = ["purge", "--all", "--older-than", age];
        assert_eq!(demo.act(&purge).await, (Some(0), text.to_owned()));
    }
    assert_eq!(demo.list(&dead).await.len(), 0);
}
