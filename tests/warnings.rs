//! What operators are told of a server that is not a good one: lines of the log, which the [tests of the
//! probe](../src/store/redis/tests/concerns.rs) do not look at. A test target of its own, because the subscriber is the
//! process's, and one test, because its lines are counted.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use lockgate::{NotAcquired, Store};
use lockgate_tests::{Server, eventually};
use tracing_subscriber::fmt::MakeWriter;

const EVICTS: &str = "the store's server makes room by dropping keys (allkeys-lru)";
const FORGETS: &str = "the store's server keeps nothing on disk";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Of the process, which has this one test.
    fn begin() -> Self {
        let log = Self::default();
        let lines = tracing_subscriber::fmt().with_env_filter("lockgate=info").with_ansi(false);
        lines.with_writer(log.clone()).init();
        log
    }

    /// How many warnings say this.
    fn warnings(&self, what: &str) -> usize {
        let text = String::from_utf8(self.0.lock().expect("no writer panics").clone());
        let text = text.expect("text");
        let of_us = |line: &&str| line.contains(" WARN lockgate") && line.contains(what);
        text.lines().filter(of_us).count()
    }
}

async fn set(server: &Server, name: &str, value: &str) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg(name).arg(value);
    let () = command.query_async(&mut server.connection().await).await.expect("an answer");
}

/// So much at once that all connections are made.
async fn is_used(store: &Store) {
    let locks = (0..64).map(|n| async move {
        let wait = Duration::from_secs(10);
        match store.lock(format!("{n}")).wait(wait).acquire().await {
            Ok(guard) => _ = guard.release().await,
            // Until its breaker has found the new server.
            Err(NotAcquired::Fault(_)) => {}
            Err(busy) => panic!("{busy}"),
        }
    });
    join_all(locks).await;
}

#[tokio::test]
async fn what_a_server_is_unfit_for_is_told_once() {
    let log = Log::begin();
    let mut server = Server::start().await;
    set(&server, "maxmemory", "1gb").await;
    set(&server, "maxmemory-policy", "allkeys-lru").await;
    let store = Store::connect(&server.url("x")).await.expect("the URL is right");
    is_used(&store).await;
    assert_eq!([log.warnings(EVICTS), log.warnings(FORGETS)], [1, 1], "once, at the start");

    // One that keeps all, and drops nothing, is not spoken of.
    let good = Server::with_log("everysec").await;
    let other = Store::connect(&good.url("x")).await.expect("the URL is right");
    is_used(&other).await;
    assert_eq!([log.warnings(EVICTS), log.warnings(FORGETS)], [1, 1]);
    assert_eq!(log.warnings("the store's server"), 2);

    // Another one in its place, which has been told nothing: it evicts nothing, and forgets as well.
    server.kill();
    server.restart().await;
    eventually("the new one to be told of", async || {
        is_used(&store).await;
        log.warnings(FORGETS) > 1
    })
    .await;
    assert_eq!([log.warnings(EVICTS), log.warnings(FORGETS)], [1, 2], "once for each start");
}
