//! Replays over HTTP: a worker in this process, and a verifying server.

mod remote_layers;
mod unanswered_runs;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::{
    HttpReplayer, ReplayVerifier, VerifyError,
    replay_claims::{REPLAY_HEADER, ReplayClaims, SignatureInput as SignedInput},
};
use crate::{
    clock::Clock,
    defer::{ReplayBody, ReplayOutcome, Replayer as _},
    durations::ceil_millis,
    gate::{HttpRequestHead, ReplayMarker, RunningJob},
    key::Key,
    lock::SharedSecret,
    store::{
        ClaimCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, GrantAttempt, JobId, JobPolicy,
        LeaseTerms, LockMode, OwnedHold, SettleCommand, Settlement, StorageLimits, Store,
    },
};

const LEASE: Duration = Duration::from_secs(10);

fn secret(byte: u8) -> SharedSecret {
    SharedSecret::new([byte; 32])
}

#[test]
fn replay_header_has_the_documented_form() {
    let claims = ReplayClaims {
        store_identity: "00112233445566778899aabbccddeeff".to_owned(),
        id: "2a00112233445566778899aabbccddeeff".to_owned(),
        attempt: 2,
        fence: 1_700_000_000_000_001,
        first_seen_ms: 1_700_000_000_000,
        end_ms: 1_700_000_060_000,
    };
    let request = SignedInput { method: "POST", target: "/orders/7/refund?a=b", body: b"note" };
    let header = claims.sign(&secret(7), request);
    let (text, mac) = header.rsplit_once(';').expect("it has parts");
    assert_eq!(
        text,
        "2;00112233445566778899aabbccddeeff;2a00112233445566778899aabbccddeeff;2;1700000000000001;1700000000000;1700000060000"
    );
    assert_eq!(mac, "7bfc5cb3024dc744a713af0e101b188583963da25734a3988b2fdbe3aa1d92bc");
    assert_eq!(ReplayClaims::verify(&header, &[secret(1), secret(7)], request), Some(claims));
    let others = [
        SignedInput { method: "PUT", ..request },
        SignedInput { target: "/orders/8/refund?a=b", ..request },
        SignedInput { body: b"nota", ..request },
    ];
    for other in others {
        assert_eq!(ReplayClaims::verify(&header, &[secret(7)], other), None);
    }
    assert_eq!(ReplayClaims::verify(&header, &[secret(8)], request), None);
    for n in 0..header.len() {
        let mut forged = header.clone().into_bytes();
        forged[n] ^= 1;
        let forged = String::from_utf8(forged).expect("it is ASCII still");
        assert_eq!(ReplayClaims::verify(&forged, &[secret(7)], request), None, "{forged}");
    }
}

/// Enqueues a job on the lock `order`.
async fn enqueue_job(store: &Store) -> JobId {
    let key = Key::custom("order");
    let id = JobId::new(&key);
    let call = EnqueueCommand {
        key: key.clone(),
        id: id.clone(),
        envelope: Bytes::from_static(b"whatever"),
        policy: JobPolicy::default(),
        idempotency_record: None,
        merge: None,
        limits: StorageLimits {
            resource_jobs: 10,
            resource_bytes: 1_000,
            shard_jobs: 10,
            shard_bytes: 1_000,
            ..StorageLimits::NONE
        },
        owner: String::new(),
        route: String::new(),
        webhook: None,
    };
    let stored = store.backend().enqueue(call).await;
    assert!(matches!(stored, Ok(EnqueueOutcome::Stored { .. })), "{stored:?}");
    id
}

async fn start_run(store: &Store) -> (OwnedHold, ReplayMarker) {
    let id = enqueue_job(store).await;
    start_run_with_lease(store, &id, LEASE).await
}

async fn start_next_run(store: &Store, id: &JobId) -> (OwnedHold, ReplayMarker) {
    start_run_with_lease(store, id, LEASE).await
}

