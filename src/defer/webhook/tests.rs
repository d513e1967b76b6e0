//! Webhook calls over real sockets, and forbidden targets.

mod tls;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{
    deliver_webhook::{DeliveryOutcome, WebhookCall, WebhookSender as _},
    sign_webhook::sign_webhook,
    webhooks::Webhooks,
};
use crate::{
    defer::webhook_receivers::{WebhookLimits, WebhookReceivers},
    key::Key,
};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Spawns a server that answers one connection; its task returns the request.
async fn spawn_server(answer: &'static str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let request = crate::store::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"{\"id\":\"x\"}") {
            bytes.push(socket.read_u8().await.expect("more"));
        }
        socket.write_all(answer.as_bytes()).await.expect("it listens");
        String::from_utf8(bytes).expect("text")
    });
    (address, request)
}

fn local_webhooks() -> Webhooks {
    Webhooks::new(SECRET).allow_http().allow_network("127.0.0.0/8")
}

async fn deliver(webhooks: &Webhooks, url: &str) -> DeliveryOutcome {
    let limits = WebhookLimits { max_calls: 2, contended: false };
    let slot = Arc::<WebhookReceivers>::default().try_acquire_slot(&Key::custom("x"), url, limits);
    let call = WebhookCall {
        url: url.to_owned(),
        id: "msg_1".to_owned(),
        body: Bytes::from_static(b"{\"id\":\"x\"}"),
        // Not the first attempt, which has less time.
        attempt: 12,
        receiver_slot: Arc::new(slot.expect("the receiver has no other call")),
    };
    webhooks.deliver(call).await
}

#[track_caller]
fn header_value<'a>(request: &'a str, name: &str) -> &'a str {
    let line = request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name}: {request}"))
}

#[tokio::test]
async fn call_is_signed_with_each_secret() {
    let (address, request) = spawn_server("HTTP/1.1 204 No Content\r\n\r\n").await;
    let other = "another secret of enough bytes";
    let webhooks = local_webhooks().also_signed_with(other);
    let url = format!("http://{address}/hook?a=b");
    assert_eq!(deliver(&webhooks, &url).await, DeliveryOutcome::Answered(204));
    let request = request.await.expect("it was asked");
    assert!(request.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{request}");
    assert_eq!(header_value(&request, "host"), address.to_string());
    assert_eq!(header_value(&request, "webhook-id"), "msg_1");
    let time = header_value(&request, "webhook-timestamp").parse().expect("seconds");
    let made =
        [SECRET, other].map(|s| sign_webhook(s.as_bytes(), "msg_1", time, b"{\"id\":\"x\"}"));
    assert_eq!(header_value(&request, "webhook-signature"), made.join(" "));
    assert!(!format!("{webhooks:?}").contains(other));
}

#[tokio::test]
async fn redirect_is_final_and_its_body_is_not_awaited() {
    let answer =
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 9000000\r\n\r\nx";
    let (address, request) = spawn_server(answer).await;
    assert_eq!(
        deliver(&local_webhooks(), &format!("http://{address}/")).await,
        DeliveryOutcome::Answered(302)
    );
    let _ = request.await;
}

/// A pooled connection would outlive the check of its address.
#[tokio::test]
async fn connection_closes_with_its_call() {
    let more = "HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\nx";
    let (soon, late) = (Duration::from_millis(50), Duration::from_secs(10));
    for (answer, timeout) in [("HTTP/1.1 204 No Content\r\n\r\n", late), (more, late), ("", soon)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let ended = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let mut bytes = Vec::new();
            while !bytes.ends_with(b"{\"id\":\"x\"}") {
                bytes.push(socket.read_u8().await.expect("more"));
            }
            socket.write_all(answer.as_bytes()).await.expect("it listens");
            // Reads the end of the stream, or a reset because of unread data.
            let _ = socket.read_to_end(&mut bytes).await;
        });
        let made = deliver(&local_webhooks().timeout(timeout), &format!("http://{address}/")).await;
        assert_eq!(matches!(made, DeliveryOutcome::Answered(_)), !answer.is_empty(), "{made:?}");
        assert!(tokio::time::timeout(late, ended).await.is_ok(), "still open after {answer:?}");
    }
}

