//! Log events about an unsuitable server, misconfigured limits, and locks. The [tests of the server
//! check](../src/store/redis/tests/server_concerns.rs) do not read log events.
//!
//! This is a separate test target because the subscriber is global to the process. Each event is
//! emitted by one test only, because the events are counted.

#[path = "warnings/dead_status_paths.rs"]
mod dead_status_paths;

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use lockgate::{AcquireError, Key, Store};
use lockgate_tests::{
    RedisServer, StoreKind, TestCase, WebFramework, connect_with_long_timeout, eventually, run_case,
};
use tracing_subscriber::fmt::MakeWriter;

const EVICTION_WARNING: &str = "the server evicts keys (allkeys-lru)";
const PERSISTENCE_WARNING: &str = "the server keeps nothing on disk";

const UNTRUSTED_PROXY_WARNING: &str = "forwarding header found, but no proxy is trusted";
const MISSING_CLIENT_WARNING: &str = "a trusted proxy sent no client address";
const DUPLICATE_POLICY_WARNING: &str = "two nested layers have a policy of the same name";
const UNLOCKED_REQUEST_ERROR: &str = "a request passed without its lock";
const DELEGATION_WARNING: &str = "delegation header rejected";
const REPLAY_MARKER_WARNING: &str = "a request with Lockgate-Replay was not verified";
const MISSING_LOCK_WARNING: &str =
    "request not deferrable: it passed a DeferLayer and met no LockLayer";
const STATUS_ELSEWHERE_WARNING: &str = "the status of a job was requested under another path";
const MISSING_DATA_ERROR: &str = "run failed: the handler takes a web::Data that the routes";
const MISSING_EXTENSION_ERROR: &str = "run failed: the handler takes an Extension that the routes";
const MISSING_VALUE_ERROR: &str = "extractor without its value: the request holds no lock";
const SHADOW_REFUSAL: &str = "shadow policy: the request would have been refused";

/// Log of this process.
static PROCESS_LOG: LazyLock<LogBuffer> = LazyLock::new(LogBuffer::install);

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogBuffer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl LogBuffer {
    fn install() -> Self {
        let log = Self::default();
        let lines = tracing_subscriber::fmt().with_env_filter("lockgate=trace").with_ansi(false);
        lines.with_writer(log.clone()).init();
        log
    }

    /// Returns the number of warnings that contain this text.
    fn count_warnings(&self, text: &str) -> usize {
        self.count_lines(" WARN lockgate", text)
    }

    fn count_lines(&self, level: &str, what: &str) -> usize {
        self.text().lines().filter(|line| line.contains(level) && line.contains(what)).count()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("text")
    }
}

async fn set_config(server: &RedisServer, name: &str, value: &str) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg(name).arg(value);
    let () = command.query_async(&mut server.connection().await).await.expect("an answer");
}

/// Makes enough concurrent calls to open all connections.
async fn use_all_connections(store: &Store) {
    let locks = (0..64).map(|n| async move {
        let wait = Duration::from_secs(10);
        match store.lock(format!("{n}")).wait(wait).acquire().await {
            Ok(guard) => _ = guard.release().await,
            // The call fails until the circuit breaker has found the new server.
            Err(AcquireError::Fault(_)) => {}
            Err(busy) => panic!("{busy}"),
        }
    });
    join_all(locks).await;
}

#[tokio::test]
async fn unsuitable_server_settings_are_warned_once_per_start() {
    let log = &*PROCESS_LOG;
    let mut server = RedisServer::start().await;
    set_config(&server, "maxmemory", "1gb").await;
    set_config(&server, "maxmemory-policy", "allkeys-lru").await;
    let store = connect_with_long_timeout(&server.url("x")).await;
    use_all_connections(&store).await;
    assert_eq!(
        [log.count_warnings(EVICTION_WARNING), log.count_warnings(PERSISTENCE_WARNING)],
        [1, 1],
        "once, at the start"
    );

    // A server that persists its data and evicts no keys causes no warning.
    let good = RedisServer::start_with_append_log("everysec").await;
    let other = connect_with_long_timeout(&good.url("x")).await;
    use_all_connections(&other).await;
    assert_eq!(
        [log.count_warnings(EVICTION_WARNING), log.count_warnings(PERSISTENCE_WARNING)],
        [1, 1]
    );
    assert_eq!(log.count_warnings("the server"), 2);

    // A new server without settings at the same address: it evicts no keys but does not persist its
    // data.
    server.kill();
    server.restart().await;
    eventually("the new server to be warned of", async || {
        use_all_connections(&store).await;
        log.count_warnings(PERSISTENCE_WARNING) > 1
    })
    .await;
    assert_eq!(
        [log.count_warnings(EVICTION_WARNING), log.count_warnings(PERSISTENCE_WARNING)],
        [1, 2],
        "once for each start"
    );
}

