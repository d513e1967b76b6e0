//! What is sent again, and what is known of it then: a call that the server would not run for as long as its deadline
//! has not run, unless a copy of it was lost before; what must not run twice is sent once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::{
    SECOND,
    sentinel::fake::{greets, scripted},
};
use crate::{error::ErrorKind, key::Key, store::Store};

const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";

/// What it does, and has seen.
#[derive(Default)]
struct Server {
    /// The next call of a script ends its connection.
    cuts: AtomicBool,
    adds: AtomicUsize,
}

/// It is busy whenever a script is called, and ends each connection by which something is added to a set.
async fn store() -> (Store, Arc<Server>) {
    let server = Arc::<Server>::default();
    let own = Arc::clone(&server);
    let port = scripted(move |words| match words {
        ["EVALSHA", ..] if own.cuts.swap(false, Ordering::SeqCst) => None,
        ["EVALSHA", ..] => Some(BUSY.to_owned()),
        ["ZADD", ..] => {
            own.adds.fetch_add(1, Ordering::SeqCst);
            None
        }
        words => Some(greets(words, "redis_version:7.0.15\r\nrun_id:a\r\nrole:master\r\n")),
    });
    let url = format!("redis://127.0.0.1:{}/?ns=test", port.await);
    let builder = Store::builder(&url).call_timeout(SECOND / 2);
    (builder.connect().await.expect("the URL is right"), server)
}

/// What becomes of calls of a script that goes by itself.
async fn kinds(cut: bool) -> [ErrorKind; 3] {
    let (store, server) = store().await;
    let kind = async || {
        server.cuts.store(cut, Ordering::SeqCst);
        let called = store.backend().register_limiter(store.node().clone(), SECOND).await;
        called.expect_err("it is busy").kind()
    };
    [kind().await, kind().await, kind().await]
}

#[tokio::test]
async fn what_was_only_ever_refused_is_not_in_doubt() {
    let kinds = kinds(false).await;
    // One that is asked at the end of a deadline may have no answer by then.
    assert!(kinds.contains(&ErrorKind::Unavailable), "{kinds:?}");
}

#[tokio::test]
async fn what_is_refused_after_a_copy_was_lost_is_in_doubt() {
    assert_eq!(kinds(true).await, [ErrorKind::Timeout; 3]);
}

/// A worker's place among the idle would be prolonged twice.
#[tokio::test]
async fn what_must_not_run_twice_is_sent_once() {
    let (store, server) = store().await;
    let (node, worker) = (store.node().clone(), Arc::from("w"));
    let still = store.backend().poll_idle(Key::custom("x"), node, worker, SECOND).await;
    assert_eq!(still.expect_err("its connection has ended").kind(), ErrorKind::Timeout);
    assert_eq!(server.adds.load(Ordering::SeqCst), 1);
}
