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
    /// `None` in a cluster, whose nodes redirect clients to each other.
    pub(super) proxy: Option<FaultProxy>,
    /// End of the current pause, ns.
    pub(super) stopped_until: u64,
}

/// Processes on one server or cluster. On a single server each process has its own proxy.
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
    /// Control of the clients in this process.
    pub(crate) client_control: Arc<ProcessControl>,
    stall_watchers: JoinSet<()>,
    /// Task that pings the server.
    ping_task: Option<AbortHandle>,
    /// Server or cluster of all processes.
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

    /// A stall of this process may have stalled the others and the server too. The server may also
    /// stall alone.
    fn watch_stalls(&mut self) {
        let record_stall = || {
            let disturbances = Arc::clone(&self.disturbances);
            move |from, to| disturbances.lock().stalls.push((from, to))
        };
        let pings = stalls::report_server_stalls(&self.server, record_stall());
        self.stall_watchers.spawn(stalls::report_process_stalls(record_stall()));
        self.ping_task = Some(self.stall_watchers.spawn(pings));
    }
}

impl<D: FleetDomain, G: RedisTopology> ProcessFleet<D, G> {
    pub(crate) fn with_domain(program: &Path, server: G, domain: D) -> Self {
        let name = format!("lockgate-{}-{}", D::NAMESPACE, uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let disturbances: Arc<Mutex<DisturbanceLog>> = Arc::default();
        for redis_server in server.servers().into_iter().filter(|_| !D::RULES.records_short_stalls)
        {
            stall_monitor::record_stalls_of_server(
                Arc::downgrade(&disturbances),
                redis_server.shared_pid(),
            );
        }
        Self {
            program: program.to_owned(),
            log_folder: folder,
            soak_interval: None,
            seed_rng: SeededRng::new(0),
            members: Vec::new(),
            incarnations: Vec::new(),
            disturbances,
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

    /// Starts another process. Returns its number.
    pub(crate) async fn start_process(&mut self, setup: String) -> usize {
        let incarnation = ProcessIncarnation { process: self.members.len(), generation: 0 };
        let member = self.start_member(incarnation, setup).await;
        self.members.push(member);
        incarnation.process
    }

    async fn start_member(
        &mut self,
        incarnation: ProcessIncarnation,
        setup: String,
    ) -> FleetMember {
        let bypasses_proxy = D::RULES.bypasses_proxy && self.soak_interval.is_none();
        let proxy = match self.server.single_server().filter(|_| !bypasses_proxy) {
            Some(server) => Some(FaultProxy::start(server, D::NAMESPACE).await),
            None => None,
        };
        let url = proxy.as_ref().map_or_else(|| self.server.url(D::NAMESPACE), FaultProxy::url);
        let args = ProcessArgs {
            url,
            log_path: self.log_path(incarnation),
            seed: self.seed_rng.next_u64(),
            setup,
        };
        self.incarnations.push(incarnation);
        let mut process = ChildProcess::start(&self.program, &args.to_args(D::PROCESS_MODE));
        self.domain.on_process_start(incarnation, &mut process).await;
        FleetMember { incarnation, setup: args.setup, process, proxy, stopped_until: 0 }
    }

    /// Kills a process, if it still runs, and starts another one in its place.
    pub async fn replace_process(&mut self, node: usize) {
        self.kill(node).await;
        let FleetMember { incarnation, setup, .. } = &self.members[node];
        let (next_incarnation, setup) = (
            ProcessIncarnation { generation: incarnation.generation + 1, ..*incarnation },
            setup.clone(),
        );
        self.members[node] = self.start_member(next_incarnation, setup).await;
    }
}

impl<D> ProcessFleet<D> {
    /// Returns the proxy of a process.
    #[must_use]
    pub fn proxy(&self, node: usize) -> &FaultProxy {
        self.members[node].proxy.as_ref().expect("there is one server")
    }

    /// Sends a command to the server. Returns `None` without a reply, since a fault may cut this
    /// connection too.
    pub async fn send_server_command<W: redis::ToRedisArgs>(
        &self,
        arguments: &[W],
    ) -> Option<redis::Value> {
        let mut command = redis::Cmd::new();
        command.arg(arguments);
        let mut connection = self.server.connection().await;
        command.query_async(&mut connection).await.ok()
    }
}

impl<D, G> ProcessFleet<D, G> {
    pub(crate) fn log_path(&self, incarnation: ProcessIncarnation) -> PathBuf {
        self.log_folder.join(format!("{}-{}.log", incarnation.process, incarnation.generation))
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

    /// Returns the number of processes, including dead ones.
    #[must_use]
    pub fn process_count(&self) -> usize {
        self.members.len()
    }

    /// Returns all processes, including replaced ones.
    pub(crate) fn all_incarnations(&self) -> &[ProcessIncarnation] {
        &self.incarnations
    }

    /// Returns the number of running processes.
    pub(super) fn running_count(&mut self) -> u64 {
        self.members.iter_mut().filter_map(|member| member.process.is_running().then_some(1)).sum()
    }

    /// Returns true if the process runs.
    pub fn is_running(&mut self, node: usize) -> bool {
        self.members[node].process.is_running()
    }

    pub(crate) fn process(&mut self, node: usize) -> &mut ChildProcess {
        &mut self.members[node].process
    }

    pub(crate) fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.members.iter().filter_map(|member| member.proxy.as_ref())
    }

    /// Reads the log of each process. The log is empty if a process was killed before it started.
    pub(crate) fn read_logs(&self, mut read_log: impl FnMut(ProcessIncarnation, &str)) {
        for incarnation in &self.incarnations {
            read_log(
                *incarnation,
                &fs::read_to_string(self.log_path(*incarnation)).unwrap_or_default(),
            );
        }
    }

    /// Returns a callback that sends SIGKILL without waiting, for a
    /// [`FaultRule`](crate::proxy::FaultRule).
    pub fn kill_callback(&self, node: usize) -> impl Fn() + Send + Sync + 'static {
        let (incarnation, pid) = (self.incarnation(node), self.members[node].process.pid());
        let disturbances = Arc::clone(&self.disturbances);
        move || {
            if let Some(pid) = pid {
                // Recorded before the kill: the validity of its locks may end right afterwards.
                disturbances.lock().killed_at.entry(incarnation).or_insert_with(clock::now_ns);
                kill_pid(pid);
            }
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(&mut self, node: usize) {
        self.kill_callback(node)();
        self.members[node].process.kill().await;
    }

    /// Sends SIGSTOP.
    pub fn pause(&self, node: usize) {
        self.members[node].process.pause();
    }

    /// Sends SIGCONT and records the pause as a disturbance.
    pub fn resume(&self, node: usize, paused: Duration) {
        let now = clock::now_ns();
        self.record_disturbance(
            Some(node),
            now.saturating_sub(duration_ns(paused)),
            now + duration_ns(Duration::from_secs(3)),
        );
        self.members[node].process.resume();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self, node: usize) {
        self.disturbances.lock().stop_requested_at.insert(self.incarnation(node), clock::now_ns());
        self.members[node].process.terminate();
    }

    /// Waits until a process ends by itself. Returns its exit code.
    pub async fn wait_for_exit(&mut self, node: usize) -> Option<i32> {
        with_timeout("a node to end", self.members[node].process.wait_for_exit()).await
    }

    pub(crate) async fn send_line_to_all(&mut self, line: &str) {
        for member in &mut self.members {
            member.process.send_line(line).await;
        }
    }

    /// Stops the calls of this process.
    pub(super) fn stop_pings(&self) {
        if let Some(ping_task) = &self.ping_task {
            ping_task.abort();
        }
    }

    /// Ends the processes. Returns the folder of the logs, which is removed unless there are
    /// violations.
    pub(crate) fn close(self, passed: bool) -> Option<PathBuf> {
        drop(self.members);
        if passed {
            let _ = fs::remove_dir_all(&self.log_folder);
        }
        (!passed).then_some(self.log_folder)
    }
}

impl<D, G> fmt::Debug for ProcessFleet<D, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("folder", &self.log_folder).finish_non_exhaustive()
    }
}
