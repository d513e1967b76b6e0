//! Grants that count only when replicas have them on their disks.
//!
//! The server that tests start may be too old for that, so what is asked is seen by one that is written down here; and
//! what it means, by a real one if that is new enough.

use std::sync::Arc;

use super::{
    SECOND,
    replicas::is_away,
    sentinel::fake::{greets, scripted},
    server::Server,
};
use crate::{AcquireError, lock::ReleaseStatus, store::Store};
use parking_lot::Mutex;

/// A master that answers no more than the look at replicas asks.
struct Scripted {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Copy)]
struct Says {
    version: &'static str,
    appends: u8,
    /// What is on its disk, and on how many of its replicas.
    on_disk: [u8; 2],
}

impl Scripted {
    async fn start(says: Says) -> Self {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&asked);
        let facts = format!(
            "redis_version:{}\r\nrole:master\r\nrun_id:a\r\naof_enabled:{}\r\n",
            says.version, says.appends
        );
        let answer = move |words: &[&str]| {
            heard.lock().push(words.join(" "));
            let [here, there] = says.on_disk;
            Some(match words {
                ["WAIT", ..] => format!(":{there}\r\n"),
                ["WAITAOF", ..] => format!("*2\r\n:{here}\r\n:{there}\r\n"),
                words => greets(words, &facts),
            })
        };
        Self { port: scripted(answer).await, asked }
    }

    /// What it was asked to wait for, and what came of it.
    async fn replicated(&self, on_disk: bool, wanted: u32) -> (String, u32) {
        let url = format!("redis://127.0.0.1:{}/?ns=test", self.port);
        let builder = Store::builder(&url).call_timeout(10 * SECOND).replicas_on_disk(on_disk);
        let store = builder.connect().await.expect("the URL is right");
        let since = store.backend().server_generation();
        let have = store.backend().wait_for_replicas(0, wanted, since).await.expect("it answers");
        let asked = std::mem::take(&mut *self.asked.lock());
        (asked.into_iter().find(|words| words.starts_with("WAIT")).expect("it was asked"), have)
    }
}

#[tokio::test]
async fn disks_are_asked_for_where_they_are_wanted_and_can_tell() {
    let says = Says { version: "7.2.4", appends: 1, on_disk: [1, 2] };
    let master = Scripted::start(says).await;
    assert_eq!(master.replicated(true, 2).await, ("WAITAOF 1 2 8000".to_owned(), 2));
    // Memory is what counts by default.
    assert_eq!(master.replicated(false, 2).await, ("WAIT 2 8000".to_owned(), 2));
    // The master's own disk lags: nothing is safe yet.
    let lags = Scripted::start(Says { on_disk: [0, 2], ..says }).await;
    assert_eq!(lags.replicated(true, 2).await.1, 0);
}

#[tokio::test]
async fn where_disks_can_not_tell_memory_counts() {
    let says = Says { version: "7.0.15", appends: 1, on_disk: [0, 1] };
    for says in [says, Says { version: "7.2.4", appends: 0, ..says }] {
        let master = Scripted::start(says).await;
        assert_eq!(master.replicated(true, 1).await, ("WAIT 1 8000".to_owned(), 1));
    }
}

/// Of whichever version it is: `WAITAOF` from 7.2 on, else `WAIT`.
#[tokio::test]
async fn a_real_server_counts_a_replica_that_has_it() {
    let (server, replica) = (Server::start().await, Server::start().await);
    for each in [&server, &replica] {
        each.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
        each.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    }
    replica.command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]).await;
    let builder = Store::builder(&server.url()).call_timeout(4 * SECOND).replicas_on_disk(true);
    let store = builder.connect().await.expect("the URL is right");
    let granted = async {
        // Until the replica has caught up for the first time, and its disk with it.
        loop {
            if let Ok(guard) = store.lock("x").min_replicas(1).acquire().await {
                return guard;
            }
        }
    };
    let guard = tokio::time::timeout(40 * SECOND, granted).await.expect("it catches up");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    let waited: String = server.ask(&["INFO", "commandstats"]).await;
    let version: String = server.ask(&["INFO", "server"]).await;
    let old = version.contains("redis_version:6.") || version.contains("redis_version:7.0.");
    assert_eq!(waited.contains("cmdstat_waitaof:"), !old, "{waited}");
    match store.lock("x").min_replicas(2).acquire().await {
        Err(AcquireError::Fault(error)) => is_away(&error),
        other => panic!("one is not two: {other:?}"),
    }
}