fn misconfiguration_counts() -> [usize; 3] {
    [UNTRUSTED_PROXY_WARNING, MISSING_CLIENT_WARNING, DUPLICATE_POLICY_WARNING]
        .map(|warning| PROCESS_LOG.count_warnings(warning))
}

/// Three misconfigurations: an unconfigured proxy makes all clients one, a trusted proxy sends
/// another header, and one policy name is used in two layers.
async fn send_through_misconfigured_layers(case: TestCase) {
    let site = case.start_site().await;
    let before = misconfiguration_counts();
    let _ = site.get("/quota/three").send().await.expect_status(200);
    assert_eq!(misconfiguration_counts(), before, "no warning is logged");
    for _ in 0..2 {
        let forwarded = site.get("/quota/three").header("x-forwarded-for", "192.0.2.1");
        let _ = forwarded.send().await.expect_status(200);
        let _ = site.get("/client/list").send().await.expect_status(400);
        let twice =
            site.get("/limits/twice").header("x-api-key", "a").send().await.expect_status(200);
        let _ = twice.header("ratelimit");
    }
    assert!(!PROCESS_LOG.text().contains("192.0.2.1"), "no client's address");
}

#[test]
fn possible_misconfiguration_is_warned_once() {
    LazyLock::force(&PROCESS_LOG);
    assert_eq!(misconfiguration_counts(), [0, 0, 0]);
    run_case(WebFramework::Axum, StoreKind::Memory, send_through_misconfigured_layers);
    assert_eq!(misconfiguration_counts(), [1, 1, 1], "at the first request that shows it");
    run_case(WebFramework::Actix, StoreKind::Memory, send_through_misconfigured_layers);
    assert_eq!(misconfiguration_counts(), [1, 1, 1], "once in a process");
}

/// Account number; it must not occur in a log.
const SECRET_SUBJECT: &str = "DE89370400440532013000";

/// Each lock event has the node and a hashed key, and never a token.
#[tokio::test]
async fn lock_events_log_node_and_key_hash_without_token() {
    LazyLock::force(&PROCESS_LOG);
    let store = Store::memory();
    let key = Key::path_param("account", SECRET_SUBJECT);
    let short = Duration::from_secs(3);
    let held = store.lock(key.clone()).fixed_lease(short).acquire().await.expect("free");
    let refused = store.lock(key.clone()).acquire().await;
    assert!(matches!(refused, Err(AcquireError::Busy(_))));
    let second = store.lock(key.clone()).wait(Duration::from_secs(20)).acquire().await;
    let second = second.expect("the fixed lease ends");
    held.lost().await;
    drop(held);
    second.release().await;
    assert!(store.shutdown(Duration::from_secs(10)).await);

    const EVENTS: [&str; 5] = [
        "waiting in the store's queue",
        "lock granted",
        "lock lost",
        "lock released",
        "in the background",
    ];
    let text = PROCESS_LOG.text();
    let lines_of_node =
        |node: &str| text.lines().filter(|line| line.contains(node)).collect::<Vec<_>>();
    let is_event = |line: &str, event: &str| line.contains(event) && line.contains("lock=");
    let has_all_events = |node: &&str| {
        let lines = lines_of_node(node);
        EVENTS.iter().all(|event| lines.iter().any(|line| is_event(line, event)))
    };
    let nodes = text.split_whitespace().filter_map(|word| word.strip_prefix("node="));
    let node = nodes.map(|node| node.trim_matches('"')).find(has_all_events);
    let node = node.unwrap_or_else(|| panic!("no node tells of all events in:\n{text}"));
    assert!(!text.contains(SECRET_SUBJECT), "{text}");
    // A node has 16 hex digits, a nonce 32.
    let longest_hex_run =
        |line: &str| line.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max();
    let lines = lines_of_node(node);
    assert!(
        lines.iter().all(|line| longest_hex_run(line).is_none_or(|longest| longest <= 16)),
        "{lines:#?}"
    );
}

