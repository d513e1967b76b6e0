//! Webhooks as in an application: a layer that names the receiver, a worker that delivers, and a
//! receiver that checks the signature.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use lockgate_axum::{DeferLayer, DeferWorker, Key, LockLayer, Store, Webhooks, deferred_routes};
use sha2::Sha256;
use tokio::{net::TcpListener, sync::oneshot, time::timeout};
use tower::ServiceExt as _;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Deliveries to the receiver, in order.
type ReceivedWebhooks = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// Responds 503 to the first delivery of each end, and 204 to the second.
async fn fail_first_delivery(
    State(sent): State<ReceivedWebhooks>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let mut sent = sent.lock().expect("no thread panics under the lock");
    let is_second = sent.iter().any(|(other, _)| other["webhook-id"] == headers["webhook-id"]);
    sent.push((headers, body));
    if is_second { StatusCode::NO_CONTENT } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn start_receiver() -> (SocketAddr, ReceivedWebhooks) {
    let sent = ReceivedWebhooks::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let app = Router::new().route("/hook", post(fail_first_delivery)).with_state(Arc::clone(&sent));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (addr, sent)
}

/// Signature by the specification, without code of the library: `v1,` and the base64 of the HMAC.
fn expected_signature(id: &str, timestamp: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).expect("a key of any length");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    let letters: Vec<_> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).collect();
    let mut text = "v1,".to_owned();
    let bytes = mac.finalize().into_bytes();
    let bits: Vec<u8> = bytes.iter().flat_map(|b| (0..8).rev().map(move |n| b >> n & 1)).collect();
    for six in bits.chunks(6) {
        let n = six.iter().fold(0, |n, bit| n << 1 | usize::from(*bit)) << (6 - six.len());
        text.push(letters[n]);
    }
    // 32 bytes are 43 letters.
    text + "="
}

async fn refund(Path(id): Path<String>) -> (StatusCode, String) {
    let status = if id == "lame" { StatusCode::IM_A_TEAPOT } else { StatusCode::CREATED };
    (status, id)
}

async fn send_request(
    app: &Router,
    method: &str,
    target: &str,
    headers: &[(&str, String)],
) -> (u16, String) {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Body::empty()).expect("valid");
    let answer = app.clone().oneshot(request).await.expect("a router has no errors");
    let location = answer.headers().get("location").map(|path| path.to_str().expect("a path"));
    (answer.status().as_u16(), location.unwrap_or_default().to_owned())
}

#[tokio::test]
async fn each_job_end_is_delivered_until_the_receiver_accepts() {
    let (store, (addr, sent)) = (Store::memory(), start_receiver().await);
    let receiver_url = |head: &lockgate::HttpRequestHead| {
        let (_, value) = head.headers.iter().find(|(name, _)| name == "x-webhook")?;
        String::from_utf8(value.clone()).ok()
    };
    let app = Router::new()
        .route("/orders/{id}/refund", post(refund))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().webhook(receiver_url))
        .merge(deferred_routes("/deferred"))
        .layer(Extension(store.clone()));
    let webhooks = Webhooks::new(SECRET).allow_http().allow_network("127.0.0.0/8");
    let worker = DeferWorker::new(&store, app.clone())
        .webhooks(webhooks)
        .backoff(Duration::from_millis(10), Duration::from_millis(20));
    let (stop, stopped) = oneshot::channel::<()>();

    let mut ends = Vec::new();
    for (order, headers) in [
        ("7", vec![("x-webhook", format!("http://{addr}/hook"))]),
        ("lame", vec![("x-webhook", format!("http://{addr}/hook"))]),
        ("gone", vec![("x-webhook", format!("http://{addr}/hook"))]),
        ("quiet", vec![]),
    ] {
        let held = store.lock(Key::path_param("id", order)).acquire().await.expect("it is free");
        let (status, location) =
            send_request(&app, "POST", &format!("/orders/{order}/refund"), &headers).await;
        assert_eq!(status, 202);
        if order == "gone" {
            assert_eq!(send_request(&app, "DELETE", &location, &[]).await.0, 204);
        }
        held.release().await;
        ends.push((order, location.rsplit('/').next().expect("an id").to_owned()));
    }
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    let all = async {
        while store.deferred_jobs().stats().await.expect("it is there").pending > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, all).await.expect("all jobs and deliveries end");
    drop(stop);
    worker.await.expect("it drains");

    let sent = sent.lock().expect("no thread panics under the lock");
    assert_eq!(sent.len(), 6, "three ends, each delivered twice: {sent:?}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970").as_secs();
    for (headers, body) in sent.iter() {
        let header = |name: &str| headers[name].to_str().expect("text");
        let (id, at) = (header("webhook-id"), header("webhook-timestamp"));
        assert_eq!(header("webhook-signature"), expected_signature(id, at, body));
        assert!(now - at.parse::<u64>().expect("seconds") < 60, "{at} {now}");
        let twins =
            sent.iter().filter(|(headers, sent)| headers["webhook-id"] == id && sent == body);
        assert_eq!(twins.count(), 2, "one end is one id and one body");
    }
    for (order, id) in ends {
        let is_of_job =
            |(_, body): &&(HeaderMap, Bytes)| String::from_utf8_lossy(body).contains(&id);
        let deliveries: Vec<_> = sent.iter().filter(is_of_job).collect();
        assert_eq!(deliveries.len(), if order == "quiet" { 0 } else { 2 }, "{order}");
        for (_, body) in deliveries {
            let body = String::from_utf8_lossy(body);
            let wanted = match order {
                "7" => [r#""state":"done""#, r#""status":201"#, r#""attempts":1"#],
                "lame" => [r#""state":"done""#, r#""status":418"#, r#""attempts":1"#],
                _ => [r#""state":"cancelled""#, r#""status":null"#, r#""attempts":0"#],
            };
            assert!(wanted.iter().all(|part| body.contains(part)), "{order}: {body}");
        }
    }
}
