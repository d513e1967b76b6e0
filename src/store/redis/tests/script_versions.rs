//! Processes of two versions on one server, as during a deployment. Their scripts have different
//! texts and hashes, and the same meaning.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncWriteExt as _, BufReader, copy},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{
    SECOND,
    cluster::charge_command,
    sentinel::fake_sentinel::{array_reply, bulk_string, read_command},
    server_process::ServerProcess,
};
use crate::{key::Key, lock::ReleaseStatus, store::Store};

const TASKS_PER_VERSION: usize = 3;

/// Proxy that simulates a version of the scripts: it sends each script with another text, under the
/// hash of that.
struct ScriptVersionProxy {
    remark: &'static str,
    /// Hash of the other text, by the hash that the process knows.
    hashes: Mutex<HashMap<String, String>>,
}

impl ScriptVersionProxy {
    /// Connects a process of this version. A script whose text was not seen yet gets a hash that
    /// the server does not know.
    async fn connect_process(server: &ServerProcess, remark: &'static str) -> Store {
        let proxy = Arc::new(Self { remark, hashes: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, server) = (listener.local_addr().expect("it is bound"), server.port());
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(Arc::clone(&proxy).forward_connection(client, server));
            }
        });
        let builder =
            Store::builder(&format!("redis://{address}/?ns=test")).call_timeout(10 * SECOND);
        builder.connect().await.expect("the URL is right")
    }

    async fn forward_connection(self: Arc<Self>, client: TcpStream, server: u16) -> Option<()> {
        let server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
        let (from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let forward_commands = async {
            let mut from_client = BufReader::new(from_client);
            while let Some(mut args) = read_command(&mut from_client).await {
                self.rewrite_script(&mut args);
                let args: Vec<_> = args.iter().map(|arg| bulk_string(arg)).collect();
                to_server.write_all(array_reply(&args).as_bytes()).await.ok()?;
            }
            Some(())
        };
        tokio::select! {
            done = forward_commands => done,
            _ = copy(&mut from_server, &mut to_client) => None,
        }
    }

    fn rewrite_script(&self, args: &mut [String]) {
        let mut hashes = self.hashes.lock();
        match args {
            [name, hash, ..] if name == "EVALSHA" => {
                let unknown = || format!("{:040}", 0);
                *hash = hashes.get(hash.as_str()).cloned().unwrap_or_else(unknown);
            }
            [name, text, ..] if name == "EVAL" => {
                let known = redis::Script::new(text).get_hash().to_owned();
                text.push_str(self.remark);
                let own = redis::Script::new(text).get_hash().to_owned();
                assert_ne!(known, own);
                hashes.insert(known, own);
            }
            _ => {}
        }
    }
}

/// State shared by the tasks of both versions.
#[derive(Default)]
struct VersionLoad {
    stop: AtomicBool,
    is_held: AtomicBool,
    /// Last fence of the lock.
    last_fence: AtomicU64,
    charge_count: AtomicU64,
    rounds: Mutex<HashMap<usize, u64>>,
}

impl VersionLoad {
    fn spawn_rounds(self: &Arc<Self>, version: usize, store: &Store) -> JoinHandle<()> {
        let (load, store) = (Arc::clone(self), store.clone());
        crate::store::spawn(async move {
            while !load.stop.load(Ordering::SeqCst) {
                load.run_round(version, &store).await;
                tokio::task::yield_now().await;
            }
        })
    }

    async fn run_round(&self, version: usize, store: &Store) {
        let guard = store.lock("x").wait(60 * SECOND).acquire().await.expect("it is served");
        assert!(!self.is_held.swap(true, Ordering::SeqCst), "two at once");
        let last = self.last_fence.swap(guard.fence(), Ordering::SeqCst);
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        let charged = store.backend().charge(charge_command(&Key::custom("k"), 1 << 30)).await;
        // A charge whose script was flushed is made once all the same.
        assert_eq!(charged.expect("the store is there").admitted, 1);
        self.charge_count.fetch_add(1, Ordering::SeqCst);
        self.is_held.store(false, Ordering::SeqCst);
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        *self.rounds.lock().entry(version).or_default() += 1;
    }

    /// Waits until each version has run `more` further rounds.
    async fn wait_for_rounds(&self, more: u64) {
        let before = self.rounds.lock().clone();
        let is_done = |version| {
            let before = before.get(version).copied().unwrap_or(0);
            self.rounds.lock().get(version).copied().unwrap_or(0) >= before + more
        };
        while ![0, 1].iter().all(is_done) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn connect_both_versions(server: &ServerProcess) -> [Store; 2] {
    [
        ScriptVersionProxy::connect_process(server, "\n-- old").await,
        ScriptVersionProxy::connect_process(server, "\n-- new").await,
    ]
}

#[tokio::test]
async fn two_script_versions_share_store_across_script_flushes() {
    let server = ServerProcess::start().await;
    let (stores, load) = (connect_both_versions(&server).await, Arc::new(VersionLoad::default()));
    let tasks = stores.iter().enumerate();
    let tasks = tasks
        .flat_map(|each| [each; TASKS_PER_VERSION])
        .map(|(n, store)| load.spawn_rounds(n, store));
    let tasks: Vec<_> = tasks.collect();
    for _ in 0..20 {
        load.wait_for_rounds(5).await;
        server.command(&["SCRIPT", "FLUSH"]).await;
    }
    load.wait_for_rounds(5).await;
    load.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("no panic");
    }
    let fewest = load.rounds.lock().values().copied().min().unwrap_or(0);
    println!("figure: fewest rounds of a version {fewest}");
    let charged = load.charge_count.load(Ordering::SeqCst);
    let key = Key::custom("k");
    let spent: u64 =
        server.query(&["GET", &format!("lg:1:test:{{{}}}:c:p:{key}", key.shard())]).await;
    assert_eq!(spent, charged);
    server.command(&["DEL", &format!("lg:1:test:{{{}}}:c:p:{key}", key.shard())]).await;
    for store in &stores {
        assert!(store.shutdown(5 * SECOND).await);
    }
    assert_eq!(server.remaining_keys().await, [""; 0]);
}