/// Each refusal that a policy in shadow mode would have made is logged.
#[test]
fn shadow_refusals_are_logged() {
    LazyLock::force(&PROCESS_LOG);
    for (framework, before) in [(WebFramework::Axum, 0), (WebFramework::Actix, 2)] {
        run_case(framework, StoreKind::Memory, async move |case: TestCase| {
            let site = case.start_site().await;
            for refusal_count in 0..3 {
                let get = site.get("/limits/shadow").header("x-api-key", SECRET_SUBJECT);
                let _ = get.send().await.expect_status(200);
                assert_eq!(
                    PROCESS_LOG.count_lines(" INFO lockgate", SHADOW_REFUSAL),
                    before + refusal_count
                );
                assert_eq!(
                    PROCESS_LOG.count_lines("subject=", SHADOW_REFUSAL),
                    before + refusal_count
                );
                assert!(!PROCESS_LOG.text().contains(SECRET_SUBJECT), "a subject is hashed");
            }
        });
    }
}

/// Sends many requests with forged delegation and replay headers.
async fn send_forged_headers(case: TestCase) {
    let site = case.start_site().await;
    for _ in 0..100 {
        let forged = site.post("/called/7").header("lockgate-held", "x;00");
        let _ = forged.send().await.expect_status(200);
    }
    let hold = site.send_held(site.post(""), "/orders/8/refund").await;
    for _ in 0..100 {
        let forged = site.post("/orders/8/refund").header("lockgate-replay", "1;forged");
        let _ = forged.send().await.expect_status(409);
    }
    let _ = hold.finish().await.expect_status(200);
}

/// A client controls the number of forged requests, but not the size of the log.
#[test]
fn forged_headers_are_warned_once_a_minute() {
    LazyLock::force(&PROCESS_LOG);
    let started = std::time::Instant::now();
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        run_case(framework, StoreKind::Memory, send_forged_headers);
        let max_count = 1 + usize::try_from(started.elapsed().as_secs() / 60).expect("minutes");
        for warning in [DELEGATION_WARNING, REPLAY_MARKER_WARNING] {
            let count = PROCESS_LOG.count_warnings(warning);
            assert!((1..=max_count).contains(&count), "{count} lines: {warning}");
        }
    }
    assert!(
        PROCESS_LOG.count_lines(DELEGATION_WARNING, "suppressed=0") > 0,
        "each says how many there were since the last"
    );
}

/// The reason for not deferring is logged once per credential, whichever clients send it.
#[test]
fn credential_that_prevents_deferral_is_warned_once() {
    LazyLock::force(&PROCESS_LOG);
    const CREDENTIAL: &str = "not deferred: the request carries a credential";
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        run_case(framework, StoreKind::Memory, async |case: TestCase| {
            let site = case.start_site().await;
            let hold = site.post_held("/orders/7/pay").await;
            for name in ["x-api-key", "authorization", "x-api-key", "x-other-api-key"] {
                let refused = site.post("/orders/7/refund").header(name, "hunter2").send().await;
                let _ = refused.expect_status(409);
            }
            let _ = hold.finish().await.expect_status(200);
        });
    }
    assert_eq!(PROCESS_LOG.count_warnings(CREDENTIAL), 2, "of two entries of the list");
    assert_eq!(PROCESS_LOG.count_warnings(".carry_identity::<T>(..)"), 2);
    assert_eq!(PROCESS_LOG.count_warnings(".carry_extension::<T>()"), 2);
    assert_eq!(PROCESS_LOG.count_warnings(".keep_header(..)"), 2);
    assert_eq!(PROCESS_LOG.count_warnings("hunter2"), 0);
}

/// The `Location` that a client reports leads to the log records, which contain no path.
#[test]
fn deferred_requests_log_id_method_and_route() {
    LazyLock::force(&PROCESS_LOG);
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        run_case(framework, StoreKind::Memory, async |case: TestCase| {
            let site = case.start_site().await;
            let hold = site.post_held("/orders/in-the-log/pay").await;
            let accepted = site.post("/orders/in-the-log/refund").send().await.expect_status(202);
            let location = accepted.header("location").to_owned();
            let id = location.strip_prefix("/deferred/").expect("the path of the routes");
            let _ = hold.finish().await.expect_status(200);
            let job = format!("job={} ", id.get(..10).expect("34 digits"));
            for event in ["request deferred", "run started", "run ended"] {
                eventually(event, async || {
                    let text = PROCESS_LOG.text();
                    let line =
                        text.lines().find(|line| line.contains(event) && line.contains(&job));
                    line.is_some_and(|line| {
                        line.contains("method=\"POST\" route=\"/orders/{id}/refund\"")
                    })
                })
                .await;
            }
            assert!(!PROCESS_LOG.text().contains("in-the-log"), "no path and no name of a lock");
        });
    }
}