async fn start_run_with_lease(
    store: &Store,
    id: &JobId,
    lease: Duration,
) -> (OwnedHold, ReplayMarker) {
    let (key, id) = (Key::custom("order"), id.clone());
    let mut attempt = GrantAttempt::for_claim(store, &key, &id);
    let (me, retention) = (attempt.token.clone(), LEASE);
    let call = ClaimCommand { key, id: id.clone(), token: me, lease, retention };
    let claimed = attempt.send(lease, || store.backend().claim(call)).await;
    let Ok(ClaimOutcome::Claimed(run)) = claimed else { panic!("it is free: {claimed:?}") };
    let terms = LeaseTerms {
        lease,
        renews: true,
        max_hold: lease,
        job: Some(id.clone()),
        mode: LockMode::Exclusive,
    };
    let hold = attempt.accept_grant(run.fence, terms).expect("it is sure");
    let first_seen = UNIX_EPOCH + Duration::from_micros(run.accepted_us);
    let deferred =
        RunningJob { id, attempt: run.attempt, accepted_at: first_seen, fence: run.fence };
    let marker = ReplayMarker::new(deferred, store, Arc::clone(hold.state()));
    (hold, marker)
}

#[derive(Default)]
struct ReceivedRequests {
    verified: Vec<Result<RunningJob, VerifyError>>,
    target: String,
    headers: http::HeaderMap,
}

/// Spawns a server that records the verification of each request, and acknowledges runs on demand.
async fn spawn_verifying_server(
    store: &Store,
    acknowledge: bool,
) -> (SocketAddr, Arc<Mutex<ReceivedRequests>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let seen = Arc::new(Mutex::new(ReceivedRequests::default()));
    let (received, verifier) = (Arc::clone(&seen), ReplayVerifier::new(store, &secret(7)));
    crate::store::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (seen, verifier) = (Arc::clone(&seen), verifier.clone());
            let answer = service_fn(move |request: Request<Incoming>| {
                let (seen, verifier) = (Arc::clone(&seen), verifier.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.expect("a whole body").to_bytes();
                    let target = parts.uri.to_string();
                    let header = parts.headers[REPLAY_HEADER].to_str().expect("visible characters");
                    let method = parts.method.as_str();
                    let verified = verifier.verify(method, &target, &body, header).await;
                    let status = if target.contains("missing") { 404 } else { 200 };
                    let mut seen = seen.lock();
                    seen.verified.push(verified);
                    (seen.target, seen.headers) = (target, parts.headers);
                    let mut answer = Response::builder().status(status);
                    if acknowledge {
                        answer = answer.header(REPLAY_HEADER, "1");
                    }
                    let answer = answer.body(Full::new(body)).expect("valid");
                    Ok::<_, Infallible>(answer)
                }
            });
            crate::store::spawn(
                http1::Builder::new().serve_connection(TokioIo::new(socket), answer),
            );
        }
    });
    (addr, received)
}

fn request_head(target: &str) -> HttpRequestHead {
    let headers = vec![("host".to_owned(), b"elsewhere".to_vec()), ("x".to_owned(), b"y".to_vec())];
    HttpRequestHead::new("POST", target, headers, None)
}

#[tokio::test]
async fn remote_run_is_verified_only_while_it_runs() {
    let store = Store::memory();
    let (hold, marker) = start_run(&store).await;
    let (addr, seen) = spawn_verifying_server(&store.as_another_process(), false).await;
    let replayer = HttpReplayer::new(&store, &format!("http://{addr}/api/"), &secret(7));
    let run = || replayer.replay(request_head("/a?b=c"), "note".into(), marker.clone(), 100);
    let ReplayOutcome::Answered(answer) = run().await else { panic!("it answers") };
    assert_eq!((answer.status, answer.body), (200, ReplayBody::Full("note".into())));
    {
        let seen = seen.lock();
        let deferred = seen.verified[0].as_ref().expect("it runs");
        let job = marker.job();
        assert_eq!((&deferred.id, deferred.fence), (&job.id, job.fence));
        assert_eq!(seen.target, "/api/a?b=c");
        assert_eq!(seen.headers["host"], addr.to_string());
        assert_eq!(seen.headers["x"], "y");
        assert_eq!(seen.headers["content-length"], "4");
        assert!(seen.headers.contains_key("lockgate-held"), "the lock is the worker's");
    }
    assert!(marker.has_passed_lock());
    let hold_state = hold.state();
    let call = SettleCommand {
        key: hold_state.key().clone(),
        id: marker.job().id.clone(),
        token: hold_state.lease.token.clone(),
        settlement: Settlement::Dead { reason: "failed", retention: LEASE },
        next_claim: None,
    };
    let _ = store.backend().settle(call).await.expect("the store is there");
    let _ = run().await;
    assert!(matches!(seen.lock().verified[1], Err(VerifyError::NotRunning)));
    let forger = HttpReplayer::new(&store, &format!("http://{addr}"), &secret(8));
    let _ = forger.replay(request_head("/a"), Bytes::new(), marker.clone(), 100).await;
    assert!(matches!(seen.lock().verified[2], Err(VerifyError::Forged)));
}

