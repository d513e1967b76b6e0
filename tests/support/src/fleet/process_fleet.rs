//! `ProcessFleet`: the processes of a history, their start and end, and their logs.

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
    ChildProcess, DisturbanceLog, FleetDomain, HistoryPlan, InjectedFault, ProcessArgs,
    RedisTopology,
    child_process::kill_pid,
    clock::{self, duration_ns},
    process_control::ProcessControl,
    seeded_rng::SeededRng,
    stall_monitor,
};
use crate::{
    checker::ProcessIncarnation, proxy::FaultProxy, redis_server::RedisServer,
    soak_measurements::SoakMeasurements, stalls, wait::with_timeout,
};

pub(super) struct FleetMember {
    pub(super) incarnation: ProcessIncarnation,
    setup: String,
    pub(super) process: ChildProcess,
    /// None in a cluster, whose nodes tell clients of each other.
    pub(super) proxy: Option<FaultProxy>,
    /// Until when it is stopped, ns.
    pub(super) stopped_until: u64,
}

/// Processes on one server or cluster, each behind a proxy of its own where there is one server.
pub struct ProcessFleet<D, G = RedisServer> {
    program: PathBuf,
    log_folder: PathBuf,
    /// Interval of the measurements of a soak.
    pub(super) soak_interval: Option<Duration>,
    seed_rng: SeededRng,
    pub(super) members: Vec<FleetMember>,
    incarnations: Vec<ProcessIncarnation>,
    pub(super) disturbances: Arc<Mutex<DisturbanceLog>>,
    pub(super) fault_counts: BTreeMap<InjectedFault, usize>,
    pub(super) measurements: SoakMeasurements,
    pub(super) last_measured_at: Instant,
    /// Orders of clients in this process.
    pub(crate) client_control: Arc<ProcessControl>,
    stall_watchers: JoinSet<()>,
    /// The watcher that calls the server.
    ping_task: Option<AbortHandle>,
    /// The server of all processes, or the cluster.
    pub server: G,
    pub(crate) domain: D,
}

impl<D: FleetDomain> ProcessFleet<D> {
    pub(super) async fn from_plan(plan: &HistoryPlan, seed: u64) -> Self {
        let server = match D::RULES.needs_append_only_log(plan.soak_interval.is_some()) {
            true => RedisServer::start_with_append_log("always").await,
            false => RedisServer::start().await,
        };
        let domain = D::open(&server).await;
        let mut fleet = Self::with_domain(&plan.program, server, domain);
        (fleet.soak_interval, fleet.seed_rng) = (plan.soak_interval, SeededRng::new(seed));
        if D::RULES.records_short_stalls {
            fleet.watch_stalls();
        }
        fleet
    }

    /// Where this process does not run, the others may not run either, nor the server, which may also stall alone.
    fn watch_stalls(&mut self) {
        let note = || {
            let notes = Arc::clone(&self.disturbances);
            move |from, to| notes.lock().stalls.push((from, to))
        };
        let pings = stalls::report_server_stalls(&self.server, note());
        self.stall_watchers.spawn(stalls::report_process_stalls(note()));
        self.ping_task = Some(self.stall_watchers.spawn(pings));
    }
}

impl<D: FleetDomain, G: RedisTopology> ProcessFleet<D, G> {
    pub(crate) fn with_domain(program: &Path, server: G, domain: D) -> Self {
        let name = format!("lockgate-{}-{}", D::NAMESPACE, uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let notes: Arc<Mutex<DisturbanceLog>> = Arc::default();
        for each in server.servers().into_iter().filter(|_| !D::RULES.records_short_stalls) {
            stall_monitor::record_stalls_of_server(Arc::downgrade(&notes), each.shared_pid());
        }
        Self {
            program: program.to_owned(),
            log_folder: folder,
            soak_interval: None,
            seed_rng: SeededRng::new(0),
            members: Vec::new(),
            incarnations: Vec::new(),
            disturbances: notes,
            fault_counts: BTreeMap::new(),
            measurements: SoakMeasurements::new(),
            last_measured_at: Instant::now(),
            client_control: Arc::default(),
            stall_watchers: JoinSet::new(),
            ping_task: None,
            server,
            domain,
        }
    }

    /// Starts one more process; returns its number.
    pub(crate) async fn start_process(&mut self, setup: String) -> usize {
        let life = ProcessIncarnation { process: self.members.len(), generation: 0 };
        let seat = self.start_member(life, setup).await;
        self.members.push(seat);
        life.process
    }

    async fn start_member(&mut self, life: ProcessIncarnation, setup: String) -> FleetMember {
        let straight = D::RULES.bypasses_proxy && self.soak_interval.is_none();
        let proxy = match self.server.single_server().filter(|_| !straight) {
            Some(server) => Some(FaultProxy::start(server, D::NAMESPACE).await),
            None => None,
        };
        let url = proxy.as_ref().map_or_else(|| self.server.url(D::NAMESPACE), FaultProxy::url);
        let job = ProcessArgs {
            url,
            log_path: self.log_path(life),
            seed: self.seed_rng.next_u64(),
            setup,
        };
        self.incarnations.push(life);
        let mut process = ChildProcess::start(&self.program, &job.to_args(D::PROCESS_MODE));
        self.domain.on_process_start(life, &mut process).await;
        FleetMember { incarnation: life, setup: job.setup, process, proxy, stopped_until: 0 }
    }

    /// Puts another process in place of one that has ended, or is ended now.
    pub async fn replace_process(&mut self, node: usize) {
        self.kill(node).await;
        let FleetMember { incarnation: life, setup, .. } = &self.members[node];
        let (next, setup) =
            (ProcessIncarnation { generation: life.generation + 1, ..*life }, setup.clone());
        self.members[node] = self.start_member(next, setup).await;
    }
}

impl<D> ProcessFleet<D> {
    /// Its proxy.
    #[must_use]
    pub fn proxy(&self, node: usize) -> &FaultProxy {
        self.members[node].proxy.as_ref().expect("there is one server")
    }