async fn axum_response(app: &axum::Router, method: &str, path: &str) -> axum::response::Response {
    let request = http::Request::builder().method(method).uri(path).body(axum::body::Body::empty());
    let answer = tower::ServiceExt::oneshot(app.clone(), request.expect("valid")).await;
    answer.expect("a router has no errors")
}

async fn post_status(app: &axum::Router, path: &str) -> u16 {
    axum_response(app, "POST", path).await.status().as_u16()
}

/// To a layer before a fallback, each request looks like a 404.
async fn check_axum_fallback(store: &Store) {
    use axum::{Router, routing::post};
    let orders = Router::new().route("/orders/{id}/pay", post(async || "paid"));
    let lock = lockgate_axum::LockLayer::by_path_param("id").store(store);
    let app = Router::new().fallback_service(orders).layer(lock);
    let count_before = PROCESS_LOG.count_lines("ERROR lockgate", UNLOCKED_REQUEST_ERROR);
    assert_eq!(post_status(&app, "/nothing").await, 404);
    assert_eq!(
        PROCESS_LOG.count_lines("ERROR lockgate", UNLOCKED_REQUEST_ERROR),
        count_before,
        "a 404 is one"
    );
    for _ in 0..3 {
        assert_eq!(post_status(&app, "/orders/7/pay").await, 200);
        assert_eq!(
            PROCESS_LOG.count_lines("ERROR lockgate", UNLOCKED_REQUEST_ERROR),
            count_before + 1,
            "once of a layer"
        );
    }
}

/// A layer around the app applies to the first scope of a prefix, whatever its guard.
async fn check_second_actix_scope(store: &Store) {
    use actix_web::{
        App, guard,
        test::{TestRequest, call_service, init_service},
        web,
    };
    let orders = web::resource("/orders/{id}/pay").post(async || "paid");
    let app = App::new()
        .service(web::scope("/api").guard(guard::Host("a.test")).service(web::resource("/x")))
        .service(web::scope("/api").guard(guard::Host("b.test")).service(orders))
        .wrap(lockgate_actix_web::LockLayer::by_path_param("id").store(store));
    let app = init_service(app).await;
    let expected_count = PROCESS_LOG.count_lines("ERROR lockgate", UNLOCKED_REQUEST_ERROR);
    for (path, status, expected_count) in
        [("/api/nothing", 404, expected_count), ("/api/orders/7/pay", 200, expected_count + 1)]
    {
        let request = TestRequest::post().uri(path).insert_header(("host", "b.test"));
        assert_eq!(call_service(&app, request.to_request()).await.status().as_u16(), status);
        assert_eq!(
            PROCESS_LOG.count_lines("ERROR lockgate", UNLOCKED_REQUEST_ERROR),
            expected_count,
            "{path}"
        );
    }
}

#[actix_web::test]
async fn unlocked_requests_are_logged_as_errors() {
    LazyLock::force(&PROCESS_LOG);
    let store = Store::memory();
    check_axum_fallback(&store).await;
    check_second_actix_scope(&store).await;
}

/// Covers a nested router in axum, a scope in actix-web, and the whole app, where no parameter is
/// captured yet.
#[actix_web::test]
async fn duplicate_path_parameter_is_logged_with_its_fix() {
    use actix_web::{
        App,
        test::{TestRequest, call_service, init_service},
        web,
    };
    LazyLock::force(&PROCESS_LOG);
    let store = Store::memory();
    let lock = || lockgate_actix_web::LockLayer::by_path_param("id").store(&store);
    let orders = || web::resource("/orders/{id}").post(async || "paid");
    let scoped_app = App::new().service(web::scope("/tenants/{id}").service(orders().wrap(lock())));
    let wrapped_app = App::new().service(web::scope("/shops/{id}").service(orders())).wrap(lock());
    let (scoped_app, wrapped_app) =
        (init_service(scoped_app).await, init_service(wrapped_app).await);
    let request = |path: &str| TestRequest::post().uri(path).to_request();
    // The log throttle admits one record a minute per fault, so each app has its own route.
    let count_errors = |prefix: &str| {
        let route =
            format!("two parameters of the route /{prefix}/{{id}}/orders/{{id}} share a name");
        PROCESS_LOG.count_lines("ERROR lockgate", &format!("{route}; rename one of them"))
    };
    let answer = call_service(&scoped_app, request("/tenants/3/orders/7")).await;
    assert_eq!((answer.status().as_u16(), count_errors("tenants")), (500, 1));
    let answer = call_service(&wrapped_app, request("/shops/3/orders/7")).await;
    assert_eq!((answer.status().as_u16(), count_errors("shops")), (500, 1));
    let lock = lockgate_axum::LockLayer::by_path_param("id").store(&store);
    let orders = axum::Router::new().route("/orders/{id}", axum::routing::post(async || "paid"));
    let app = axum::Router::new().nest("/sites/{id}", orders.layer(lock));
    assert_eq!((post_status(&app, "/sites/3/orders/7").await, count_errors("sites")), (500, 1));
}