#[tokio::test]
async fn host_is_resolved_once_and_all_addresses_are_checked() {
    let (address, request) = spawn_server("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let times = Arc::new(AtomicUsize::new(0));
    let resolving = |mut webhooks: Webhooks, addresses: Vec<SocketAddr>| {
        let times = Arc::clone(&times);
        let resolve = move |_: &str, _: u16| {
            times.fetch_add(1, Ordering::SeqCst);
            let addresses = addresses.clone();
            Box::pin(async { Ok(addresses) }) as _
        };
        webhooks.resolver = Arc::new(resolve);
        webhooks
    };
    // Public names that resolve to an internal address, alone or among others.
    let public = "8.8.8.8:80".parse().expect("an address");
    let metadata = "169.254.169.254:80".parse().expect("an address");
    for inside in [vec![address], vec![public, address], vec![metadata], vec![]] {
        let webhooks = resolving(Webhooks::new(SECRET).allow_http(), inside);
        let answer = deliver(&webhooks, "http://example.com/").await;
        assert!(matches!(answer, DeliveryOutcome::AddressRefused(_)), "{answer:?}");
    }
    assert_eq!(times.swap(0, Ordering::SeqCst), 4);
    let webhooks = resolving(local_webhooks(), vec![address]);
    assert_eq!(deliver(&webhooks, "http://example.com/").await, DeliveryOutcome::Answered(200));
    assert_eq!(times.load(Ordering::SeqCst), 1, "the host was resolved once");
    assert_eq!(header_value(&request.await.expect("it was asked"), "host"), "example.com");
}

/// The first address of the host is silent, as on a network that drops packets.
#[tokio::test]
async fn silent_address_leaves_time_for_the_next() {
    let (address, request) = spawn_server("HTTP/1.1 204 No Content\r\n\r\n").await;
    let full = tokio::net::TcpSocket::new_v4().expect("a socket");
    full.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let full = full.listen(1).expect("it listens");
    let silent = full.local_addr().expect("bound");
    // A connect beyond the accept queue gets no answer.
    let mut connections = Vec::new();
    let soon = Duration::from_millis(100);
    while let Ok(connected) = tokio::time::timeout(soon, TcpStream::connect(silent)).await {
        connections.push(connected.expect("the accept queue has space"));
    }
    let mut webhooks = local_webhooks().timeout(Duration::from_secs(5));
    webhooks.resolver = Arc::new(move |_, _| Box::pin(async move { Ok(vec![silent, address]) }));
    assert_eq!(deliver(&webhooks, "http://example.com/").await, DeliveryOutcome::Answered(204));
    assert!(request.await.is_ok());
}

#[tokio::test]
async fn forbidden_targets_are_not_called() {
    let (address, request) = spawn_server("HTTP/1.1 200 OK\r\n\r\n").await;
    let strict = Webhooks::new(SECRET);
    let port = address.port();
    for url in [
        format!("http://{address}/"),
        format!("https://{address}/"),
        format!("https://2130706433:{port}/"),
        format!("https://0x7f.1:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        format!("https://[::1]:{port}/"),
        format!("https://example.com@{address}/"),
        "https://169.254.169.254/latest/meta-data".to_owned(),
        "no url".to_owned(),
    ] {
        let answer = deliver(&strict, &url).await;
        assert!(matches!(answer, DeliveryOutcome::AddressRefused(_)), "{url}: {answer:?}");
    }
    assert!(!request.is_finished(), "no connection was made");
    request.abort();
}

#[tokio::test]
async fn unresponsive_receiver_fails_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let webhooks = local_webhooks().timeout(Duration::from_millis(50));
    let answer = deliver(&webhooks, &format!("http://{address}/")).await;
    assert!(matches!(answer, DeliveryOutcome::Failed(_)), "{answer:?}");
    // A plain-text server presents no certificate.
    let (address, request) = spawn_server("HTTP/1.1 200 OK\r\n\r\n").await;
    let answer = deliver(&webhooks, &format!("https://{address}/")).await;
    assert!(matches!(answer, DeliveryOutcome::Failed(_)), "{answer:?}");
    request.abort();
}

#[test]
#[should_panic(expected = "needs at least 24 bytes, not 5")]
fn short_secret_panics() {
    let _ = Webhooks::new("short");
}

#[test]
fn invalid_settings_are_config_errors() {
    let webhooks = Webhooks::try_new([7; 24]).expect("long enough");
    let refused = [
        Webhooks::try_new([7; 23]),
        webhooks.clone().try_also_signed_with([7; 23]),
        webhooks.clone().try_allow_network("10.1.0.0/33"),
    ];
    for result in refused {
        assert_eq!(result.expect_err("refused").kind(), crate::ErrorKind::Config);
    }
    assert!(webhooks.try_allow_network("10.1.0.0/16").is_ok());
}
