//! What the console refuses: requests of other machines, and actions of other origins.

use lockgate_tests::{DemoProcess, TestRequest, WebFramework};

const ACTION: &str = r#"{"action":"pause-jobs","reason":"test"}"#;

pub(crate) async fn console_refuses_other_hosts_and_origins(demo: WebFramework, store: &str) {
    let demo = DemoProcess::start(demo, store).await;
    let action = || demo.post("/ops/api/actions").body(ACTION);
    let as_json = |request: TestRequest| request.header("content-type", "application/json");
    let own = |request: TestRequest| request.header("sec-fetch-site", "same-origin");

    // Of pages of other origins. A browser that says where the page is from cannot be overruled.
    for site in ["cross-site", "same-site", "none"] {
        let origin = format!("http://{}", demo.addr);
        let request = as_json(action()).header("sec-fetch-site", site).header("origin", &origin);
        let _ = request.send().await.expect_status(403);
    }
    let _ =
        as_json(action()).header("origin", "https://evil.example").send().await.expect_status(403);
    // Of no page.
    let _ = as_json(action()).send().await.expect_status(403);
    // What a form can send without a script.
    let form = "application/x-www-form-urlencoded";
    for kind in [form, "text/plain", "multipart/form-data; boundary=x"] {
        let request = own(action()).header("content-type", kind);
        let _ = request.send().await.expect_status(415);
    }
    let _ = own(action()).send().await.expect_status(415);
    let _ = own(demo.get("/ops/api/actions")).send().await.expect_status(405);

    // Another name of this machine (DNS rebinding), and a proxy.
    for target in ["/ops/", "/ops/api/snapshot", "/ops/api/events"] {
        let _ = demo.get(target).header("host", "evil.example").send().await.expect_status(403);
        let forwarded = demo.get(target).header("x-forwarded-for", "127.0.0.1");
        let _ = forwarded.send().await.expect_status(403);
    }
    let request = own(as_json(action()));
    let _ = request.clone().header("host", "evil.example").send().await.expect_status(403);
    let _ = request.clone().header("x-forwarded-for", "127.0.0.1").send().await.expect_status(403);

    // Nothing of that was done, and the page's own request is.
    let audit = async || demo.get("/ops/api/audit").send().await.expect_status(200).json();
    assert_eq!(audit().await["records"], serde_json::json!([]));
    let _ = request.send().await.expect_status(200);
    assert_eq!(audit().await["records"].as_array().map(Vec::len), Some(1));
}