    /// Sends a command to the server. Returns its answer, if there is one: a fault may cut this connection as well.
    pub async fn send_server_command<W: redis::ToRedisArgs>(
        &self,
        words: &[W],
    ) -> Option<redis::Value> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let mut connection = self.server.connection().await;
        command.query_async(&mut connection).await.ok()
    }
}

impl<D, G> ProcessFleet<D, G> {
    pub(crate) fn log_path(&self, life: ProcessIncarnation) -> PathBuf {
        self.log_folder.join(format!("{}-{}.log", life.process, life.generation))
    }

    pub(crate) fn incarnation(&self, node: usize) -> ProcessIncarnation {
        self.members[node].incarnation
    }

    pub(crate) fn log_folder(&self) -> &Path {
        &self.log_folder
    }

    pub(crate) fn is_soak(&self) -> bool {
        self.soak_interval.is_some()
    }

    /// How many processes there are, the dead included.
    #[must_use]
    pub fn process_count(&self) -> usize {
        self.members.len()
    }

    /// Processes that there ever were.
    pub(crate) fn all_incarnations(&self) -> &[ProcessIncarnation] {
        &self.incarnations
    }

    /// Processes that live.
    pub(super) fn running_count(&mut self) -> u64 {
        self.members.iter_mut().filter_map(|seat| seat.process.is_running().then_some(1)).sum()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self, node: usize) -> bool {
        self.members[node].process.is_running()
    }

    pub(crate) fn process(&mut self, node: usize) -> &mut ChildProcess {
        &mut self.members[node].process
    }

    pub(crate) fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.members.iter().filter_map(|seat| seat.proxy.as_ref())
    }

    /// Reads what each process has written. One that was killed before it began has written nothing.
    pub(crate) fn read_logs(&self, mut each: impl FnMut(ProcessIncarnation, &str)) {
        for life in &self.incarnations {
            each(*life, &fs::read_to_string(self.log_path(*life)).unwrap_or_default());
        }
    }

    /// SIGKILL from wherever it is called, without waiting: for a
    /// [`FaultRule`](crate::proxy::FaultRule).
    pub fn kill_callback(&self, node: usize) -> impl Fn() + Send + Sync + 'static {
        let (life, pid) = (self.incarnation(node), self.members[node].process.pid());
        let notes = Arc::clone(&self.disturbances);
        move || {
            if let Some(pid) = pid {
                // Before it dies: it may lose what it is sure of now a moment later.
                notes.lock().killed_at.entry(life).or_insert_with(clock::now_ns);
                kill_pid(pid);
            }
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, node: usize) {
        self.kill_callback(node)();
        self.members[node].process.kill().await;
    }

    /// SIGSTOP.
    pub fn pause(&self, node: usize) {
        self.members[node].process.pause();
    }

    /// SIGCONT, after so long a pause.
    pub fn resume(&self, node: usize, paused: Duration) {
        let now = clock::now_ns();
        self.record_disturbance(
            Some(node),
            now.saturating_sub(duration_ns(paused)),
            now + duration_ns(Duration::from_secs(3)),
        );
        self.members[node].process.resume();
    }

    /// SIGTERM.
    pub fn terminate(&self, node: usize) {
        self.disturbances.lock().stop_requested_at.insert(self.incarnation(node), clock::now_ns());
        self.members[node].process.terminate();
    }

    /// Waits until a process has ended by itself; its exit code.
    pub async fn wait_for_exit(&mut self, node: usize) -> Option<i32> {
        with_timeout("a node to end", self.members[node].process.wait_for_exit()).await
    }

    pub(crate) async fn send_line_to_all(&mut self, word: &str) {
        for seat in &mut self.members {
            seat.process.send_line(word).await;
        }
    }

    /// No call is made by this process any more.
    pub(super) fn stop_pings(&self) {
        if let Some(pinging) = &self.ping_task {
            pinging.abort();
        }
    }

    /// Ends the processes. The logs stay if something is wrong; returns where they are.
    pub(crate) fn close(self, good: bool) -> Option<PathBuf> {
        drop(self.members);
        if good {
            let _ = fs::remove_dir_all(&self.log_folder);
        }
        (!good).then_some(self.log_folder)
    }
}

impl<D, G> fmt::Debug for ProcessFleet<D, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("folder", &self.log_folder).finish_non_exhaustive()
    }
}
