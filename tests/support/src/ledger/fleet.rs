//! The processes, what is sent to them, and the books about it.

use std::{
    collections::BTreeMap,
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use lockgate::{
    Key, LockGuard, Store,
    testing::history::{
        Check, Life, Violation,
        deferred::{History, Run, Seen, Trouble},
        rest::Rest,
    },
};
use parking_lot::Mutex;

use super::{left, node::Setup, stall};
use crate::{
    gauge::Gauge,
    history::{
        Process,
        clock::{self, ns},
        process::kill_now,
    },
    http::request,
    kept::kept,
    proxy::Proxy,
    redis::Server,
    wait::within,
};

mod later;
mod status;
mod verdict;

use self::status::look;
pub use self::{
    later::{Later, Requests, Told},
    verdict::Verdict,
};

/// How long it may take until everything has ended: a watch of ten seconds over the shards of the dead,
/// a few leases, backoffs, and a machine that has other things to do.
const ALL: Duration = Duration::from_secs(90);

struct Seat {
    life: Life,
    setup: Setup,
    process: Process,
    proxy: Proxy,
    addr: SocketAddr,
}

/// Processes on one queue, each behind a proxy of its own, on a server of their own.
pub struct Fleet {
    program: PathBuf,
    folder: PathBuf,
    namespace: String,
    seats: Vec<Seat>,
    lives: Vec<Life>,
    store: Store,
    history: Arc<Mutex<History>>,
    /// The server of all of them.
    pub server: Server,
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

    /// On this server.
    ///
    /// # Panics
    ///
    /// If there is no folder for the logs.
    pub async fn on(program: &Path, server: Server) -> Self {
        let name = format!("lockgate-ledger-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let namespace = "ledger".to_owned();
        let store = Store::builder(&server.url(&namespace)).deadline(Duration::from_secs(10));
        let store = store.connect().await.expect("the URL is right");
        let history: Arc<Mutex<History>> = Arc::default();
        note_stalls(Arc::downgrade(&history));
        Self {
            program: program.to_owned(),
            folder,
            namespace,
            seats: Vec::new(),
            lives: Vec::new(),
            store,
            history,
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
        let proxy = Proxy::to(&self.server, &self.namespace).await;
        let setup = Setup { url: proxy.url(), log: self.log(life), ..setup };
        let mut words = vec!["node".to_owned()];
        words.extend(setup.words());
        self.lives.push(life);
        let mut process = Process::start(&self.program, &words);
        let said = within("a node to listen", process.says()).await;
        let addr = said.and_then(|said| said.parse().ok()).expect("it says where it listens");
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

    /// Its proxy.
    #[must_use]
    pub fn proxy(&self, node: usize) -> &Proxy {
        &self.seats[node].proxy
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
        Requests::new(most, Arc::clone(&self.history))
    }

    /// A command to the server, with its answer as far as there is one: who has all cut off is cut off too.
    pub async fn command<W: redis::ToRedisArgs>(&self, words: &[W]) -> Option<redis::Value> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let mut connection = self.server.connection().await;
        command.query_async(&mut connection).await.ok()
    }

    /// SIGKILL from wherever it is called, without waiting: for a [`Rule`](crate::proxy::Rule).
    pub fn killer(&self, node: usize) -> impl Fn() + Send + Sync + 'static {
        let seat = &self.seats[node];
        let (life, pid) = (seat.life, seat.process.pid());
        let history = Arc::clone(&self.history);
        move || {
            if let Some(pid) = pid {
                // Before it dies: what it was sure of then may not be so any more a moment later.
                history.lock().killed.entry(life).or_insert_with(clock::now);
                kill_now(pid);
            }
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, node: usize) {
        self.killer(node)();
        self.seats[node].process.kill().await;
    }

    /// Another process in place of one that has ended, or is ended now.
    pub async fn replace(&mut self, node: usize) {
        self.kill(node).await;
        let (life, setup) = (self.seats[node].life, self.seats[node].setup.clone());
        let next = Life { number: life.number + 1, ..life };
        self.seats[node] = self.start(next, setup).await;
    }

    /// SIGSTOP.
    pub fn pause(&self, node: usize) {
        self.seats[node].process.pause();
    }

    /// SIGCONT, after so long a pause.
    pub fn resume(&self, node: usize, paused: Duration) {
        let now = clock::now();
        self.trouble(Some(node), now.saturating_sub(ns(paused)), now + ns(Duration::from_secs(3)));
        self.seats[node].process.resume();
    }

    /// SIGTERM.
    pub fn terminate(&self, node: usize) {
        self.history.lock().drained.insert(self.seats[node].life);
        self.seats[node].process.terminate();
    }

    /// Waits until a process has ended by itself; its exit code.
    pub async fn ended(&mut self, node: usize) -> Option<i32> {
        within("a node to end", self.seats[node].process.ended()).await
    }

    /// What a process that lives, and is at rest, has taken of the machine.
    pub(super) async fn gauge(&mut self, node: usize) -> Gauge {
        Gauge::ask(&mut self.seats[node].process).await
    }

    /// Keys that stay until somebody removes them, but for a few of each shard that stay by design: those come
    /// with the first job of a shard, and the responses of what has run go with their time.
    pub(super) async fn keys(&self) -> u64 {
        let keys = kept(&mut self.server.connection().await, &self.namespace).await;
        Rest { keys, ..Rest::default() }.check().len() as u64
    }

    /// Whether it still runs.
    pub fn lives(&mut self, node: usize) -> bool {
        self.seats[node].process.lives()
    }

    /// In this time something was done to this process, or to all.
    pub fn trouble(&self, node: Option<usize>, from: u64, to: u64) {
        let life = node.map(|node| self.seats[node].life);
        self.history.lock().troubles.push(Trouble { life, from, to });
    }

    /// From now on, for so long, something is done to this process, or to all.
    pub fn trouble_for(&self, node: Option<usize>, time: Duration) {
        let now = clock::now();
        self.trouble(node, now, now + ns(time));
    }

    /// As [`trouble_for`](Self::trouble_for), from when it is called: for a [`Rule`](crate::proxy::Rule).
    pub fn troubler(&self, node: usize, time: Duration) -> impl Fn() + Send + Sync + 'static {
        let (life, history) = (Some(self.seats[node].life), Arc::clone(&self.history));
        move || {
            let from = clock::now();
            history.lock().troubles.push(Trouble { life, from, to: from + ns(time) });
        }
    }

    /// What the status resource says now. It is written down.
    pub async fn see(&self, node: usize, id: &str) -> Seen {
        let seen = look(self.addr(node), id).await.unwrap_or_default();
        self.history.lock().seen.entry(id.to_owned()).or_default().push(seen.clone());
        seen
    }

    /// Asks again until it has ended.
    pub async fn outcome(&self, node: usize, id: &str) -> Seen {
        let outcome = async {
            loop {
                let seen = self.see(node, id).await;
                if seen.is_final() {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(ALL, outcome).await;
        ended.unwrap_or_else(|_| panic!("{id} does not end; the logs are in {:?}", self.folder))
    }

    /// Has a job cancelled; the status of the answer, 0 for none.
    pub async fn cancel(&self, node: usize, id: &str) -> u16 {
        let cancel = request(self.addr(node), "DELETE", &format!("/deferred/{id}"));
        cancel.try_send().await.map_or(0, |answer| answer.status.as_u16())
    }

    /// Waits until a handler has begun to run this job.
    pub async fn started(&self, id: &str) {
        let started = || self.runs().iter().any(|run| run.job.as_deref() == Some(id));
        let wait = async {
            while !started() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let started = tokio::time::timeout(ALL, wait).await;
        assert!(started.is_ok(), "{id} does not start; the logs are in {:?}", self.folder);
    }

    /// The runs of a job that have been written down until now.
    #[must_use]
    pub fn runs_of(&self, id: &str) -> Vec<Run> {
        self.runs().into_iter().filter(|run| run.job.as_deref() == Some(id)).collect()
    }

    /// The runs that have been written down until now, in the order they began.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        self.written().runs
    }

    /// What the processes have written down until now.
    fn written(&self) -> History {
        let mut history = History::default();
        for life in &self.lives {
            // One that was killed before it began has written nothing.
            history.read(*life, &fs::read_to_string(self.log(*life)).unwrap_or_default());
        }
        history.runs.sort_by_key(|run| run.from);
        history
    }

    /// Ends it without a look into the books, which were not kept by a client.
    pub fn leave(self) {
        drop(self.seats);
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Waits until all has ended, and has it checked. At least this process has to live.
    pub async fn settle(self, node: usize) -> Verdict {
        self.all_end(node).await;
        // While the processes still work: what moves meanwhile must not be taken for lost.
        let broken = self.looked_through().await.into_iter();
        let mut wrong: Vec<_> = broken.map(|told| Violation { check: Check::N1, told }).collect();
        wrong.extend(left::behind(&self.server, &self.namespace).await);
        let mut history = std::mem::take(&mut *self.history.lock());
        let written = self.written();
        history.runs = written.runs;
        history.troubles.extend(written.troubles);
        let (looked, found) = history.check();
        wrong.extend(found);
        let mut states = BTreeMap::new();
        for seen in history.seen.values().filter_map(|seen| seen.last()) {
            *states.entry(format!("{} {}", seen.state, seen.reason)).or_default() += 1;
        }
        drop(self.seats);
        let logs = (!wrong.is_empty()).then(|| self.folder.clone());
        if logs.is_none() {
            let _ = fs::remove_dir_all(&self.folder);
        }
        Verdict { looked, wrong, states, logs }
    }

    /// What a pass over the store finds.
    async fn looked_through(&self) -> Vec<String> {
        match self.store.check().run().await {
            Ok(report) => report.faults().map(ToString::to_string).collect(),
            Err(error) => vec![format!("no pass over the store: {error}")],
        }
    }

    /// Asks about each id until it has ended, or until it takes too long: then the check says so.
    async fn all_end(&self, node: usize) {
        let ids: Vec<_> = {
            let history = self.history.lock();
            history.accepted.iter().map(|accepted| (accepted.id.clone(), accepted.sure)).collect()
        };
        let until = tokio::time::Instant::now() + ALL;
        for (id, sure) in ids {
            loop {
                let seen = self.see(node, &id).await;
                let gone = seen.state.is_empty() && !sure;
                if seen.is_final() || gone || tokio::time::Instant::now() > until {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// The proxies of all are in this process. A process of the fleet notes its own ([`Event::Stall`]): whoever was stopped
/// on purpose does so too, and that is no trouble of the others.
///
/// [`Event::Stall`]: lockgate::testing::history::deferred::Event::Stall
fn note_stalls(history: Weak<Mutex<History>>) {
    std::thread::spawn(move || {
        loop {
            let stalled = stall::tick();
            let Some(history) = history.upgrade() else { return };
            if let Some((from, to)) = stalled {
                history.lock().troubles.push(Trouble { life: None, from, to });
            }
        }
    });
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("folder", &self.folder).finish_non_exhaustive()
    }
}
