//! What is sent again, and what is known of it then: a call that the server would not run for as long as its deadline
//! has not run, unless a copy of it was lost before; what must not run twice is sent once.

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

/// What it does, and has seen.
#[derive(Default)]
struct BusyServerState {
    /// The next call of a script ends its connection.
    cuts_next_call: AtomicBool,
    zadd_count: AtomicUsize,
}

/// It is busy whenever a script is called, and ends each connection by which something is added to a set.
async fn store_on_busy_server() -> (Store, Arc<BusyServerState>) {
    let server = Arc::<BusyServerState>::default();
    let own = Arc::clone(&server);
    let port = start_scripted_server(move |words| match words {
        ["EVALSHA", ..] if own.cuts_next_call.swap(false, Ordering::SeqCst) => None,
        ["EVALSHA", ..] => Some(BUSY_ERROR.to_owned()),
        ["ZADD", ..] => {
            own.zadd_count.fetch_add(1, Ordering::SeqCst);
            None
        }
        words => {
            Some(handshake_reply(words, "redis_version:7.0.15\r\nrun_id:a\r\nrole:master\r\n"))
        }
    });
    let url = format!("redis://127.0.0.1:{}/?ns=test", port.await);
    let builder = Store::builder(&url).call_timeout(SECOND / 2);
    (builder.connect().await.expect("the URL is right"), server)
}

/// What becomes of calls of a script that goes by itself.
async fn script_error_kinds(cut: bool) -> [ErrorKind; 3] {
    let (store, server) = store_on_busy_server().await;
    let kind = async || {
        server.cuts_next_call.store(cut, Ordering::SeqCst);
        let called = store.backend().register_limiter(store.node().clone(), SECOND).await;
        called.expect_err("it is busy").kind()
    };
    [kind().await, kind().await, kind().await]
}

#[tokio::test]
async fn call_refused_until_deadline_reports_unavailable() {
    let kinds = script_error_kinds(false).await;
    // One that is asked at the end of a deadline may have no answer by then.
    assert!(kinds.contains(&ErrorKind::Unavailable), "{kinds:?}");
}

#[tokio::test]
async fn call_refused_after_lost_copy_reports_timeout() {
    assert_eq!(script_error_kinds(true).await, [ErrorKind::Timeout; 3]);
}

/// A worker's place among the idle would be prolonged twice.
#[tokio::test]
async fn non_repeatable_call_is_sent_once() {
    let (store, server) = store_on_busy_server().await;
    let (node, worker) = (store.node().clone(), Arc::from("w"));
    let still = store.backend().poll_idle(Key::custom("x"), node, worker, SECOND).await;
    assert_eq!(still.expect_err("its connection has ended").kind(), ErrorKind::Timeout);
    assert_eq!(server.zadd_count.load(Ordering::SeqCst), 1);
}
