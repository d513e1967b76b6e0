//! What operators are told of a server that is not a good one (the [tests of the
//! probe](../src/store/redis/tests/concerns.rs) do not look at lines of the log), of limits that may be wired
//! wrongly, and of locks. A test target of its own, because the subscriber is the process's, and each line is told by one of its tests,
//! because they are counted.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use lockgate::{AcquireError, Key, Store};
use lockgate_tests::{Backing, Case, Framework, Server, eventually, patient_store, run};
use tracing_subscriber::fmt::MakeWriter;

const EVICTS: &str = "the store's server makes room by dropping keys (allkeys-lru)";
const FORGETS: &str = "the store's server keeps nothing on disk";

const PROXY: &str = "by_ip() believes no such field";
const SILENCE: &str = "a trusted proxy has not told whom it speaks for";
const TWICE: &str = "two RateLimitLayers around one handler have a policy of one name";
const UNLOCKED: &str = "a request passed without its lock";
const HELD: &str = "a word about a lock was not believed";
const REPLAY: &str = "a request that says it is a run is not deferred, and not believed";
const SHADOW: &str = "shadow policy: would have been refused";

/// Of the process.
static LOG: LazyLock<Log> = LazyLock::new(Log::begin);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    fn begin() -> Self {
        let log = Self::default();
        let lines = tracing_subscriber::fmt().with_env_filter("lockgate=trace").with_ansi(false);
        lines.with_writer(log.clone()).init();
        log
    }

    /// How many warnings say this.
    fn warnings(&self, what: &str) -> usize {
        self.lines(" WARN lockgate", what)
    }

    fn lines(&self, level: &str, what: &str) -> usize {
        self.text().lines().filter(|line| line.contains(level) && line.contains(what)).count()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("text")
    }
}

async fn set(server: &Server, name: &str, value: &str) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg(name).arg(value);
    let () = command.query_async(&mut server.connection().await).await.expect("an answer");
}

/// So much at once that all connections are made.
async fn is_used(store: &Store) {
    let locks = (0..64).map(|n| async move {
        let wait = Duration::from_secs(10);
        match store.lock(format!("{n}")).wait(wait).acquire().await {
            Ok(guard) => _ = guard.release().await,
            // Until its breaker has found the new server.
            Err(AcquireError::Fault(_)) => {}
            Err(busy) => panic!("{busy}"),
        }
    });
    join_all(locks).await;
}

#[tokio::test]
async fn what_a_server_is_unfit_for_is_told_once() {
    let log = &*LOG;
    let mut server = Server::start().await;
    set(&server, "maxmemory", "1gb").await;
    set(&server, "maxmemory-policy", "allkeys-lru").await;
    let store = patient_store(&server.url("x")).await;
    is_used(&store).await;
    assert_eq!([log.warnings(EVICTS), log.warnings(FORGETS)], [1, 1], "once, at the start");

    // One that keeps all, and drops nothing, is not spoken of.
    let good = Server::with_log("everysec").await;
    let other = patient_store(&good.url("x")).await;
    is_used(&other).await;
    assert_eq!([log.warnings(EVICTS), log.warnings(FORGETS)], [1, 1]);
    assert_eq!(log.warnings("the store's server"), 2);

    // Another one in its place, which has been told nothing: it evicts nothing, and forgets as well.
    server.kill();
    server.restart().await;
    eventually("the new one to be told of", async || {
        is_used(&store).await;
        log.warnings(FORGETS) > 1
    })
    .await;
    assert_eq!([log.warnings(EVICTS), log.warnings(FORGETS)], [1, 2], "once for each start");
}

fn told() -> [usize; 3] {
    [PROXY, SILENCE, TWICE].map(|what| LOG.warnings(what))
}

/// Behind a proxy that nobody has named all clients are one; a named one that says nothing writes another field; and
/// one policy in two layers is meant to be two.
async fn is_wired_oddly(case: Case) {
    let site = case.site().await;
    let before = told();
    let _ = site.get("/quota/three").send().await.expect(200);
    assert_eq!(told(), before, "there is nothing to be told");
    for _ in 0..2 {
        let forwarded = site.get("/quota/three").header("x-forwarded-for", "192.0.2.1");
        let _ = forwarded.send().await.expect(200);
        let _ = site.get("/client/list").send().await.expect(400);
        let twice = site.get("/limits/twice").header("x-api-key", "a").send().await.expect(200);
        let _ = twice.field("ratelimit");
    }
    assert!(!LOG.text().contains("192.0.2.1"), "no client's address");
}