/// The server trusts this process as a proxy, so the address of the client must follow the headers
/// that the client sent.
#[tokio::test]
async fn forwarded_headers_end_with_the_client_address() {
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    let (addr, seen) = spawn_verifying_server(&store, false).await;
    let replayer = HttpReplayer::new(&store, &format!("http://{addr}"), &secret(7));
    for (peer, list, node) in [
        (Some("192.0.2.7:80"), "192.0.2.7", Some("for=192.0.2.7")),
        (Some("[2001:db8::7]:80"), "2001:db8::7", Some("for=\"[2001:db8::7]\"")),
        (None, "unknown", None),
    ] {
        let headers = vec![("x-forwarded-for".to_owned(), b"10.9.9.9".to_vec())];
        let head = HttpRequestHead::new(
            "POST",
            "/a",
            headers,
            peer.map(|peer| peer.parse().expect("an address")),
        );
        let _ = replayer.replay(head, Bytes::new(), marker.clone(), 100).await;
        let headers = seen.lock().headers.clone();
        let values = |name: &str| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values("x-forwarded-for"), ["10.9.9.9", list]);
        assert_eq!(values("forwarded"), Vec::from_iter(node));
    }
}

#[tokio::test]
async fn status_404_counts_as_handled_only_if_acknowledged() {
    for acknowledge in [false, true] {
        let store = Store::memory();
        let (_hold, marker) = start_run(&store).await;
        let (addr, _) = spawn_verifying_server(&store, acknowledge).await;
        let replayer = HttpReplayer::new(&store, &format!("http://{addr}"), &secret(7));
        let ran =
            replayer.replay(request_head("/missing"), Bytes::new(), marker.clone(), 100).await;
        assert!(matches!(ran, ReplayOutcome::Answered(answer) if answer.status == 404));
        assert_eq!(marker.has_passed_lock(), acknowledge);
        assert!(!marker.try_abandon(), "it may have run");
    }
}

#[tokio::test]
async fn unreachable_server_is_not_a_failed_run() {
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    drop(listener);
    let replayer = HttpReplayer::new(&store, &format!("http://{addr}"), &secret(7));
    let ran = replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100).await;
    assert_eq!(ran, ReplayOutcome::Unreachable);
    let ran = replayer.replay(request_head("@else.where/"), Bytes::new(), marker, 100).await;
    assert_eq!(ran, ReplayOutcome::Failed, "not another host");
}

/// The network drops packets to the address, or the server accepts the connection and sends
/// nothing.
#[tokio::test]
async fn connect_timeout_is_not_a_failed_run() {
    let full = tokio::net::TcpSocket::new_v4().expect("a socket");
    full.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let full = full.listen(1).expect("it listens");
    let silent = full.local_addr().expect("bound");
    // A connect beyond the accept queue gets no answer.
    let (mut connections, soon) = (Vec::new(), Duration::from_millis(100));
    while let Ok(connected) =
        tokio::time::timeout(soon, tokio::net::TcpStream::connect(silent)).await
    {
        connections.push(connected.expect("the accept queue has space"));
    }
    let mut bases = vec![format!("http://{silent}")];
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    if cfg!(feature = "http-replay-tls") {
        bases.push(format!("https://{}", mute.local_addr().expect("it is bound")));
    }
    for base in bases {
        let store = Store::memory();
        let (_hold, marker) = start_run(&store).await;
        let replayer = HttpReplayer::new(&store, &base, &secret(7));
        let replayer = replayer.timeout(Duration::from_secs(2));
        let ran = replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100).await;
        assert_eq!(ran, ReplayOutcome::Unreachable, "{base}");
        assert!(!marker.is_running_remotely());
    }
}

