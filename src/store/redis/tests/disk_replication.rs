//! Grants that count only when replicas have them on disk.
//!
//! The tests' server may be too old for `WAITAOF`. So the commands are checked on a scripted
//! server, and their effect on a real one if it is new enough.

use std::sync::Arc;

use super::{
    SECOND,
    replica_grants::assert_outage,
    sentinel::fake_sentinel::{handshake_reply, start_scripted_server},
    server_process::ServerProcess,
};
use crate::{AcquireError, lock::ReleaseStatus, store::Store};
use parking_lot::Mutex;

/// Scripted master with the replies that replica acknowledgements need.
struct ScriptedMaster {
    port: u16,
    received_commands: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Copy)]
struct MasterReplies {
    version: &'static str,
    aof_enabled: u8,
    /// Fsync acknowledgements: of the master itself, and number of replicas.
    fsynced_counts: [u8; 2],
}

impl ScriptedMaster {
    async fn start(replies: MasterReplies) -> Self {
        let received = Arc::<Mutex<Vec<String>>>::default();
        let commands = Arc::clone(&received);
        let info = format!(
            "redis_version:{}\r\nrole:master\r\nrun_id:a\r\naof_enabled:{}\r\n",
            replies.version, replies.aof_enabled
        );
        let reply_to = move |args: &[&str]| {
            commands.lock().push(args.join(" "));
            let [local, replicas] = replies.fsynced_counts;
            Some(match args {
                ["WAIT", ..] => format!(":{replicas}\r\n"),
                ["WAITAOF", ..] => format!("*2\r\n:{local}\r\n:{replicas}\r\n"),
                args => handshake_reply(args, &info),
            })
        };
        Self { port: start_scripted_server(reply_to).await, received_commands: received }
    }

    /// Waits for replicas. Returns the `WAIT` or `WAITAOF` command, and the acknowledgements.
    async fn wait_for_replicas(&self, on_disk: bool, wanted: u32) -> (String, u32) {
        let url = format!("redis://127.0.0.1:{}/?ns=test", self.port);
        let builder = Store::builder(&url).call_timeout(10 * SECOND).replicas_on_disk(on_disk);
        let store = builder.connect().await.expect("the URL is right");
        let since = store.backend().server_generation();
        let acks = store.backend().wait_for_replicas(0, wanted, since).await.expect("it answers");
        let commands = std::mem::take(&mut *self.received_commands.lock());
        (
            commands.into_iter().find(|command| command.starts_with("WAIT")).expect("it was asked"),
            acks,
        )
    }
}

#[tokio::test]
async fn replicas_on_disk_uses_waitaof_where_supported() {
    let replies = MasterReplies { version: "7.2.4", aof_enabled: 1, fsynced_counts: [1, 2] };
    let master = ScriptedMaster::start(replies).await;
    assert_eq!(master.wait_for_replicas(true, 2).await, ("WAITAOF 1 2 8000".to_owned(), 2));
    // By default, writes in memory count.
    assert_eq!(master.wait_for_replicas(false, 2).await, ("WAIT 2 8000".to_owned(), 2));
    // The master's own disk lags, so no write is safe yet.
    let lagging = ScriptedMaster::start(MasterReplies { fsynced_counts: [0, 2], ..replies }).await;
    assert_eq!(lagging.wait_for_replicas(true, 2).await.1, 0);
}

#[tokio::test]
async fn without_waitaof_replicas_in_memory_count() {
    let replies = MasterReplies { version: "7.0.15", aof_enabled: 1, fsynced_counts: [0, 1] };
    for replies in [replies, MasterReplies { version: "7.2.4", aof_enabled: 0, ..replies }] {
        let master = ScriptedMaster::start(replies).await;
        assert_eq!(master.wait_for_replicas(true, 1).await, ("WAIT 1 8000".to_owned(), 1));
    }
}

/// With any server version: `WAITAOF` from 7.2 on, `WAIT` before.
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
    let acquire = async {
        // Until the replica and its disk have caught up for the first time.
        loop {
            if let Ok(guard) = store.lock("x").min_replicas(1).acquire().await {
                return guard;
            }
        }
    };
    let guard = tokio::time::timeout(40 * SECOND, acquire).await.expect("it catches up");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    let command_stats: String = server.query(&["INFO", "commandstats"]).await;
    let version: String = server.query(&["INFO", "server"]).await;
    let is_old = version.contains("redis_version:6.") || version.contains("redis_version:7.0.");
    assert_eq!(command_stats.contains("cmdstat_waitaof:"), !is_old, "{command_stats}");
    match store.lock("x").min_replicas(2).acquire().await {
        Err(AcquireError::Fault(error)) => assert_outage(&error),
        other => panic!("one is not two: {other:?}"),
    }
}
