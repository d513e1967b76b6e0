//! Calls by `https` to a server of the test's own.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};

use super::{DeliveryOutcome, SECRET, Webhooks, deliver, header_value, local_webhooks};
use crate::outbound::{
    self,
    tests::{test_root_store, test_tls_acceptor},
};

/// A server for `localhost` and 127.0.0.1 that answers one call; the name that its client has asked for, and the call.
async fn spawn_tls_server() -> (SocketAddr, JoinHandle<Option<(Option<String>, String)>>) {
    let acceptor = test_tls_acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let asked = crate::store::spawn(async move {
        let (socket, _) = listener.accept().await.expect("a connection");
        let mut stream = acceptor.accept(socket).await.ok()?;
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"{\"id\":\"x\"}") {
            bytes.push(stream.read_u8().await.ok()?);
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("it listens");
        Some((name, String::from_utf8(bytes).expect("text")))
    });
    (address, asked)
}

/// Trusts that server; every name is at this address.
fn trusting_webhooks(address: SocketAddr) -> Webhooks {
    let mut callbacks = Webhooks::new(SECRET).allow_network("127.0.0.0/8");
    callbacks.tls = outbound::tls_config_with_roots(test_root_store());
    callbacks.resolver = Arc::new(move |_, _| Box::pin(async move { Ok(vec![address]) }));
    callbacks
}

#[tokio::test]
async fn https_call_reaches_the_certified_host() {
    for (host, name) in [("localhost", Some("localhost")), ("127.0.0.1", None)] {
        let (address, asked) = spawn_tls_server().await;
        let to = format!("{host}:{}", address.port());
        let answer = deliver(&trusting_webhooks(address), &format!("https://{to}/hook?a=b")).await;
        assert_eq!(answer, DeliveryOutcome::Answered(204), "{host}");
        let (told, asked) = asked.await.expect("it ends").expect("it was called");
        // An address is none that a client may ask for: RFC 6066 section 3.
        assert_eq!(told.as_deref(), name);
        assert!(asked.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{asked}");
        assert_eq!(header_value(&asked, "host"), to);
        assert!(header_value(&asked, "webhook-signature").starts_with("v1,"), "{asked}");
    }
}

#[tokio::test]
async fn receiver_without_a_valid_certificate_gets_no_call() {
    let other = |address| (trusting_webhooks(address), "example.com");
    let unknown = |_| (local_webhooks(), "127.0.0.1");
    for of in [&other as &dyn Fn(SocketAddr) -> (Webhooks, &'static str), &unknown] {
        let (address, asked) = spawn_tls_server().await;
        let (callbacks, host) = of(address);
        let answer = deliver(&callbacks, &format!("https://{host}:{}/", address.port())).await;
        assert!(matches!(answer, DeliveryOutcome::Failed(_)), "{answer:?}");
        assert_eq!(asked.await.expect("it ends"), None);
    }
}
