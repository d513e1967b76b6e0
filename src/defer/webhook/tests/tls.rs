//! Webhook calls over HTTPS to a local server.

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

/// Spawns a server for `localhost` and 127.0.0.1 that answers one call; its task returns the SNI
/// name and the request.
async fn spawn_tls_server() -> (SocketAddr, JoinHandle<Option<(Option<String>, String)>>) {
    let acceptor = test_tls_acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let request = crate::store::spawn(async move {
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
    (address, request)
}

/// Webhooks that trust the test root and resolve every name to `address`.
fn trusting_webhooks(address: SocketAddr) -> Webhooks {
    let mut webhooks = Webhooks::new(SECRET).allow_network("127.0.0.0/8");
    webhooks.tls = outbound::tls_config_with_roots(test_root_store());
    webhooks.resolver = Arc::new(move |_, _| Box::pin(async move { Ok(vec![address]) }));
    webhooks
}

#[tokio::test]
async fn https_call_reaches_the_certified_host() {
    for (host, name) in [("localhost", Some("localhost")), ("127.0.0.1", None)] {
        let (address, request) = spawn_tls_server().await;
        let to = format!("{host}:{}", address.port());
        let answer = deliver(&trusting_webhooks(address), &format!("https://{to}/hook?a=b")).await;
        assert_eq!(answer, DeliveryOutcome::Answered(204), "{host}");
        let (sni, request) = request.await.expect("it ends").expect("it was called");
        // An IP address is not permitted in SNI: RFC 6066, section 3.
        assert_eq!(sni.as_deref(), name);
        assert!(request.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{request}");
        assert_eq!(header_value(&request, "host"), to);
        assert!(header_value(&request, "webhook-signature").starts_with("v1,"), "{request}");
    }
}

#[tokio::test]
async fn receiver_without_a_valid_certificate_gets_no_call() {
    let other = |address| (trusting_webhooks(address), "example.com");
    let unknown = |_| (local_webhooks(), "127.0.0.1");
    for setup in [&other as &dyn Fn(SocketAddr) -> (Webhooks, &'static str), &unknown] {
        let (address, request) = spawn_tls_server().await;
        let (webhooks, host) = setup(address);
        let answer = deliver(&webhooks, &format!("https://{host}:{}/", address.port())).await;
        assert!(matches!(answer, DeliveryOutcome::Failed(_)), "{answer:?}");
        assert_eq!(request.await.expect("it ends"), None);
    }
}
