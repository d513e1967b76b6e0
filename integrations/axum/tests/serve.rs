//! `serve` over real sockets: requests and jobs when the server shuts down, or when its future is
//! dropped.

use std::{convert::Infallible, future::pending, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::State,
    routing::{get, post, put},
};
use futures_util::{StreamExt as _, stream};
use lockgate_axum::{
    DeferLayer, DeferWorker, JobId, JobState, Key, LockLayer, Quota, RateLimitLayer, Store,
    deferred_routes, serve,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, oneshot},
    task::JoinHandle,
    time::timeout,
};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// State of the handlers, each of which waits for a permit.
struct Work {
    started: Notify,
    dropped: Notify,
    permits: Semaphore,
}

impl Work {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Notify::new(),
            dropped: Notify::new(),
            permits: Semaphore::new(0),
        })
    }
}

/// Reports the end of a handler, in whatever way it ends.
struct DropNotice(Arc<Work>);

impl Drop for DropNotice {
    fn drop(&mut self) {
        self.0.dropped.notify_one();
    }
}

async fn work(State(work): State<Arc<Work>>) -> &'static str {
    let _notice = DropNotice(Arc::clone(&work));
    work.started.notify_one();
    work.permits.acquire().await.expect("it stays open").forget();
    "done"
}

/// Sends one chunk, and nothing more.
async fn endless_body() -> Body {
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"first"))]);
    Body::from_stream(first.chain(stream::pending()))
}

/// `/orders/{id}` runs at once, `/exports/{id}` is deferred. Both take the lock of the id.
fn app(store: &Store, state: &Arc<Work>) -> Router {
    let orders =
        Router::new().route("/orders/{id}", post(work)).layer(LockLayer::by_path_param("id"));
    let exports = Router::new()
        .route("/exports/{id}", put(work))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().background());
    Router::new()
        .route("/endless", get(endless_body))
        .merge(orders)
        .merge(exports)
        .merge(deferred_routes("/deferred"))
        .layer(Extension(store.clone()))
        .with_state(Arc::clone(state))
}

/// A server that runs, and the means to stop it.
struct RunningServer {
    addr: SocketAddr,
    store: Store,
    work: Arc<Work>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<io::Result<()>>,
}

impl RunningServer {
    async fn start(drain: Duration) -> Self {
        let (store, work) = (Store::memory(), Work::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let app = app(&store, &work);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = serve(listener, app.clone())
            .worker(DeferWorker::new(&store, app))
            .drain(drain)
            .with_shutdown(async { drop(stopped.await) });
        let task = tokio::spawn(server.into_future());
        Self { addr, store, work, stop: Some(stop), task }
    }

    fn stop(&mut self) {
        drop(self.stop.take());
    }

    async fn wait_for_end(self) {
        let ended = timeout(TEST_TIMEOUT, self.task).await.expect("the server ends");
        ended.expect("it does not panic").expect("it ends in order");
    }

    /// Sends a request and reads nothing.
    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).await.expect("it listens");
        let head = format!("{request} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        stream
    }

    async fn wait_until_started(&self) {
        timeout(TEST_TIMEOUT, self.work.started.notified()).await.expect("the handler starts");
    }

    /// Waits until no connection is accepted any more.
    async fn wait_until_closed(&self) {
        let closed = async {
            while TcpStream::connect(self.addr).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TEST_TIMEOUT, closed).await.expect("the listener is closed");
    }

    /// Has a request deferred, as soon as the worker is registered.
    async fn enqueue(&self, id: &str) -> JobId {
        let accepted = async {
            loop {
                let mut stream = self.send(&format!("PUT /exports/{id}")).await;
                let head = read_until(&mut stream, "\r\n\r\n").await;
                let location = head.lines().find_map(|line| line.strip_prefix("location: "));
                if let Some(location) = location {
                    break location
                        .rsplit('/')
                        .next()
                        .expect("an id")
                        .parse::<JobId>()
                        .expect("an id");
                }
            }
        };
        timeout(TEST_TIMEOUT, accepted).await.expect("it is accepted")
    }
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let reading = async {
        let mut buffer = [0; 1024];
        while !text.contains(end) {
            let length = stream.read(&mut buffer).await.expect("a response");
            assert!(length > 0, "the connection was closed: {text}");
            text += std::str::from_utf8(&buffer[..length]).expect("text");
        }
    };
    timeout(TEST_TIMEOUT, reading).await.expect("a response in time");
    text
}

/// Reads until the connection is closed or reset.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("it is closed");
    String::from_utf8(bytes).expect("text")
}

fn order_key() -> Key {
    Key::path_param("id", "7")
}

async fn assert_lock_is_free(store: &Store) {
    let lock = store.lock(order_key()).wait(Duration::from_secs(5)).acquire().await;
    lock.expect("it was released long before the end of its lease").release().await;
}

