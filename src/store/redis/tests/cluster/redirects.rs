//! Errors with which a node refuses a call. The call has not run, is sent again over the same
//! connection, and runs once.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{
    acquire_command, charge_command, enqueue_command, keys_in_distinct_shards,
    wakeup_listener::SECOND,
};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{
            AcquireReply, ChargeCommand, EnqueueOutcome, LockMode, LockToken, ReleaseOutcome,
        },
        tests::{ProxiedCommand, ScriptedProxy, reply_script},
    },
};

const LIMIT: u64 = 10;

/// `CLUSTER KEYSLOT {0}`
const SLOT_OF_SHARD_0: u16 = 13_907;

/// Node that owns all slots, unless its script names another owner.
struct ScriptedNode {
    proxy: ScriptedProxy,
    script: Arc<NodeScript>,
}

#[derive(Default)]
struct NodeScript {
    /// Error reply to the next script call.
    next_error: Mutex<Option<String>>,
    /// Port of the owner of all slots; 0 for this node.
    slot_owner_port: AtomicU16,
    /// Connections over which scripts were called.
    sockets: Mutex<BTreeSet<usize>>,
}

impl NodeScript {
    fn scripted_reply(&self, call: &ProxiedCommand<'_>) -> Option<String> {
        match call.args {
            ["CLUSTER", "SLOTS", ..] => {
                let other = self.slot_owner_port.load(Ordering::SeqCst);
                let port = if other > 0 { other } else { call.proxy_port };
                reply_script(&format!("{{{{0, 16383, {{'127.0.0.1', {port}}}}}}}"))
            }
            // The ACL check, which concerns no shard.
            ["EVAL", _, "0", ..] => None,
            ["EVALSHA" | "EVAL", ..] => {
                self.sockets.lock().insert(call.connection_index);
                let error = self.next_error.lock().take()?;
                reply_script(&format!("redis.error_reply('{error}')"))
            }
            _ => None,
        }
    }
}

impl ScriptedNode {
    async fn start() -> Self {
        let script = Arc::<NodeScript>::default();
        let shared_script = Arc::clone(&script);
        Self {
            proxy: ScriptedProxy::start(move |call| shared_script.scripted_reply(call)).await,
            script,
        }
    }

    async fn store(&self) -> Store {
        let url = format!("redis+cluster://127.0.0.1:{}/?ns=test", self.proxy.port());
        Store::builder(&url).call_timeout(10 * SECOND).connect().await.expect("the URL is right")
    }

    fn set_next_error(&self, error: &str) {
        *self.script.next_error.lock() = Some(error.to_owned());
    }

    /// Asserts that the error was sent.
    fn assert_error_was_sent(&self) {
        assert_eq!(*self.script.next_error.lock(), None, "the call has received the error");
    }
}

async fn charged_units(store: &Store, key: &Key) -> u64 {
    let query = ChargeCommand { repetitions: 0, ..charge_command(key, LIMIT) };
    LIMIT - store.backend().charge(query).await.expect("it is there").snapshots[0].remaining
}

async fn charge_once(store: &Store, key: &Key) {
    let charged =
        store.backend().charge(charge_command(key, LIMIT)).await.expect("it has not run before");
    assert_eq!(charged.admitted, 1);
}

/// Use of a connection after an error reply.
#[derive(PartialEq)]
enum SocketOutcome {
    Reused,
    Replaced,
}

/// Sends the error as the reply to one call of each kind.
async fn assert_each_call_runs_once(error: &str, socket: SocketOutcome) {
    let node = ScriptedNode::start().await;
    let (store, key) = (node.store().await, keys_in_distinct_shards(1).remove(0));
    charge_once(&store, &key).await;
    let sockets = node.script.sockets.lock().clone();

    node.set_next_error(error);
    charge_once(&store, &key).await;
    node.assert_error_was_sent();
    assert_eq!(charged_units(&store, &key).await, 2, "charged once: {error}");

    let token = LockToken::new(store.node());
    node.set_next_error(error);
    let held = store.backend().acquire(acquire_command(&key, &token)).await.expect("it is there");
    node.assert_error_was_sent();
    assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    node.set_next_error(error);
    let released = store.backend().release(key.clone(), token, LockMode::Exclusive).await;
    node.assert_error_was_sent();
    assert_eq!(released.expect("it is there"), ReleaseOutcome::Released);

    node.set_next_error(error);
    let stored = store.backend().enqueue(enqueue_command(&key)).await.expect("it is there");
    node.assert_error_was_sent();
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 }, "stored once: {error}");
    let used = node.script.sockets.lock().clone();
    match socket {
        SocketOutcome::Reused => {
            assert_eq!(used, sockets, "the node is well, and so is its socket: {error}");
        }
        SocketOutcome::Replaced => {
            assert!(used.len() >= sockets.len() + 4, "{error}: {used:?} {sockets:?}");
        }
    }
}

/// A migrating slot and a blocking script are waited for. A node that was restarted or demoted is
/// left.
#[tokio::test]
async fn call_refused_without_running_is_resent_and_runs_once() {
    let errors = [
        ("ASK 1 127.0.0.1:7", SocketOutcome::Reused),
        ("TRYAGAIN Multiple keys request during rehashing of slot", SocketOutcome::Reused),
        ("CLUSTERDOWN The cluster is down", SocketOutcome::Reused),
        (
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
            SocketOutcome::Reused,
        ),
        ("LOADING Redis is loading the dataset in memory", SocketOutcome::Replaced),
        ("READONLY You cannot write against a read only replica.", SocketOutcome::Replaced),
    ];
    join_all(errors.map(|(error, socket)| assert_each_call_runs_once(error, socket))).await;
}

/// A charge that needs memory is refused, has not run, and does not block other calls to the node.
#[tokio::test]
async fn full_node_refuses_charges_and_stays_in_use() {
    let node = ScriptedNode::start().await;
    let (store, keys) = (node.store().await, keys_in_distinct_shards(2));
    charge_once(&store, &keys[0]).await;
    let sockets = node.script.sockets.lock().clone();
    // More failures than the breaker tolerates.
    for _ in 0..20 {
        node.set_next_error("OOM command not allowed when used memory is beyond maxmemory.");
        let error = store
            .backend()
            .charge(charge_command(&keys[0], LIMIT))
            .await
            .expect_err("the server refuses the write");
        node.assert_error_was_sent();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it has not run");
    }
    for key in &keys {
        charge_once(&store, key).await;
    }
    assert_eq!(charged_units(&store, &keys[0]).await, 2, "as if it had not been asked");
    assert_eq!(*node.script.sockets.lock(), sockets, "the node is well, and so is its socket");
}

#[tokio::test]
async fn moved_redirect_is_followed() {
    let (old, new) = (ScriptedNode::start().await, ScriptedNode::start().await);
    let (store, key) = (old.store().await, keys_in_distinct_shards(1).remove(0));
    charge_once(&store, &key).await;
    // Both nodes report the new owner. The store learns of it by the redirect.
    old.script.slot_owner_port.store(new.proxy.port(), Ordering::SeqCst);
    assert_eq!(key.shard(), 0);
    old.set_next_error(&format!("MOVED {SLOT_OF_SHARD_0} 127.0.0.1:{}", new.proxy.port()));
    charge_once(&store, &key).await;
    old.assert_error_was_sent();
    assert_eq!(charged_units(&store, &key).await, 1, "there, and once");
    let name = format!("lg:1:test:{{{}}}:c:p:{key}", key.shard());
    let old_count: u64 = old.proxy.query_server(&["GET", &name]).await;
    assert_eq!(old_count, 1, "not here any more");
}