#[tokio::test]
async fn defer_layer_without_a_lock_is_warned_of() {
    use axum::{Router, routing::post};
    LazyLock::force(&PROCESS_LOG);
    let app = Router::new().route("/orders/{id}/refund", post(async || "refunded"));
    let app = app.layer(lockgate_axum::DeferLayer::new());
    assert_eq!(post_status(&app, "/nothing").await, 404);
    assert_eq!(PROCESS_LOG.count_warnings(MISSING_LOCK_WARNING), 0, "a 404 shows nothing");
    for _ in 0..2 {
        assert_eq!(post_status(&app, "/orders/7/refund").await, 200);
        assert_eq!(PROCESS_LOG.count_warnings(MISSING_LOCK_WARNING), 1);
    }
    assert_eq!(PROCESS_LOG.count_warnings("POST /orders/{id}/refund"), 1);
}

/// The prefix of a nested router is known to no layer: only a request for a status shows it.
async fn check_nested_axum_status_routes() {
    use axum::{Router, routing::post};
    let store = Store::memory();
    let orders = Router::new()
        .route("/orders/{id}/refund", post(async || "refunded"))
        .layer(lockgate_axum::LockLayer::by_path_param("id").store(&store))
        .layer(lockgate_axum::DeferLayer::new().background())
        .merge(lockgate_axum::deferred_routes("/deferred").store(&store));
    let app = Router::new().nest("/api", orders);
    let accepted = axum_response(&app, "POST", "/api/orders/7/refund").await;
    let location = accepted.headers()["location"].to_str().expect("a path").to_owned();
    assert_eq!(axum_response(&app, "GET", &location).await.status(), 404, "{location}");
    assert_eq!(PROCESS_LOG.count_warnings(STATUS_ELSEWHERE_WARNING), 0);
    for _ in 0..2 {
        let status = axum_response(&app, "GET", &format!("/api{location}")).await.status();
        assert_eq!(status, 200);
        assert_eq!(PROCESS_LOG.count_warnings(STATUS_ELSEWHERE_WARNING), 1, "once of a store");
    }
}

async fn check_scoped_actix_status_routes() {
    use actix_web::{
        App,
        test::{TestRequest, call_service, init_service},
        web,
    };
    let store = Store::memory();
    let refund = web::resource("/orders/{id}/refund")
        .post(async || "refunded")
        .wrap(lockgate_actix_web::LockLayer::by_path_param("id").store(&store))
        .wrap(lockgate_actix_web::DeferLayer::new().background());
    let status_routes = lockgate_actix_web::deferred_routes("/deferred").store(&store);
    let app = App::new().service(web::scope("/api").service(refund).service(status_routes));
    let app = init_service(app).await;
    let post = TestRequest::post().uri("/api/orders/7/refund").to_request();
    let accepted = call_service(&app, post).await;
    let location = accepted.headers().get("location").expect("one of a 202");
    let location = format!("/api{}", location.to_str().expect("a path"));
    let get = TestRequest::get().uri(&location).to_request();
    assert_eq!(call_service(&app, get).await.status().as_u16(), 200);
    assert_eq!(PROCESS_LOG.count_warnings(STATUS_ELSEWHERE_WARNING), 2, "of this store too");
    assert_eq!(PROCESS_LOG.count_warnings("set .status_path(\"/api/deferred\")"), 2);
}

#[actix_web::test]
async fn status_routes_under_an_unknown_prefix_are_warned_of() {
    LazyLock::force(&PROCESS_LOG);
    check_nested_axum_status_routes().await;
    check_scoped_actix_status_routes().await;
}