/// Runs the job in a worker of another server, and returns its attempts.
async fn run_in_another_worker(store: &Store, id: &JobId) -> u32 {
    let state = Work::new();
    state.permits.add_permits(10);
    let worker = DeferWorker::new(store, app(store, &state));
    let worker = tokio::spawn(worker.run(pending()));
    let done = async {
        loop {
            let job = store.deferred_jobs().get(id).await.expect("it is there").expect("kept");
            match job.state {
                JobState::Done => break job.attempts,
                JobState::Queued | JobState::Running => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other => panic!("{other:?}: {:?}", job.reason),
            }
        }
    };
    let attempts = timeout(Duration::from_secs(8), done).await.expect("before its lease ends");
    worker.abort();
    attempts
}

#[tokio::test]
async fn request_in_flight_at_shutdown_finishes() {
    let mut server = RunningServer::start(TEST_TIMEOUT).await;
    let mut stream = server.send("POST /orders/7").await;
    server.wait_until_started().await;
    server.stop();
    server.wait_until_closed().await;
    assert!(!server.task.is_finished(), "it waits for the request");
    server.work.permits.add_permits(1);
    let response = read_to_end(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("done"), "{response}");
    server.wait_for_end().await;
}

#[tokio::test]
async fn request_over_the_drain_timeout_is_cut_off_and_its_lock_released() {
    let mut server = RunningServer::start(Duration::from_millis(50)).await;
    let mut stream = server.send("POST /orders/7").await;
    server.wait_until_started().await;
    server.stop();
    let response = read_to_end(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    timeout(TEST_TIMEOUT, server.work.dropped.notified()).await.expect("the handler is dropped");
    let store = server.store.clone();
    server.wait_for_end().await;
    assert_lock_is_free(&store).await;
}

/// axum would wait for it without a limit.
#[tokio::test]
async fn endless_body_is_closed_after_the_drain() {
    let mut server = RunningServer::start(Duration::from_millis(50)).await;
    let mut stream = server.send("GET /endless").await;
    let head = read_until(&mut stream, "first").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    server.stop();
    server.wait_for_end().await;
    read_to_end(&mut stream).await;
}

#[tokio::test]
async fn run_over_the_drain_timeout_returns_to_its_queue_and_runs_in_another_worker() {
    let mut server = RunningServer::start(Duration::from_millis(50)).await;
    let id = server.enqueue("7").await;
    server.wait_until_started().await;
    server.stop();
    let store = server.store.clone();
    server.wait_for_end().await;
    let job = store.deferred_jobs().get(&id).await.expect("it is there").expect("kept");
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    assert_eq!(run_in_another_worker(&store, &id).await, 1);
}

/// Without the signal it would be open until the run ends.
#[tokio::test]
async fn event_stream_of_a_running_job_ends_when_the_drain_begins() {
    let mut server = RunningServer::start(3 * TEST_TIMEOUT).await;
    let id = server.enqueue("7").await;
    server.wait_until_started().await;
    let mut stream = TcpStream::connect(server.addr).await.expect("it listens");
    let head =
        format!("GET /deferred/{id} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let events = read_until(&mut stream, "running").await;
    assert!(events.starts_with("HTTP/1.1 200 "), "{events}");
    server.stop();
    let rest = read_to_end(&mut stream).await;
    assert!(rest.ends_with("0\r\n\r\n"), "the body ends in order: {rest}");
    assert!(!server.task.is_finished(), "the run continues");
    server.work.permits.add_permits(1);
    server.wait_for_end().await;
}

#[tokio::test]
async fn run_within_the_drain_timeout_finishes() {
    let mut server = RunningServer::start(TEST_TIMEOUT).await;
    let id = server.enqueue("7").await;
    server.wait_until_started().await;
    server.stop();
    server.wait_until_closed().await;
    server.work.permits.add_permits(1);
    let store = server.store.clone();
    server.wait_for_end().await;
    let job = store.deferred_jobs().get(&id).await.expect("it is there").expect("kept");
    assert_eq!((job.state, job.attempts), (JobState::Done, 1), "{job:?}");
}

#[tokio::test]
async fn dropped_server_cuts_requests_off_and_loses_no_job() {
    let server = RunningServer::start(TEST_TIMEOUT).await;
    let id = server.enqueue("8").await;
    server.wait_until_started().await;
    let mut stream = server.send("POST /orders/7").await;
    server.wait_until_started().await;
    server.task.abort();
    server.wait_until_closed().await;
    let response = read_to_end(&mut stream).await;
    assert!(!response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_lock_is_free(&server.store).await;
    assert_eq!(run_in_another_worker(&server.store, &id).await, 1);
}

#[tokio::test]
async fn served_application_knows_the_address_of_its_client() {
    let store = Store::memory();
    let limit = RateLimitLayer::by_ip(Quota::requests(1).per(Duration::from_secs(3600)));
    let app = Router::new().route("/", get(async || "")).layer(limit.store(&store));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let server = serve(listener, app).store(&store).with_shutdown(pending());
    let server = tokio::spawn(server.into_future());
    for status in ["HTTP/1.1 200 ", "HTTP/1.1 429 "] {
        let mut stream = TcpStream::connect(addr).await.expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.starts_with(status), "{head}");
    }
    server.abort();
}
