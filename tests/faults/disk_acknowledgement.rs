//! A 202 only for data on disk: row 5 of deferral, with `replicas` and `replicas_on_disk`.
//!
//! The test server may be too old for `WAITAOF`, and a lagging disk cannot be simulated. A proxy in
//! front of it claims a newer version and answers `WAITAOF` as configured; it forwards all other
//! calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, body::Body, http::Request, routing::post};
use http_body_util::BodyExt as _;
use lockgate_axum::{DeferLayer, LockLayer, Store, deferred_routes};
use lockgate_tests::{
    RedisServer,
    proxy::{command_args, take_command},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};
use tower::ServiceExt as _;

const INFO_REPLY: &str = "redis_version:7.2.4\r\nrun_id:a\r\nrole:master\r\naof_enabled:1\r\n";

/// Proxy in front of a server.
#[derive(Default)]
struct DiskAckProxy {
    /// True if the data are on the server's own disk too, not only on its replica's.
    has_local_fsync: AtomicBool,
    received_waits: Mutex<Vec<String>>,
}

impl DiskAckProxy {
    async fn listen_before(self: &Arc<Self>, server: &RedisServer) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (proxy, server) = (Arc::clone(self), server.port());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&proxy).forward_connection(client, server));
            }
        });
        port
    }

    async fn forward_connection(self: Arc<Self>, client: TcpStream, server: u16) -> Option<()> {
        let server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
        let mut bytes = Vec::new();
        while from_client.read_buf(&mut bytes).await.ok()? > 0 {
            while let Some(call) = take_command(&mut bytes) {
                to_server.write_all(&self.substitute_call(call)).await.ok()?;
            }
        }
        None
    }

    /// Replaces `INFO` and `WAITAOF` by scripts with the configured reply, which preserves the
    /// order of the replies.
    fn substitute_call(&self, call: Vec<u8>) -> Vec<u8> {
        let text = |argument: &Vec<u8>| String::from_utf8_lossy(argument).into_owned();
        let arguments: Vec<_> = command_args(&call).iter().map(text).collect();
        match arguments.first().map(String::as_str) {
            Some("INFO") => eval_call("return ARGV[1]", INFO_REPLY),
            Some("WAITAOF") => {
                self.received_waits.lock().push(arguments.join(" "));
                let local_count = u8::from(self.has_local_fsync.load(Ordering::Relaxed));
                eval_call("return {tonumber(ARGV[1]), 1}", &local_count.to_string())
            }
            _ => call,
        }
    }
}

fn eval_call(script: &str, argument: &str) -> Vec<u8> {
    let arguments = ["EVAL", script, "0", argument];
    let bulk = arguments.map(|argument| format!("${}\r\n{argument}\r\n", argument.len())).concat();
    format!("*4\r\n{bulk}").into_bytes()
}

/// Returns the status, the `Location` and the body.
async fn send_request(app: &Router, request: Request<Body>) -> (u16, String, String) {
    let response = app.clone().oneshot(request).await.expect("it does not fail");
    let location = response.headers().get("location");
    let location = location.map(|value| value.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, location.unwrap_or_default(), String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn enqueue_is_accepted_only_after_fsync() {
    let (server, proxy) = (RedisServer::start().await, Arc::new(DiskAckProxy::default()));
    let port = proxy.listen_before(&server).await;
    let builder = Store::builder(&format!("redis://127.0.0.1:{port}/?ns=x"));
    let store = builder
        .replicas_on_disk(true)
        .call_timeout(Duration::from_secs(5))
        .connect()
        .await
        .expect("the URL is right");
    let app = Router::new()
        .route("/orders/{id}", post(async || ()))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().background().min_replicas(1))
        .merge(deferred_routes("/deferred").store(&store))
        .layer(Extension(store.clone()));
    let order = || {
        let request = Request::post("/orders/7").header("idempotency-key", "\"one\"");
        request.body(Body::from("note")).expect("a request")
    };
    let status_request =
        |location: &str| Request::get(location).body(Body::empty()).expect("a request");

    // The job is stored and on the replica's disk, but a crash of the server would lose it.
    let (status, location, body) = send_request(&app, order()).await;
    assert_eq!(status, 503, "{body}");
    assert!(location.starts_with("/deferred/"), "{location:?}");
    let (status, _, document) = send_request(&app, status_request(&location)).await;
    assert!(status == 200 && document.contains("\"queued\""), "{status} {document}");
    // The client retries: a 503 for the same job, and a 202 once it is on disk.
    let (status, second_location, _) = send_request(&app, order()).await;
    assert_eq!((status, &second_location), (503, &location));
    proxy.has_local_fsync.store(true, Ordering::Relaxed);
    let (status, second_location, _) = send_request(&app, order()).await;
    assert_eq!((status, &second_location), (202, &location));
    let received_waits = proxy.received_waits.lock();
    assert!(received_waits.len() >= 3, "{received_waits:?}");
    assert!(
        received_waits.iter().all(|command| command.starts_with("WAITAOF 1 1 ")),
        "{received_waits:?}"
    );
}
