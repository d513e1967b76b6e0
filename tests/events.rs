//! What is seen from outside: an event for each turn a lock takes, with the node and a hashed key, and
//! never a token; and warnings of what looks like a mistake, once each. A test target of its own, because the subscriber is the process's.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, request::Parts};
use http_body_util::Empty;
use lockgate::{
    ClientAddress, Key, NotAcquired, Policy, Quota, Store,
    gate::KeySource,
    middleware::{GateLayer, Plain},
    rate_limit::RateLimitGate,
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tracing_subscriber::fmt::MakeWriter;

/// An account number: it must not be found in a log.
const SECRET: &str = "DE89370400440532013000";

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

/// The longest run of hex digits. A node has 16; a nonce 32.
fn longest_hex(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap_or(0)
}

/// The log of this process, which both tests write: each looks for lines of its own.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        tracing_subscriber::fmt()
            .with_env_filter("lockgate=trace")
            .with_ansi(false)
            .with_writer(log.clone())
            .init();
        log
    })
}

fn text() -> String {
    String::from_utf8(log().0.lock().expect("no writer panics").clone()).expect("text")
}

#[tokio::test]
async fn events_name_node_and_hash_and_no_token() {
    let _ = log();
    let store = Store::memory();
    let key = Key::path_param("account", SECRET);
    let short = Duration::from_secs(3);
    let held = store.lock(key.clone()).lease_fixed(short).acquire().await.expect("free");
    let refused = store.lock(key.clone()).acquire().await;
    assert!(matches!(refused, Err(NotAcquired::Busy(_))));
    let second = store.lock(key.clone()).wait(Duration::from_secs(20)).acquire().await;
    let second = second.expect("the fixed lease ends");
    held.lost().await;
    drop(held);
    second.release().await;
    assert!(store.shutdown(Duration::from_secs(10)).await);

    let text = text();
    for event in ["waiting in line", "lock granted", "lock lost", "lock released", "given back"] {
        let line = text.lines().find(|line| line.contains(event));
        let line = line.unwrap_or_else(|| panic!("no event `{event}` in:\n{text}"));
        assert!(line.contains("node=") && line.contains("lock="), "{line}");
    }
    assert!(!text.contains(SECRET), "{text}");
    assert!(longest_hex(&text) <= 16, "{text}");
}

/// Asks a limit by this key twice, as a proxy at 10.0.0.1.
async fn ask_twice(source: KeySource<Parts>, header: Option<(&str, &str)>) -> Vec<StatusCode> {
    let quota = Quota::requests(100).per(Duration::from_secs(60));
    let limit = RateLimitGate::new(source, quota).store(&Store::memory());
    let inner = service_fn(async |_: Request<Empty<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let service = GateLayer::<_, Plain>::new(limit).layer(inner);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut request = Request::new(Empty::new());
        request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 4711)));
        if let Some((name, value)) = header {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            request.headers_mut().insert(name, value.parse().expect("a value"));
        }
        answers.push(service.clone().oneshot(request).await.expect("it does not fail").status());
    }
    answers
}

#[tokio::test]
async fn what_proxies_tell_or_do_not_is_warned_of_once() {
    let _ = log();
    let forwarded = Some(("x-forwarded-for", "203.0.113.9"));
    assert_eq!(ask_twice(KeySource::ip(), None).await, [200, 200]);
    assert_eq!(text().matches("x-forwarded-for").count(), 0, "{}", text());
    for _ in 0..2 {
        assert_eq!(ask_twice(KeySource::ip(), forwarded).await, [200, 200]);
    }
    let behind = || KeySource::client(ClientAddress::behind(["10.0.0.0/8"]));
    assert_eq!(ask_twice(behind(), forwarded).await, [200, 200]);
    assert_eq!(text().matches("whom it speaks for").count(), 0, "{}", text());
    for _ in 0..2 {
        assert_eq!(ask_twice(behind(), None).await, [400, 400]);
    }
    let text = text();
    assert_eq!(text.matches("field=\"x-forwarded-for\"").count(), 1, "{text}");
    assert_eq!(text.matches("whom it speaks for").count(), 1, "{text}");
    assert!(!text.contains("203.0.113.9"), "{text}");
}

#[tokio::test]
async fn a_policy_in_shadow_says_whom_it_would_have_refused() {
    let _ = log();
    let quota = Quota::requests(1).per(Duration::from_secs(60));
    let limit = Store::memory().rate_limit(Policy::new(quota).name("candidate").shadow());
    for _ in 0..2 {
        assert!(limit.check(SECRET, 1).await.expect("it answers").is_admitted());
    }
    let text = text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("shadow policy")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].contains("INFO") && lines[0].contains("candidate"), "{text}");
    assert!(lines[0].contains("subject=") && !text.contains(SECRET), "{text}");
}

#[tokio::test]
async fn one_policy_around_another_of_its_name_is_warned_of_once() {
    let _ = log();
    let store = Store::memory();
    let quota = Quota::requests(9).per(Duration::from_secs(60));
    let limit = || {
        let policy = Policy::new(quota).name("nested");
        GateLayer::<_, Plain>::new(RateLimitGate::new(KeySource::ip(), policy).store(&store))
    };
    let inner = service_fn(async |_: Request<Empty<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let service = limit().layer(limit().layer(inner));
    for _ in 0..3 {
        let mut request = Request::new(Empty::<Bytes>::new());
        request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 4711)));
        let answer = service.clone().oneshot(request).await.expect("it does not fail");
        assert_eq!(answer.headers().get_all("ratelimit").iter().count(), 1);
    }
    let text = text();
    let lines = text.lines().filter(|line| line.contains("two RateLimitLayers"));
    assert_eq!(lines.count(), 1, "{text}");
}
