//! The processes of a history: their start, their end, and what they have written.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};

use super::{
    Domain, Fault, Ground, Job, Notes, Plan, Process,
    clock::{self, ns},
    dice::Dice,
    orders::Orders,
    process::kill_now,
    stall,
};
use crate::{
    checker::ProcessIncarnation, flat::Samples, proxy::Proxy, redis::Server, stalls, wait::within,
};

pub(super) struct Seat {
    pub(super) life: ProcessIncarnation,
    setup: String,
    pub(super) process: Process,
    /// None in a cluster, whose nodes tell clients of each other.
    pub(super) proxy: Option<Proxy>,
    /// Until when it is stopped, ns.
    pub(super) stopped: u64,
}

/// Processes on one server or cluster, each behind a proxy of its own where there is one server.
pub struct Fleet<D, G = Server> {
    program: PathBuf,
    folder: PathBuf,
    /// Interval of the measurements of a soak.
    pub(super) soak: Option<Duration>,
    seeds: Dice,
    pub(super) seats: Vec<Seat>,
    lives: Vec<ProcessIncarnation>,
    pub(super) notes: Arc<Mutex<Notes>>,
    pub(super) done: BTreeMap<Fault, usize>,
    pub(super) samples: Samples,
    pub(super) rested: Instant,
    /// Orders of clients in this process.
    pub(crate) orders: Arc<Orders>,
    watchers: JoinSet<()>,
    /// The watcher that calls the server.
    pinging: Option<AbortHandle>,
    /// The server of all processes, or the cluster.
    pub server: G,
    pub(crate) domain: D,
}

impl<D: Domain> Fleet<D> {
    pub(super) async fn planned(plan: &Plan, seed: u64) -> Self {
        let server = match D::RULES.restarts(plan.soak.is_some()) {
            true => Server::with_log("always").await,
            false => Server::start().await,
        };
        let domain = D::open(&server).await;
        let mut fleet = Self::with(&plan.program, server, domain);
        (fleet.soak, fleet.seeds) = (plan.soak, Dice::new(seed));
        if D::RULES.gaps {
            fleet.watch_gaps();
        }
        fleet
    }

    /// Where this process does not run, the others may not run either, nor the server, which may also stall alone.
    fn watch_gaps(&mut self) {
        let note = || {
            let notes = Arc::clone(&self.notes);
            move |from, to| notes.lock().stalls.push((from, to))
        };
        let pings = stalls::silences(&self.server, note());
        self.watchers.spawn(stalls::watch(note()));
        self.pinging = Some(self.watchers.spawn(pings));
    }
}

impl<D: Domain, G: Ground> Fleet<D, G> {
    pub(crate) fn with(program: &Path, server: G, domain: D) -> Self {
        let name = format!("lockgate-{}-{}", D::NAME, uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let notes: Arc<Mutex<Notes>> = Arc::default();
        for each in server.servers().into_iter().filter(|_| !D::RULES.gaps) {
            stall::note(Arc::downgrade(&notes), each.pids());
        }
        Self {
            program: program.to_owned(),
            folder,
            soak: None,
            seeds: Dice::new(0),
            seats: Vec::new(),
            lives: Vec::new(),
            notes,
            done: BTreeMap::new(),
            samples: Samples::new(),
            rested: Instant::now(),
            orders: Arc::default(),
            watchers: JoinSet::new(),
            pinging: None,
            server,
            domain,
        }
    }

    /// Starts one more process; returns its number.
    pub(crate) async fn start(&mut self, setup: String) -> usize {
        let life = ProcessIncarnation { process: self.seats.len(), generation: 0 };
        let seat = self.seat(life, setup).await;
        self.seats.push(seat);
        life.process
    }

    async fn seat(&mut self, life: ProcessIncarnation, setup: String) -> Seat {
        let straight = D::RULES.straight && self.soak.is_none();
        let proxy = match self.server.alone().filter(|_| !straight) {
            Some(server) => Some(Proxy::to(server, D::NAME).await),
            None => None,
        };
        let url = proxy.as_ref().map_or_else(|| self.server.url(D::NAME), Proxy::url);
        let job = Job { url, log: self.log(life), seed: self.seeds.roll(), setup };
        self.lives.push(life);
        let mut process = Process::start(&self.program, &job.words(D::MODE));
        self.domain.started(life, &mut process).await;
        Seat { life, setup: job.setup, process, proxy, stopped: 0 }
    }

    /// Puts another process in place of one that has ended, or is ended now.
    pub async fn replace(&mut self, node: usize) {
        self.kill(node).await;
        let Seat { life, setup, .. } = &self.seats[node];
        let (next, setup) =
            (ProcessIncarnation { generation: life.generation + 1, ..*life }, setup.clone());
        self.seats[node] = self.seat(next, setup).await;
    }
}

impl<D> Fleet<D> {
    /// Its proxy.
    #[must_use]
    pub fn proxy(&self, node: usize) -> &Proxy {
        self.seats[node].proxy.as_ref().expect("there is one server")
    }

