//! Repeated calls and their errors. A call that the server refuses until its deadline has not run,
//! unless an earlier copy was lost. A call that must not run twice is sent once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::{
    SECOND,
    sentinel::fake_sentinel::{handshake_reply, start_scripted_server},
};
use crate::{error::ErrorKind, key::Key, store::Store};

const BUSY_ERROR: &str = "-BUSY Redis is busy running a script.\r\n";

/// State of the scripted server.
#[derive(Default)]
struct BusyServerState {
    /// Ends the connection at the next script call.
    cuts_next_call: AtomicBool,
    zadd_count: AtomicUsize,
}

/// The server answers each script call with `BUSY`, and ends each connection that sends `ZADD`.
async fn store_on_busy_server() -> (Store, Arc<BusyServerState>) {
    let server = Arc::<BusyServerState>::default();
    let state = Arc::clone(&server);
    let port = start_scripted_server(move |args| match args {
        ["EVALSHA", ..] if state.cuts_next_call.swap(false, Ordering::SeqCst) => None,
        ["EVALSHA", ..] => Some(BUSY_ERROR.to_owned()),
        ["ZADD", ..] => {
            state.zadd_count.fetch_add(1, Ordering::SeqCst);
            None
        }
        args => Some(handshake_reply(args, "redis_version:7.0.15\r\nrun_id:a\r\nrole:master\r\n")),
    });
    let url = format!("redis://127.0.0.1:{}/?ns=test", port.await);
    let builder = Store::builder(&url).call_timeout(SECOND / 2);
    (builder.connect().await.expect("the URL is right"), server)
}

/// Returns the error kinds of three calls of an unbatched script.
async fn script_error_kinds(cuts_first_copy: bool) -> [ErrorKind; 3] {
    let (store, server) = store_on_busy_server().await;
    let kind = async || {
        server.cuts_next_call.store(cuts_first_copy, Ordering::SeqCst);
        let called = store.backend().register_limiter(store.node().clone(), SECOND).await;
        called.expect_err("it is busy").kind()
    };
    [kind().await, kind().await, kind().await]
}

#[tokio::test]
async fn call_refused_until_deadline_reports_unavailable() {
    let kinds = script_error_kinds(false).await;
    // The last copy is sent 40 ms before the deadline. A slow machine may be later than that.
    assert!(kinds.contains(&ErrorKind::Unavailable), "{kinds:?}");
}

#[tokio::test]
async fn call_refused_after_lost_copy_reports_timeout() {
    assert_eq!(script_error_kinds(true).await, [ErrorKind::Timeout; 3]);
}

/// A second copy would extend the entry of the idle worker twice.
#[tokio::test]
async fn non_repeatable_call_is_sent_once() {
    let (store, server) = store_on_busy_server().await;
    let (node, worker) = (store.node().clone(), Arc::from("w"));
    let outcome = store.backend().poll_idle(Key::custom("x"), node, worker, SECOND).await;
    assert_eq!(outcome.expect_err("its connection has ended").kind(), ErrorKind::Timeout);
    assert_eq!(server.zadd_count.load(Ordering::SeqCst), 1);
}