/// The direct request finds the data of the server's `App`, and the run does not.
#[actix_web::test]
async fn run_without_application_data_is_logged_with_its_fix() {
    use actix_web::{
        App,
        test::{TestRequest, call_service, init_service},
        web,
    };
    use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, deferred_routes};
    LazyLock::force(&PROCESS_LOG);
    let orders = |config: &mut web::ServiceConfig| {
        let refund = web::resource("/orders/{id}/refund")
            .post(async |text: web::Data<String>| text.to_string())
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().background());
        config.service(refund);
    };
    let store = Store::memory();
    let app = App::new()
        .configure(orders)
        .service(deferred_routes("/deferred"))
        .app_data(web::Data::new("refunded".to_owned()))
        .app_data(web::Data::new(store.clone()));
    let app = init_service(app).await;
    let worker = DeferWorker::new(&store, orders).run(std::future::pending());
    let worker = actix_web::rt::spawn(worker);
    let post = TestRequest::post().uri("/orders/7/refund").to_request();
    let accepted = call_service(&app, post).await;
    let location = accepted.headers().get("location").expect("one of a 202");
    let response = format!("{}/response", location.to_str().expect("a path"));
    let get = TestRequest::get().uri(&response).insert_header(("prefer", "wait=20")).to_request();
    assert_eq!(call_service(&app, get).await.status().as_u16(), 410);
    worker.abort();
    let text = PROCESS_LOG.text();
    let line = text.lines().find(|line| line.contains(MISSING_DATA_ERROR)).expect("it is logged");
    for part in [
        " ERROR ",
        "lockgate_actix_web::missing_handler_value: run failed",
        "method=\"POST\"",
        "route=\"/orders/{id}/refund\"",
        "status=500",
        "config.app_data(..)",
        "DeferWorker::from_app",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

/// The direct request finds the extension of the server's router, and the run does not.
#[tokio::test]
async fn run_without_an_extension_is_logged_with_its_fix() {
    use axum::{
        Extension, Router,
        body::Body,
        http::{Request, StatusCode},
        routing::post,
    };
    use lockgate_axum::{DeferLayer, DeferWorker, LockLayer, deferred_routes};
    use tower::ServiceExt as _;
    LazyLock::force(&PROCESS_LOG);
    let store = Store::memory();
    let orders: Router = Router::new()
        .route("/orders/{id}/export", post(async |Extension(text): Extension<String>| text))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().background())
        .layer(Extension(store.clone()));
    let worker = DeferWorker::new(&store, orders.clone()).run(std::future::pending());
    let worker = tokio::spawn(worker);
    let app = orders
        .layer(Extension("exported".to_owned()))
        .merge(deferred_routes("/deferred").store(&store));
    let request = Request::post("/orders/7/export").body(Body::empty()).expect("valid");
    let accepted = app.clone().oneshot(request).await.expect("a router has no errors");
    let location = accepted.headers()["location"].to_str().expect("a path");
    let get = Request::get(format!("{location}/response")).header("prefer", "wait=20");
    let response = app.oneshot(get.body(Body::empty()).expect("valid")).await;
    assert_eq!(response.expect("a router has no errors").status(), StatusCode::GONE);
    worker.abort();
    let text = PROCESS_LOG.text();
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains(MISSING_EXTENSION_ERROR)).expect("it is logged");
    for part in ["method=\"POST\"", "route=\"/orders/{id}/export\"", "status=500", ".for_user"] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

/// Of each extractor, and once a minute: a client decides how often.
#[actix_web::test]
async fn extractor_without_its_value_is_logged() {
    use actix_web::{
        App,
        test::{TestRequest, call_service, init_service},
        web,
    };
    use axum::{Router, routing::post};
    LazyLock::force(&PROCESS_LOG);
    let app = Router::new().route("/", post(async |_: lockgate_axum::Fence| "unreachable"));
    let handler = async |_: lockgate_actix_web::CurrentLock| "unreachable";
    let actix_app = init_service(App::new().route("/", web::post().to(handler))).await;
    for _ in 0..2 {
        assert_eq!(post_status(&app, "/").await, 500);
        let post = TestRequest::post().uri("/").to_request();
        assert_eq!(call_service(&actix_app, post).await.status().as_u16(), 500);
    }
    for extractor in ["Fence", "CurrentLock"] {
        let field = format!("extractor=\"{extractor}\"");
        let text = PROCESS_LOG.text();
        let lines = text.lines().filter(|line| line.contains(MISSING_VALUE_ERROR));
        assert_eq!(lines.filter(|line| line.contains(&field)).count(), 1, "{extractor}");
    }
}