#[test]
fn what_may_be_wired_wrongly_is_told_once() {
    LazyLock::force(&LOG);
    assert_eq!(told(), [0, 0, 0]);
    run(Framework::Axum, Backing::Memory, is_wired_oddly);
    assert_eq!(told(), [1, 1, 1], "at the first request that shows it");
    run(Framework::Actix, Backing::Memory, is_wired_oddly);
    assert_eq!(told(), [1, 1, 1], "once in a process");
}

/// An account number: it must not be found in a log.
const SECRET: &str = "DE89370400440532013000";

/// Of each turn that a lock takes: with the node and a hashed key, and never a token.
#[tokio::test]
async fn events_name_node_and_hash_and_no_token() {
    LazyLock::force(&LOG);
    let store = Store::memory();
    let key = Key::path_param("account", SECRET);
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

    const EVENTS: [&str; 5] =
        ["waiting in line", "lock granted", "lock lost", "lock released", "given back"];
    let text = LOG.text();
    let of_node = |node: &str| text.lines().filter(|line| line.contains(node)).collect::<Vec<_>>();
    let tells = |line: &str, event: &str| line.contains(event) && line.contains("lock=");
    let is_told = |node: &&str| {
        let lines = of_node(node);
        EVENTS.iter().all(|event| lines.iter().any(|line| tells(line, event)))
    };
    let nodes = text.split_whitespace().filter_map(|word| word.strip_prefix("node="));
    let node = nodes.map(|node| node.trim_matches('"')).find(is_told);
    let node = node.unwrap_or_else(|| panic!("no node tells of all events in:\n{text}"));
    assert!(!text.contains(SECRET), "{text}");
    // A node has 16 hex digits; a nonce 32.
    let runs = |line: &str| line.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max();
    let lines = of_node(node);
    assert!(lines.iter().all(|line| runs(line).is_none_or(|longest| longest <= 16)), "{lines:#?}");
}

/// Who watches a policy before it is enforced learns of each that it would have refused.
#[test]
fn what_a_shadow_would_have_refused_is_told() {
    LazyLock::force(&LOG);
    for (framework, before) in [(Framework::Axum, 0), (Framework::Actix, 2)] {
        run(framework, Backing::Memory, async move |case: Case| {
            let site = case.site().await;
            for told in 0..3 {
                let get = site.get("/limits/shadow").header("x-api-key", SECRET);
                let _ = get.send().await.expect(200);
                assert_eq!(LOG.lines(" INFO lockgate", SHADOW), before + told);
                assert_eq!(LOG.lines("subject=", SHADOW), before + told);
                assert!(!LOG.text().contains(SECRET), "a subject is hashed");
            }
        });
    }
}

/// Sends many requests with forged words about locks and runs.
async fn is_lied_to(case: Case) {
    let site = case.site().await;
    for _ in 0..100 {
        let forged = site.post("/called/7").header("lockgate-held", "x;00");
        let _ = forged.send().await.expect(200);
    }
    let hold = site.hold_with(site.post(""), "/orders/8/refund").await;
    for _ in 0..100 {
        let forged = site.post("/orders/8/refund").header("lockgate-replay", "1;forged");
        let _ = forged.send().await.expect(409);
    }
    let _ = hold.let_go().await.expect(200);
}

/// A client decides how often, and not how much of the log is about it.
#[test]
fn forged_headers_are_told_once_a_minute() {
    LazyLock::force(&LOG);
    let began = std::time::Instant::now();
    for framework in [Framework::Axum, Framework::Actix] {
        run(framework, Backing::Memory, is_lied_to);
        let most = 1 + usize::try_from(began.elapsed().as_secs() / 60).expect("minutes");
        for forged in [HELD, REPLAY] {
            let told = LOG.warnings(forged);
            assert!((1..=most).contains(&told), "{told} lines: {forged}");
        }
    }
    assert!(LOG.lines(HELD, "suppressed=0") > 0, "each says how many there were since the last");
}