/// Signs the header of a run and verifies it on `store`.
async fn verify_run(store: &Store, marker: &ReplayMarker) -> Result<RunningJob, VerifyError> {
    let RunningJob { id, attempt, fence, .. } = marker.job();
    let end_ms = ceil_millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap()) + 60_000;
    let (id, attempt, fence) = (id.as_str().to_owned(), *attempt, *fence);
    let identity =
        marker.store().backend().identities().pop().expect("it is connected").to_string();
    let claims =
        ReplayClaims { store_identity: identity, id, attempt, fence, first_seen_ms: 0, end_ms };
    let header = claims.sign(&secret(7), SignedInput { method: "POST", target: "/a", body: b"" });
    ReplayVerifier::new(store, &secret(7)).verify("POST", "/a", b"", &header).await
}

/// The run belongs to another server or database, in which a job has the same id.
#[tokio::test]
async fn run_of_another_store_is_rejected_as_forged() {
    let (store, other) = (Store::memory(), Store::memory());
    let (_hold, marker) = start_run(&store).await;
    assert!(verify_run(&store.as_another_process(), &marker).await.is_ok());
    let verified = verify_run(&other, &marker).await;
    assert!(matches!(verified, Err(VerifyError::Forged)), "{verified:?}");
}

/// The store decides, although the worker may still rely on the lease.
#[tokio::test]
async fn run_with_an_expired_lease_is_not_running() {
    let clock = Clock::manual();
    let store = Store::memory_with_clock(clock.clone());
    let (_hold, marker) = start_run(&store).await;
    clock.advance(LEASE - Duration::from_millis(1));
    assert!(verify_run(&store, &marker).await.is_ok());
    clock.advance(Duration::from_millis(1));
    let verified = verify_run(&store, &marker).await;
    assert!(matches!(verified, Err(VerifyError::NotRunning)), "{verified:?}");
}

/// The attempt was returned uncharged, so the next run has the same number.
#[tokio::test]
async fn requeued_run_is_not_running_beside_its_successor() {
    let clock = Clock::manual();
    let store = Store::memory_with_clock(clock.clone());
    let (hold, marker) = start_run(&store).await;
    let hold_state = hold.state();
    let call = SettleCommand {
        key: hold_state.key().clone(),
        id: marker.job().id.clone(),
        token: hold_state.lease.token.clone(),
        settlement: Settlement::ReturnToQueue {
            delay: Duration::from_millis(1),
            reason: "drained",
        },
        next_claim: None,
    };
    let _ = store.backend().settle(call).await.expect("the store is there");
    assert!(matches!(verify_run(&store, &marker).await, Err(VerifyError::NotRunning)));
    clock.advance(LEASE);
    let (_hold, other) = start_next_run(&store, &marker.job().id).await;
    assert_eq!(other.job().attempt, marker.job().attempt);
    let verified = verify_run(&store, &marker).await;
    assert!(matches!(verified, Err(VerifyError::NotRunning)), "{verified:?}");
    assert!(verify_run(&store, &other).await.is_ok());
}

#[cfg(feature = "http-replay-tls")]
#[tokio::test]
async fn https_run_reaches_only_a_trusted_server() {
    use crate::outbound::{
        self,
        tests::{test_root_store, test_tls_acceptor},
    };

    let acceptor = test_tls_acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let server = crate::store::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(socket).await else { continue };
            let answer = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"over"))))
            });
            crate::store::spawn(
                http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
            );
        }
    });
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    for host in ["localhost", "127.0.0.1"] {
        let untrusting = HttpReplayer::new(&store, &format!("https://{host}:{port}"), &secret(7));
        let replayer =
            untrusting.clone().with_tls_config(outbound::tls_config_with_roots(test_root_store()));
        let run = |replayer: &HttpReplayer| {
            replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100)
        };
        let ReplayOutcome::Answered(answer) = run(&replayer).await else {
            panic!("{host} answers")
        };
        assert_eq!(answer.body, ReplayBody::Full("over".into()));
        // The default roots do not include the test root.
        assert_eq!(run(&untrusting).await, ReplayOutcome::Unreachable, "{host}");
    }
    server.abort();
}

