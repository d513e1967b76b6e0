//! Responses of the layers on a raw connection, byte by byte.

use std::{
    future::ready,
    io,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::{
    App, Error, HttpResponse, HttpServer,
    body::{BodySize, MessageBody},
    dev::ServerHandle,
    http::StatusCode,
    rt::time::timeout,
    web::{self, Bytes, Data, ServiceConfig},
};
use lockgate_actix_web::{HoldUntil, Key, LockLayer, Quota, RateLimitLayer, Store};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn order_key() -> Key {
    Key::path_param("id", "7")
}

/// Starts a server with one thread for these routes.
fn start_server(
    store: &Store,
    routes: impl Fn(&mut ServiceConfig) + Send + Clone + 'static,
) -> io::Result<(SocketAddr, ServerHandle)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let store = Data::new(store.clone());
    let app = move || App::new().configure(routes.clone()).app_data(store.clone());
    let server = HttpServer::new(app).workers(1).disable_signals().listen(listener)?.run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    Ok((address, handle))
}

/// Writes a request, and reads up to this text.
async fn send_and_read_until(stream: &mut TcpStream, request: &str, until: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("it is open");
    let mut read = Vec::new();
    let reads = async {
        while !String::from_utf8_lossy(&read).ends_with(until) {
            match stream.read_u8().await {
                Ok(byte) => read.push(byte),
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&read)),
            }
        }
    };
    timeout(TEST_TIMEOUT, reads).await.expect("it is answered");
    String::from_utf8(read).expect("text")
}

/// Body without an end. It adds a permit when it is dropped.
struct EndlessBody(BodySize, Arc<Semaphore>);

impl MessageBody for EndlessBody {
    type Error = Error;

    fn size(&self) -> BodySize {
        self.0
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        Poll::Pending
    }
}

impl Drop for EndlessBody {
    fn drop(&mut self) {
        self.1.add_permits(1);
    }
}

/// hyper drops such a body, but actix would read it to its end, without the lock.
#[actix_web::test]
async fn unsent_body_is_dropped_with_its_lock() {
    let (store, dropped) = (Store::memory(), Arc::new(Semaphore::new(0)));
    let route_semaphore = Arc::clone(&dropped);
    let routes = move |config: &mut ServiceConfig| {
        let dropped = Arc::clone(&route_semaphore);
        let answer = move |path: web::Path<(u16, String)>| {
            let size = match &*path.1 {
                "7" => BodySize::Stream,
                _ => BodySize::Sized(4),
            };
            let status = StatusCode::from_u16(path.0).expect("a status");
            ready(HttpResponse::build(status).message_body(EndlessBody(size, Arc::clone(&dropped))))
        };
        let lock = LockLayer::by_path_param("id").all_methods().hold_until(HoldUntil::BodyEnd);
        config.service(web::resource("/{status}/{id}").to(answer).wrap(lock));
    };
    let (address, server) = start_server(&store, routes).expect("a free port");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    for (request, header) in [
        ("HEAD /200/7", Some("transfer-encoding: chunked")),
        ("HEAD /200/8", Some("content-length: 4")),
        ("POST /204/7", None),
        ("POST /204/8", None),
        ("POST /304/7", None),
        ("POST /304/8", None),
    ] {
        let head = format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = send_and_read_until(&mut stream, &head, "\r\n\r\n").await;
        let headers = ["transfer-encoding: chunked", "content-length: 4"];
        let found = headers.into_iter().find(|header| answer.contains(header));
        assert_eq!(found, header, "{request}: {answer}");
        let permit = timeout(TEST_TIMEOUT, dropped.acquire()).await.expect("the body is dropped");
        permit.expect("open").forget();
        let lock = store.lock(order_key()).wait(TEST_TIMEOUT).acquire().await;
        lock.expect("the lock was released").release().await;
    }
    server.stop(false).await;
}

/// The server reads the body of a refused request, and then the next request.
#[actix_web::test]
async fn early_refusal_keeps_the_connection_open() {
    let store = Store::memory();
    let quota = Quota::requests(1).per(Duration::from_secs(3600));
    let limit = RateLimitLayer::by_ip(quota);
    let routes = move |config: &mut ServiceConfig| {
        let limited = web::resource("/limited").to(async |_: Bytes| "").wrap(limit.clone());
        let order =
            web::resource("/orders/{id}").to(async || "").wrap(LockLayer::by_path_param("id"));
        config.service(limited).service(order);
    };
    let (address, server) = start_server(&store, routes).expect("a free port");
    let _held = store.lock(order_key()).acquire().await.expect("free");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // A second refusal comes from the refusal cache.
    for (path, status) in [
        ("/limited", 200),
        ("/limited", 429),
        ("/limited", 429),
        ("/orders/7", 409),
        ("/limited", 429),
    ] {
        let post = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello");
        let head = send_and_read_until(&mut stream, &post, "\r\n\r\n").await.to_lowercase();
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{path}: {head}");
        assert!(!head.contains("connection: close"), "{path}: {head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("known").parse().expect("a number");
        stream.read_exact(&mut vec![0; length]).await.expect("all of it");
    }
    server.stop(false).await;
}