/// Why nothing is deferred: of each credential once, whoever else sends one by chance.
#[test]
fn a_credential_that_keeps_requests_from_being_deferred_is_told_once() {
    LazyLock::force(&LOG);
    const CREDENTIAL: &str = "not deferred: the request carries a credential";
    for framework in [Framework::Axum, Framework::Actix] {
        run(framework, Backing::Memory, async |case: Case| {
            let site = case.site().await;
            let hold = site.hold("/orders/7/pay").await;
            for name in ["x-api-key", "authorization", "x-api-key", "x-other-api-key"] {
                let refused = site.post("/orders/7/refund").header(name, "hunter2").send().await;
                let _ = refused.expect(409);
            }
            let _ = hold.let_go().await.expect(200);
        });
    }
    assert_eq!(LOG.warnings(CREDENTIAL), 2, "of two entries of the list");
    assert_eq!(LOG.warnings(".carry_as::<T>(..) whose"), 2);
    assert_eq!(LOG.warnings(".carry::<T>()"), 2);
    assert_eq!(LOG.warnings(".keep_header(..)"), 2);
    assert_eq!(LOG.warnings("hunter2"), 0);
}

async fn posted(app: &axum::Router, path: &str) -> u16 {
    let request = http::Request::post(path).body(axum::body::Body::empty()).expect("valid");
    let answer = tower::ServiceExt::oneshot(app.clone(), request).await;
    answer.expect("a router has no errors").status().as_u16()
}

/// To a layer before a fallback each request looks like one that will be a 404.
async fn is_served_by_a_fallback(store: &Store) {
    use axum::{Router, routing::post};
    let orders = Router::new().route("/orders/{id}/pay", post(async || "paid"));
    let lock = lockgate_axum::LockLayer::by_path_param("id").store(store);
    let app = Router::new().fallback_service(orders).layer(lock);
    let told = LOG.lines("ERROR lockgate", UNLOCKED);
    assert_eq!(posted(&app, "/nothing").await, 404);
    assert_eq!(LOG.lines("ERROR lockgate", UNLOCKED), told, "a 404 is one");
    for _ in 0..3 {
        assert_eq!(posted(&app, "/orders/7/pay").await, 200);
        assert_eq!(LOG.lines("ERROR lockgate", UNLOCKED), told + 1, "once of a layer");
    }
}

/// Around an app the layer takes the first scope of a prefix, whatever its guard says.
async fn is_served_by_the_second_of_two_scopes(store: &Store) {
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
    let told = LOG.lines("ERROR lockgate", UNLOCKED);
    for (path, status, told) in [("/api/nothing", 404, told), ("/api/orders/7/pay", 200, told + 1)]
    {
        let request = TestRequest::post().uri(path).insert_header(("host", "b.test"));
        assert_eq!(call_service(&app, request.to_request()).await.status().as_u16(), status);
        assert_eq!(LOG.lines("ERROR lockgate", UNLOCKED), told, "{path}");
    }
}

#[actix_web::test]
async fn what_passes_unlocked_and_is_served_is_told() {
    LazyLock::force(&LOG);
    let store = Store::memory();
    is_served_by_a_fallback(&store).await;
    is_served_by_the_second_of_two_scopes(&store).await;
}

/// In axum by a nested router, in actix-web by a scope, and around the whole app, where nothing is captured yet.
#[actix_web::test]
async fn a_parameter_that_matches_twice_is_told_with_its_fix() {
    use actix_web::{
        App,
        test::{TestRequest, call_service, init_service},
        web,
    };
    LazyLock::force(&LOG);
    let store = Store::memory();
    let lock = || lockgate_actix_web::LockLayer::by_path_param("id").store(&store);
    let orders = || web::resource("/orders/{id}").post(async || "paid");
    let inside = App::new().service(web::scope("/tenants/{id}").service(orders().wrap(lock())));
    let around = App::new().service(web::scope("/shops/{id}").service(orders())).wrap(lock());
    let (inside, around) = (init_service(inside).await, init_service(around).await);
    let ask = |path: &str| TestRequest::post().uri(path).to_request();
    // One line a minute of each fault: each app has a route of its own.
    let told = |prefix: &str| {
        let route =
            format!("two parameters of the route /{prefix}/{{id}}/orders/{{id}} share a name");
        LOG.lines("ERROR lockgate", &format!("{route}; rename one of them"))
    };
    let answer = call_service(&inside, ask("/tenants/3/orders/7")).await;
    assert_eq!((answer.status().as_u16(), told("tenants")), (500, 1));
    let answer = call_service(&around, ask("/shops/3/orders/7")).await;
    assert_eq!((answer.status().as_u16(), told("shops")), (500, 1));
    let lock = lockgate_axum::LockLayer::by_path_param("id").store(&store);
    let orders = axum::Router::new().route("/orders/{id}", axum::routing::post(async || "paid"));
    let app = axum::Router::new().nest("/sites/{id}", orders.layer(lock));
    assert_eq!((posted(&app, "/sites/3/orders/7").await, told("sites")), (500, 1));
}
