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

use super::{ask, charge, deferred, ear::SECOND, keys};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{
            AcquireReply, ChargeCommand, EnqueueOutcome, LockMode, LockToken, ReleaseOutcome,
        },
        tests::{Call, Front, says},
    },
};

const LIMIT: u64 = 10;

/// `CLUSTER KEYSLOT {0}`
const SLOT_OF_0: u16 = 13_907;

/// A node that has all slots, as long as it does not name another one.
struct Node {
    front: Front,
    told: Arc<Told>,
}

#[derive(Default)]
struct Told {
    /// What the next script call is answered.
    next: Mutex<Option<String>>,
    /// Where the slots are, if not here.
    owner: AtomicU16,
    /// Sockets by which scripts were called.
    sockets: Mutex<BTreeSet<usize>>,
}

impl Told {
    fn instead(&self, call: &Call<'_>) -> Option<String> {
        match call.words {
            ["CLUSTER", "SLOTS", ..] => {
                let other = self.owner.load(Ordering::SeqCst);
                let port = if other > 0 { other } else { call.port };
                says(&format!("{{{{0, 16383, {{'127.0.0.1', {port}}}}}}}"))
            }
            // What its user may do: that is about no shard.
            ["EVAL", _, "0", ..] => None,
            ["EVALSHA" | "EVAL", ..] => {
                self.sockets.lock().insert(call.socket);
                let word = self.next.lock().take()?;
                says(&format!("redis.error_reply('{word}')"))
            }
            _ => None,
        }
    }
}

impl Node {
    async fn start() -> Self {
        let told = Arc::<Told>::default();
        let own = Arc::clone(&told);
        Self { front: Front::start(move |call| own.instead(call)).await, told }
    }

    async fn store(&self) -> Store {
        let url = format!("redis+cluster://127.0.0.1:{}/?ns=test", self.front.port());
        Store::builder(&url).call_timeout(10 * SECOND).connect().await.expect("the URL is right")
    }

    fn says_next(&self, word: &str) {
        *self.told.next.lock() = Some(word.to_owned());
    }

    /// The word has been heard.
    fn has_said(&self) {
        assert_eq!(*self.told.next.lock(), None, "nobody has called");
    }
}

async fn spent(store: &Store, key: &Key) -> u64 {
    let look = ChargeCommand { repetitions: 0, ..charge(key, LIMIT) };
    LIMIT - store.backend().charge(look).await.expect("it is there").snapshots[0].remaining
}

async fn charges(store: &Store, key: &Key) {
    let charged = store.backend().charge(charge(key, LIMIT)).await.expect("it has not run before");
    assert_eq!(charged.admitted, 1);
}

/// What becomes of the socket that a word came by.
#[derive(PartialEq)]
enum Socket {
    Kept,
    Left,
}

/// It is an answer to each kind of call.
async fn each_call_is_done_once(word: &str, socket: Socket) {
    let node = Node::start().await;
    let (store, key) = (node.store().await, keys(1).remove(0));
    charges(&store, &key).await;
    let sockets = node.told.sockets.lock().clone();

    node.says_next(word);
    charges(&store, &key).await;
    node.has_said();
    assert_eq!(spent(&store, &key).await, 2, "charged once: {word}");

    let me = LockToken::new(store.node());
    node.says_next(word);
    let held = store.backend().acquire(ask(&key, &me)).await.expect("it is there");
    node.has_said();
    assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    node.says_next(word);
    let gave = store.backend().release(key.clone(), me, LockMode::Exclusive).await;
    node.has_said();
    assert_eq!(gave.expect("it is there"), ReleaseOutcome::Released);

    node.says_next(word);
    let stored = store.backend().enqueue(deferred(&key)).await.expect("it is there");
    node.has_said();
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 }, "stored once: {word}");
    let used = node.told.sockets.lock().clone();
    match socket {
        Socket::Kept => assert_eq!(used, sockets, "the node is well, and so is its socket: {word}"),
        Socket::Left => assert!(used.len() >= sockets.len() + 4, "{word}: {used:?} {sockets:?}"),
    }
}

/// Slots on their way and somebody else's script are waited for; a node that was started again, or demoted, is left.
#[tokio::test]
async fn what_has_not_run_is_done_once() {
    let words = [
        ("ASK 1 127.0.0.1:7", Socket::Kept),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Socket::Kept),
        ("CLUSTERDOWN The cluster is down", Socket::Kept),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL.", Socket::Kept),
        ("LOADING Redis is loading the dataset in memory", Socket::Left),
        ("READONLY You cannot write against a read only replica.", Socket::Left),
    ];
    join_all(words.map(|(word, socket)| each_call_is_done_once(word, socket))).await;
}

/// What makes no room is refused, has not run, and keeps nobody else from the node.
#[tokio::test]
async fn a_node_without_room_refuses_what_needs_some() {
    let node = Node::start().await;
    let (store, keys) = (node.store().await, keys(2));
    charges(&store, &keys[0]).await;
    let sockets = node.told.sockets.lock().clone();
    // More than a breaker bears.
    for _ in 0..20 {
        node.says_next("OOM command not allowed when used memory is beyond maxmemory.");
        let error = store.backend().charge(charge(&keys[0], LIMIT)).await.expect_err("no room");
        node.has_said();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it has not run");
    }
    for key in &keys {
        charges(&store, key).await;
    }
    assert_eq!(spent(&store, &keys[0]).await, 2, "as if it had not been asked");
    assert_eq!(*node.told.sockets.lock(), sockets, "the node is well, and so is its socket");
}

#[tokio::test]
async fn moved_is_followed() {
    let (old, new) = (Node::start().await, Node::start().await);
    let (store, key) = (old.store().await, keys(1).remove(0));
    charges(&store, &key).await;
    // Both know it, and one call learns of it.
    old.told.owner.store(new.front.port(), Ordering::SeqCst);
    assert_eq!(key.shard(), 0);
    old.says_next(&format!("MOVED {SLOT_OF_0} 127.0.0.1:{}", new.front.port()));
    charges(&store, &key).await;
    old.has_said();
    assert_eq!(spent(&store, &key).await, 1, "there, and once");
    let name = format!("lg:1:test:{{{}}}:c:p:{key}", key.shard());
    let there: u64 = old.front.ask(&["GET", &name]).await;
    assert_eq!(there, 1, "not here any more");
}
