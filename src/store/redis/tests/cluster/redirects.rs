//! What a node says instead of running a call, word by word: the call has not run, is sent again by the same socket, and
//! is done once.

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

/// A node that has all slots, as long as it does not name another one.
struct ScriptedNode {
    proxy: ScriptedProxy,
    script: Arc<NodeScript>,
}

#[derive(Default)]
struct NodeScript {
    /// What the next script call is answered.
    next_error: Mutex<Option<String>>,
    /// Where the slots are, if not here.
    slot_owner_port: AtomicU16,
    /// Sockets by which scripts were called.
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
            // What its user may do: that is about no shard.
            ["EVAL", _, "0", ..] => None,
            ["EVALSHA" | "EVAL", ..] => {
                self.sockets.lock().insert(call.connection_index);
                let word = self.next_error.lock().take()?;
                reply_script(&format!("redis.error_reply('{word}')"))
            }
            _ => None,
        }
    }
}

impl ScriptedNode {
    async fn start() -> Self {
        let told = Arc::<NodeScript>::default();
        let own = Arc::clone(&told);
        Self {
            proxy: ScriptedProxy::start(move |call| own.scripted_reply(call)).await,
            script: told,
        }
    }

    async fn store(&self) -> Store {
        let url = format!("redis+cluster://127.0.0.1:{}/?ns=test", self.proxy.port());
        Store::builder(&url).call_timeout(10 * SECOND).connect().await.expect("the URL is right")
    }

    fn set_next_error(&self, word: &str) {
        *self.script.next_error.lock() = Some(word.to_owned());
    }

    /// The word has been heard.
    fn assert_error_was_sent(&self) {
        assert_eq!(*self.script.next_error.lock(), None, "nobody has called");
    }
}

async fn charged_units(store: &Store, key: &Key) -> u64 {
    let look = ChargeCommand { repetitions: 0, ..charge_command(key, LIMIT) };
    LIMIT - store.backend().charge(look).await.expect("it is there").snapshots[0].remaining
}

async fn charge_once(store: &Store, key: &Key) {
    let charged =
        store.backend().charge(charge_command(key, LIMIT)).await.expect("it has not run before");
    assert_eq!(charged.admitted, 1);
}

/// What becomes of the socket that a word came by.
#[derive(PartialEq)]
enum SocketOutcome {
    Reused,
    Replaced,
}

/// It is an answer to each kind of call.
async fn assert_each_call_runs_once(word: &str, socket: SocketOutcome) {
    let node = ScriptedNode::start().await;
    let (store, key) = (node.store().await, keys_in_distinct_shards(1).remove(0));
    charge_once(&store, &key).await;
    let sockets = node.script.sockets.lock().clone();

    node.set_next_error(word);
    charge_once(&store, &key).await;
    node.assert_error_was_sent();
    assert_eq!(charged_units(&store, &key).await, 2, "charged once: {word}");

    let me = LockToken::new(store.node());
    node.set_next_error(word);
    let held = store.backend().acquire(acquire_command(&key, &me)).await.expect("it is there");
    node.assert_error_was_sent();
    assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    node.set_next_error(word);
    let gave = store.backend().release(key.clone(), me, LockMode::Exclusive).await;
    node.assert_error_was_sent();
    assert_eq!(gave.expect("it is there"), ReleaseOutcome::Released);

    node.set_next_error(word);
    let stored = store.backend().enqueue(enqueue_command(&key)).await.expect("it is there");
    node.assert_error_was_sent();
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 }, "stored once: {word}");
    let used = node.script.sockets.lock().clone();
    match socket {
        SocketOutcome::Reused => {
            assert_eq!(used, sockets, "the node is well, and so is its socket: {word}");
        }
        SocketOutcome::Replaced => {
            assert!(used.len() >= sockets.len() + 4, "{word}: {used:?} {sockets:?}");
        }
    }
}

/// Slots on their way and somebody else's script are waited for; a node that was started again, or demoted, is left.
#[tokio::test]
async fn call_refused_without_running_is_resent_and_runs_once() {
    let words = [
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
    join_all(words.map(|(word, socket)| assert_each_call_runs_once(word, socket))).await;
}

/// What makes no room is refused, has not run, and keeps nobody else from the node.
#[tokio::test]
async fn full_node_refuses_charges_and_stays_in_use() {
    let node = ScriptedNode::start().await;
    let (store, keys) = (node.store().await, keys_in_distinct_shards(2));
    charge_once(&store, &keys[0]).await;
    let sockets = node.script.sockets.lock().clone();
    // More than a breaker bears.
    for _ in 0..20 {
        node.set_next_error("OOM command not allowed when used memory is beyond maxmemory.");
        let error =
            store.backend().charge(charge_command(&keys[0], LIMIT)).await.expect_err("no room");
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
    // Both know it, and one call learns of it.
    old.script.slot_owner_port.store(new.proxy.port(), Ordering::SeqCst);
    assert_eq!(key.shard(), 0);
    old.set_next_error(&format!("MOVED {SLOT_OF_SHARD_0} 127.0.0.1:{}", new.proxy.port()));
    charge_once(&store, &key).await;
    old.assert_error_was_sent();
    assert_eq!(charged_units(&store, &key).await, 1, "there, and once");
    let name = format!("lg:1:test:{{{}}}:c:p:{key}", key.shard());
    let there: u64 = old.proxy.query_server(&["GET", &name]).await;
    assert_eq!(there, 1, "not here any more");
}
