//! The processes, what is sent to them, and the books about it.

use std::{
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::{Key, LockGuard, Store};
use lockgate_history::{Life, deferred::History, rest::Rest};
use parking_lot::Mutex;

use super::{node::Setup, stall};
use crate::{
    gauge::Gauge,
    history::{Process, clock::ns},
    kept,
    proxy::Proxy,
    redis::Server,
    wait::within,
};

mod books;
mod ground;
mod later;
mod registers;
mod status;
mod strike;
mod verdict;

use self::later::Listeners;
pub use self::{
    ground::Ground,
    later::{Later, Requests, Told},
    verdict::Verdict,
};

struct Seat {
    life: Life,
    setup: Setup,
    process: Process,
    /// None in a cluster, whose nodes tell clients of each other.
    proxy: Option<Proxy>,
    addr: SocketAddr,
}

/// Processes on one queue: each behind a proxy of its own, on a server of their own; or in a cluster of their own.
pub struct Fleet<G = Server> {
    program: PathBuf,
    folder: PathBuf,
    namespace: String,
    seats: Vec<Seat>,
    lives: Vec<Life>,
    store: Store,
    history: Arc<Mutex<History>>,
    began: Instant,
    /// Requests that were sent.
    sent: Arc<AtomicU64>,
    listeners: Listeners,
    /// Where runs write to under their locks, and of how many resources.
    registers: Option<(Server, u64)>,
    /// Looks at the status resource, of one call each.
    looks: AtomicU64,
    /// The server of all of them, or the cluster.
    pub server: G,
}

impl Fleet {
    /// Without any process yet. The program is the one whose `node` mode is [`node`](super::node).
    ///
    /// # Panics
    ///
    /// If there is no server, or no folder for the logs.
    pub async fn new(program: &Path) -> Self {
        Self::on(program, Server::start().await).await
    }

    /// Its proxy.
    #[must_use]
    pub fn proxy(&self, node: usize) -> &Proxy {
        self.seats[node].proxy.as_ref().expect("there is one server")
    }

    /// A command to the server, with its answer as far as there is one: who has all cut off is cut off too.
    pub async fn command<W: redis::ToRedisArgs>(&self, words: &[W]) -> Option<redis::Value> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let mut connection = self.server.connection().await;
        command.query_async(&mut connection).await.ok()
    }

    /// Keys that stay until somebody removes them, but for a few of each shard that stay by design; once what was
    /// accepted has run.
    pub(super) async fn left_at_rest(&self) -> u64 {
        let mut connection = self.server.connection().await;
        kept::left_at_rest(async || {
            let keys = kept::kept(&mut connection, &self.namespace).await;
            Rest { keys, ..Rest::default() }
        })
        .await
    }

    /// What those that stay by design take, KiB.
    pub(super) async fn kept_for_ever(&self) -> u64 {
        kept::for_ever(&mut self.server.connection().await, &self.namespace).await
    }

    /// What the server takes for anything but keys, KiB.
    pub(super) async fn beside_keys(&self) -> u64 {
        kept::beside_keys(&mut self.server.connection().await).await
    }
}

impl<G: Ground> Fleet<G> {
    /// On this server, or in this cluster.
    ///
    /// # Panics
    ///
    /// If there is no folder for the logs.
    pub async fn on(program: &Path, server: G) -> Self {
        let name = format!("lockgate-ledger-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let namespace = "ledger".to_owned();
        let store = Store::builder(&server.url(&namespace)).deadline(Duration::from_secs(10));
        let store = store.connect().await.expect("the URL is right");
        let history: Arc<Mutex<History>> = Arc::default();
        for each in server.servers() {
            stall::note(Arc::downgrade(&history), each.pids());
        }
        Self {
            program: program.to_owned(),
            folder,
            namespace,
            seats: Vec::new(),
            lives: Vec::new(),
            store,
            history,
            began: Instant::now(),
            sent: Arc::default(),
            listeners: Arc::default(),
            registers: None,
            looks: AtomicU64::new(0),
            server,
        }
    }

    /// Starts one more process; its number.
    pub async fn join(&mut self, setup: Setup) -> usize {
        let life = Life { process: self.seats.len(), number: 0 };
        let seat = self.start(life, setup).await;
        self.seats.push(seat);
        life.process
    }

    async fn start(&mut self, life: Life, setup: Setup) -> Seat {
        let proxy = match self.server.alone() {
            Some(server) => Some(Proxy::to(server, &self.namespace).await),
            None => None,
        };
        let url = proxy.as_ref().map_or_else(|| self.server.url(&self.namespace), Proxy::url);
        let setup = Setup { url, log: self.log(life), ..setup };
        let mut words = vec!["node".to_owned()];
        words.extend(setup.words());
        self.lives.push(life);
        let mut process = Process::start(&self.program, &words);
        let said = within("a node to listen", process.says()).await;
        let addr = said.and_then(|said| said.parse().ok()).expect("it says where it listens");
        self.listeners.lock().insert(addr, life);
        Seat { life, setup, process, proxy, addr }
    }

    fn log(&self, life: Life) -> PathBuf {
        self.folder.join(format!("{}-{}.log", life.process, life.number))
    }

    /// How many processes there are, the dead included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.seats.len()
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self, node: usize) -> SocketAddr {
        self.seats[node].addr
    }

