//! Grants that count only when replicas have them on their disks.
//!
//! The server that tests start may be too old for that, so what is asked is seen by one that is written down here; and
//! what it means, by a real one if that is new enough.

use std::sync::Arc;

use super::{
    SECOND,
    replica_grants::assert_outage,
    sentinel::fake_sentinel::{handshake_reply, start_scripted_server},
    server_process::ServerProcess,
};
use crate::{AcquireError, lock::ReleaseStatus, store::Store};
use parking_lot::Mutex;

/// A master that answers no more than the look at replicas asks.
struct ScriptedMaster {
    port: u16,
    received_commands: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Copy)]
struct MasterReplies {
    version: &'static str,
    aof_enabled: u8,
    /// What is on its disk, and on how many of its replicas.
    fsynced_counts: [u8; 2],
}

impl ScriptedMaster {
    async fn start(says: MasterReplies) -> Self {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&asked);
        let facts = format!(
            "redis_version:{}\r\nrole:master\r\nrun_id:a\r\naof_enabled:{}\r\n",
            says.version, says.aof_enabled
        );
        let answer = move |words: &[&str]| {
            heard.lock().push(words.join(" "));
            let [here, there] = says.fsynced_counts;
            Some(match words {
                ["WAIT", ..] => format!(":{there}\r\n"),
                ["WAITAOF", ..] => format!("*2\r\n:{here}\r\n:{there}\r\n"),
                words => handshake_reply(words, &facts),
            })
        };
        Self { port: start_scripted_server(answer).await, received_commands: asked }
    }

    /// What it was asked to wait for, and what came of it.
    async fn wait_for_replicas(&self, on_disk: bool, wanted: u32) -> (String, u32) {
        let url = format!("redis://127.0.0.1:{}/?ns=test", self.port);
        let builder = Store::builder(&url).call_timeout(10 * SECOND).replicas_on_disk(on_disk);
        let store = builder.connect().await.expect("the URL is right");
        let since = store.backend().server_generation();
        let have = store.backend().wait_for_replicas(0, wanted, since).await.expect("it answers");
        let asked = std::mem::take(&mut *self.received_commands.lock());
        (asked.into_iter().find(|words| words.starts_with("WAIT")).expect("it was asked"), have)
    }
}

#[tokio::test]
async fn replicas_on_disk_uses_waitaof_where_supported() {
    let says = MasterReplies { version: "7.2.4", aof_enabled: 1, fsynced_counts: [1, 2] };
    let master = ScriptedMaster::start(says).await;
    assert_eq!(master.wait_for_replicas(true, 2).await, ("WAITAOF 1 2 8000".to_owned(), 2));
    // Memory is what counts by default.
    assert_eq!(master.wait_for_replicas(false, 2).await, ("WAIT 2 8000".to_owned(), 2));
    // The master's own disk lags: nothing is safe yet.
    let lags = ScriptedMaster::start(MasterReplies { fsynced_counts: [0, 2], ..says }).await;
    assert_eq!(lags.wait_for_replicas(true, 2).await.1, 0);
}

#[tokio::test]
async fn without_waitaof_replicas_in_memory_count() {
    let says = MasterReplies { version: "7.0.15", aof_enabled: 1, fsynced_counts: [0, 1] };
    for says in [says, MasterReplies { version: "7.2.4", aof_enabled: 0, ..says }] {
        let master = ScriptedMaster::start(says).await;
        assert_eq!(master.wait_for_replicas(true, 1).await, ("WAIT 1 8000".to_owned(), 1));
    }
}

/// Of whichever version it is: `WAITAOF` from 7.2 on, else `WAIT`.
#[tokio::test]
async fn real_server_counts_replica_that_stored_the_grant() {
    let (server, replica) = (ServerProcess::start().await, ServerProcess::start().await);
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
    let waited: String = server.query(&["INFO", "commandstats"]).await;
    let version: String = server.query(&["INFO", "server"]).await;
    let old = version.contains("redis_version:6.") || version.contains("redis_version:7.0.");
    assert_eq!(waited.contains("cmdstat_waitaof:"), !old, "{waited}");
    match store.lock("x").min_replicas(2).acquire().await {
        Err(AcquireError::Fault(error)) => assert_outage(&error),
        other => panic!("one is not two: {other:?}"),
    }
}