/// Schemes are case-insensitive: the request must not be sent in plain text.
#[cfg(feature = "http-replay-tls")]
#[tokio::test]
async fn uppercase_https_scheme_uses_tls() {
    use tokio::io::AsyncReadExt as _;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    let replayer = HttpReplayer::new(&store, &format!("HTTPS://{addr}"), &secret(7));
    let run = crate::store::spawn(replayer.replay(request_head("/a"), Bytes::new(), marker, 100));
    let (mut socket, _) = listener.accept().await.expect("it connects");
    // Type of a TLS handshake record.
    assert_eq!(socket.read_u8().await.expect("it speaks first"), 22);
    drop(socket);
    assert_eq!(run.await.expect("it ends"), ReplayOutcome::Unreachable);
}

#[test]
fn invalid_base_url_is_refused() {
    let store = Store::memory();
    for base in ["", "/api", "a:80", "http://", "http://a?b", "http://a/b#c", "ftp://a"] {
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            HttpReplayer::new(&store, base, &secret(7))
        }));
        assert!(made.is_err(), "{base}");
    }
}

#[test]
fn base_url_credentials_are_not_shown() {
    let store = Store::memory();
    let make = |base: &'static str| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            HttpReplayer::new(&store, base, &secret(7))
        }))
    };
    let panic = make("ftp://user:password@orders").expect_err("it is no such URL");
    let sentence = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let sentence = sentence.or_else(|| panic.downcast_ref::<String>().cloned());
    let sentence = sentence.expect("a sentence");
    assert!(sentence.starts_with("HttpReplayer: ") && !sentence.contains("password"), "{sentence}");
    let text = format!("{:?}", make("http://user:password@orders").expect("it is one"));
    assert!(!text.contains("password"), "{text}");
}

/// The path comes from the client. No server or proxy may normalize it to a path outside of the
/// base.
#[tokio::test]
async fn request_path_does_not_leave_the_base_url() {
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    let (addr, seen) = spawn_verifying_server(&store, true).await;
    let replayer = HttpReplayer::new(&store, &format!("http://{addr}/api"), &secret(7));
    for target in [
        "/../admin",
        "/x/../../admin",
        "/x/%2e%2E/../admin",
        "/x/.%2e/%2e./admin",
        "/./x",
        "/x/..",
        "/x/..?a=b",
        "/x/..%2fadmin",
        "/x\\..\\admin",
        "/x/..;a=b/admin",
    ] {
        let ran = replayer.replay(request_head(target), Bytes::new(), marker.clone(), 100).await;
        assert_eq!(ran, ReplayOutcome::Failed, "{target}");
    }
    assert!(seen.lock().verified.is_empty(), "it has not been sent");
    for target in ["/x..y/...", "/x?to=/../y", "/%2e%2e%2e/x", "/a/.b"] {
        let ran = replayer.replay(request_head(target), Bytes::new(), marker.clone(), 100).await;
        assert!(matches!(ran, ReplayOutcome::Answered(_)), "{target}: {ran:?}");
        assert_eq!(seen.lock().target, format!("/api{target}"));
    }
    // Without a base path, no path can leave it.
    let replayer = HttpReplayer::new(&store, &format!("http://{addr}"), &secret(7));
    let ran = replayer.replay(request_head("/x/../y"), Bytes::new(), marker.clone(), 100).await;
    assert!(matches!(ran, ReplayOutcome::Answered(_)), "{ran:?}");
}

#[test]
fn invalid_base_url_is_a_config_error() {
    let secret = SharedSecret::new([7; 32]);
    let made = HttpReplayer::try_new(&Store::memory(), "ftp://user:password@orders", &secret);
    let error = made.expect_err("it is refused");
    assert_eq!(error.kind(), crate::ErrorKind::Config);
    assert!(!error.to_string().contains("password"), "{error}");
    assert!(HttpReplayer::try_new(&Store::memory(), "http://orders", &secret).is_ok());
}