    /// A store of the test's own, straight to the server.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Its lock, held by the test, so that what comes is deferred.
    ///
    /// # Panics
    ///
    /// If it does not come free.
    pub async fn hold(&self, resource: &str) -> LockGuard {
        let request = self.store.lock(Key::path_param("id", resource));
        request.wait(Duration::from_secs(60)).acquire().await.expect("the lock")
    }

    /// A request that may be deferred.
    pub fn later(&self, node: usize, resource: &str) -> Later {
        self.requests().later(self.addr(node), resource)
    }

    /// For clients that go their own way.
    #[must_use]
    pub fn requests(&self) -> Requests {
        let most = self.seats.first().map_or(1, |seat| seat.setup.most);
        let (history, sent) = (Arc::clone(&self.history), Arc::clone(&self.sent));
        Requests::new(most, history, sent, Arc::clone(&self.listeners))
    }

    /// All that clients are told is written down from now on, and judged: for this long they may wait for their answers.
    pub fn judges_answers(&self, patience: Duration) {
        self.history.lock().patience = ns(patience);
    }

    /// What a process that lives, and is at rest, has taken of the machine.
    pub(super) async fn gauge(&mut self, node: usize) -> Gauge {
        Gauge::ask(&mut self.seats[node].process).await
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Processes that live.
    pub(super) fn living(&mut self) -> u64 {
        self.seats.iter_mut().filter_map(|seat| seat.process.lives().then_some(1)).sum()
    }

    /// The script of a call that somebody has made through a proxy, or its first two words.
    #[must_use]
    pub fn script(&self, words: &[&[u8]]) -> String {
        let known = self.seats.iter().find_map(|seat| seat.proxy.as_ref()?.script(words));
        let told = || words.iter().take(2).map(|word| String::from_utf8_lossy(word)).collect();
        known.unwrap_or_else(told)
    }

    /// The hash of a script that somebody has sent whole through a proxy, whose text the server's log of slow commands tells
    /// like this: it does not tell all of it.
    #[must_use]
    pub fn hash_of(&self, told: &[u8]) -> Option<String> {
        self.seats.iter().find_map(|seat| seat.proxy.as_ref()?.hash_of(told))
    }

    /// Processes that there ever were.
    pub(super) fn lived(&self) -> u64 {
        self.lives.len() as u64
    }

    /// Requests that were sent.
    pub(super) fn asked(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Calls of scripts since the beginning, without the looks of the test, without what idle workers may
    /// make: two a second, and half a one of each; and without those whose replies a rule has kept from processes that are
    /// still here. How often such a call is made again is a matter of how fast a connection is made anew.
    pub(super) fn calls(&self) -> u64 {
        let idle = self.began.elapsed().as_secs() * (4 + self.seats.len() as u64) / 2;
        let looks = self.looks.load(Ordering::Relaxed);
        let all: u64 = self.server.servers().into_iter().map(Server::script_calls).sum();
        let proxies = self.seats.iter().filter_map(|seat| seat.proxy.as_ref());
        let unanswered: u64 = proxies.map(Proxy::unanswered).sum();
        all.saturating_sub(looks + idle + unanswered)
    }

    /// Whether it still runs.
    pub fn lives(&mut self, node: usize) -> bool {
        self.seats[node].process.lives()
    }
}

impl<G> fmt::Debug for Fleet<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("folder", &self.folder).finish_non_exhaustive()
    }
}