    /// Sends a command to the server. Returns its answer, if there is one: a fault may cut this connection as well.
    pub async fn command<W: redis::ToRedisArgs>(&self, words: &[W]) -> Option<redis::Value> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let mut connection = self.server.connection().await;
        command.query_async(&mut connection).await.ok()
    }
}

impl<D, G> Fleet<D, G> {
    pub(crate) fn log(&self, life: ProcessIncarnation) -> PathBuf {
        self.folder.join(format!("{}-{}.log", life.process, life.generation))
    }

    pub(crate) fn life(&self, node: usize) -> ProcessIncarnation {
        self.seats[node].life
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn soaks(&self) -> bool {
        self.soak.is_some()
    }

    /// How many processes there are, the dead included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.seats.len()
    }

    /// Processes that there ever were.
    pub(crate) fn lives_of_all(&self) -> &[ProcessIncarnation] {
        &self.lives
    }

    /// Processes that live.
    pub(super) fn living(&mut self) -> u64 {
        self.seats.iter_mut().filter_map(|seat| seat.process.lives().then_some(1)).sum()
    }

    /// Whether it still runs.
    pub fn lives(&mut self, node: usize) -> bool {
        self.seats[node].process.lives()
    }

    pub(crate) fn process(&mut self, node: usize) -> &mut Process {
        &mut self.seats[node].process
    }

    pub(crate) fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.seats.iter().filter_map(|seat| seat.proxy.as_ref())
    }

    /// Reads what each process has written. One that was killed before it began has written nothing.
    pub(crate) fn read(&self, mut each: impl FnMut(ProcessIncarnation, &str)) {
        for life in &self.lives {
            each(*life, &fs::read_to_string(self.log(*life)).unwrap_or_default());
        }
    }

    /// SIGKILL from wherever it is called, without waiting: for a [`QuotaRule`](crate::proxy::Rule).
    pub fn killer(&self, node: usize) -> impl Fn() + Send + Sync + 'static {
        let (life, pid) = (self.life(node), self.seats[node].process.pid());
        let notes = Arc::clone(&self.notes);
        move || {
            if let Some(pid) = pid {
                // Before it dies: it may lose what it is sure of now a moment later.
                notes.lock().killed.entry(life).or_insert_with(clock::now);
                kill_now(pid);
            }
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, node: usize) {
        self.killer(node)();
        self.seats[node].process.kill().await;
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
        self.notes.lock().stopping.insert(self.life(node), clock::now());
        self.seats[node].process.terminate();
    }

    /// Waits until a process has ended by itself; its exit code.
    pub async fn ended(&mut self, node: usize) -> Option<i32> {
        within("a node to end", self.seats[node].process.ended()).await
    }

    pub(crate) async fn tell(&mut self, word: &str) {
        for seat in &mut self.seats {
            seat.process.tell(word).await;
        }
    }

    /// No call is made by this process any more.
    pub(super) fn stop_pinging(&self) {
        if let Some(pinging) = &self.pinging {
            pinging.abort();
        }
    }

    /// Ends the processes. The logs stay if something is wrong; returns where they are.
    pub(crate) fn close(self, good: bool) -> Option<PathBuf> {
        drop(self.seats);
        if good {
            let _ = fs::remove_dir_all(&self.folder);
        }
        (!good).then_some(self.folder)
    }
}

impl<D, G> fmt::Debug for Fleet<D, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("folder", &self.folder).finish_non_exhaustive()
    }
}
