//! `JobDomain`: the records of a fleet of deferral, from its clients and from the lookups of the
//! test.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::{Key, LockGuard, Store};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    JobFleet,
    deferrable_request::{DeferrableRequest, ListenerMap, RecordingClient},
    node::NodeSetup,
    status_lookup::fetch_status,
};
use crate::{
    checker::{
        ProcessIncarnation,
        deferred::{DeferredHistory, ObservedStatus, RecordedRun},
        locks::FencedRegister,
    },
    fleet::{FleetDomain as _, RedisTopology, clock::duration_ns, register_client::RegisterClient},
    http_client::request,
    redis_server::{RedisServer, connect_with_long_timeout},
    wait::with_timeout,
};

/// Longest time until all jobs have ended: the takeover of dead workers' shards after ten seconds,
/// a few leases and backoffs, on a loaded machine.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(90);

/// Addresses of the processes, by their numbers.
pub(super) type NodeAddrs = Arc<Mutex<Vec<SocketAddr>>>;

/// The domain of deferred requests.
#[derive(Debug)]
pub struct JobDomain {
    store: Store,
    pub(super) history: Arc<Mutex<DeferredHistory>>,
    started_at: Instant,
    /// Number of requests sent.
    sent_requests: Arc<AtomicU64>,
    pub(super) node_addrs: NodeAddrs,
    listeners: ListenerMap,
    /// Server of the registers that runs write under their locks, and the number of resources.
    registers: Option<(RedisServer, u64)>,
    /// Status requests; each makes one call.
    status_queries: AtomicU64,
    /// Largest number of runs of a PUT.
    max_attempts: u32,
    pub(super) clients: JoinSet<()>,
}

impl JobDomain {
    pub(super) async fn connect<G: RedisTopology>(server: &G) -> Self {
        Self {
            store: connect_with_long_timeout(&server.url(Self::NAMESPACE)).await,
            history: Arc::default(),
            started_at: Instant::now(),
            sent_requests: Arc::default(),
            node_addrs: Arc::default(),
            listeners: Arc::default(),
            registers: None,
            status_queries: AtomicU64::new(0),
            max_attempts: 1,
            clients: JoinSet::new(),
        }
    }

    pub(super) fn record_listener(&self, incarnation: ProcessIncarnation, addr: SocketAddr) {
        self.listeners.lock().insert(addr, incarnation);
        let mut addrs = self.node_addrs.lock();
        match addrs.get_mut(incarnation.process) {
            Some(old) => *old = addr,
            None => addrs.push(addr),
        }
    }

    /// Returns the accepted writes of the registers.
    pub(super) async fn read_registers(&self) -> Vec<FencedRegister> {
        let Some((server, resources)) = &self.registers else { return Vec::new() };
        let registers = RegisterClient::connect(&server.url("")).await;
        let registers = registers.expect("the registers are there");
        let outcomes =
            registers.read_outcomes((0..*resources).map(|resource| resource.to_string())).await;
        outcomes.into_iter().map(|outcome| outcome.fenced).collect()
    }
}

impl JobFleet {
    /// Starts a fleet without processes on its own server. The `node` mode of the program must be
    /// [`run_node`](super::run_node).
    ///
    /// # Panics
    ///
    /// If the server cannot be started or the log folder cannot be created.
    pub async fn new(program: &Path) -> Self {
        Self::with_topology(program, RedisServer::start().await).await
    }
}

impl<G: RedisTopology> JobFleet<G> {
    /// Creates a fleet on this server or cluster.
    ///
    /// # Panics
    ///
    /// If the log folder cannot be created.
    pub async fn with_topology(program: &Path, server: G) -> Self {
        let domain = JobDomain::connect(&server).await;
        Self::with_domain(program, server, domain)
    }

    /// Starts another process. Returns its number.
    pub async fn start_node(&mut self, setup: NodeSetup) -> usize {
        if self.process_count() == 0 {
            self.domain.max_attempts = setup.max_put_runs;
        }
        self.start_process(serde_json::to_string(&setup).expect("words and numbers")).await
    }

    /// Starts a server with registers of these resources, which are checked at the end, and returns
    /// its URL. It is a separate server, so faults of the lock server do not hit the registers.
    pub(super) async fn start_register_server(&mut self, resources: u64) -> String {
        let server = RedisServer::start().await;
        let url = server.url("");
        self.domain.registers = Some((server, resources));
        url
    }

    /// Returns the address of a node.
    #[must_use]
    pub fn node_addr(&self, node: usize) -> SocketAddr {
        self.domain.node_addrs.lock()[node]
    }

    /// Returns a store of the test process, connected without a proxy.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.domain.store
    }

    /// Acquires the lock of a resource, so that requests for it are deferred.
    ///
    /// # Panics
    ///
    /// If the lock stays busy.
    pub async fn hold_lock(&self, resource: &str) -> LockGuard {
        let request = self.store().lock(Key::path_param("id", resource));
        request.wait(Duration::from_secs(60)).acquire().await.expect("the lock")
    }

    /// Returns the shard of a resource, from the key of its held lock. Only one lock may be held at
    /// that time.
    ///
    /// # Panics
    ///
    /// If the lock cannot be acquired.
    pub async fn shard_of(&self, resource: &str) -> u16 {
        let guard = self.hold_lock(resource).await;
        let pattern = format!("lg:1:{}:*}}:h:*", JobDomain::NAMESPACE);
        let mut held = Vec::new();
        for server in self.server.masters() {
            let mut keys = redis::cmd("KEYS");
            let keys = keys.arg(&pattern).query_async(&mut server.connection().await).await;
            held.extend::<Vec<String>>(keys.expect("an answer"));
        }
        guard.release().await;
        let [key] = &held[..] else { panic!("one is held: {held:?}") };
        let shard = key.split(['{', '}']).nth(1).and_then(|shard| shard.parse().ok());
        shard.expect("it has a shard")
    }

    /// Prepares a request to this node.
    pub fn deferrable_request(&self, node: usize, resource: &str) -> DeferrableRequest {
        self.recording_client().deferrable_request(self.node_addr(node), resource)
    }

    /// Returns a client for tasks that send requests themselves.
    #[must_use]
    pub fn recording_client(&self) -> RecordingClient {
        let JobDomain { max_attempts, history, sent_requests, listeners, .. } = &self.domain;
        RecordingClient {
            max_attempts: *max_attempts,
            history: Arc::clone(history),
            sent_requests: Arc::clone(sent_requests),
            listeners: Arc::clone(listeners),
        }
    }

    /// Checks the response times too: clients may wait this long for their responses.
    pub fn check_answers_within(&self, max_wait: Duration) {
        self.domain.history.lock().max_wait = duration_ns(max_wait);
    }

    /// Returns the number of requests sent.
    pub(super) fn sent_requests(&self) -> u64 {
        self.domain.sent_requests.load(Ordering::Relaxed)
    }

    /// Returns the number of script calls since the start, without status requests of the test and
    /// without the calls of idle workers (two a second, and half a call a second for each process).
    /// Calls whose replies were lost by a rule of a running process are excluded too, because the
    /// number of their retries depends on the time of a reconnect.
    pub(super) fn script_call_count(&self) -> u64 {
        let idle_calls =
            self.domain.started_at.elapsed().as_secs() * (4 + self.process_count() as u64) / 2;
        let status_queries = self.domain.status_queries.load(Ordering::Relaxed);
        let total: u64 = self.server.servers().into_iter().map(RedisServer::script_calls).sum();
        let unanswered: u64 = self.proxies().map(crate::proxy::FaultProxy::unanswered_calls).sum();
        total.saturating_sub(status_queries + idle_calls + unanswered)
    }

    /// Waits until a worker has started its drain; from then on it claims nothing.
    pub async fn wait_for_worker_stop(&self, node: usize) {
        let trace = self.log_path(self.incarnation(node)).with_extension("trace");
        let draining = async {
            while !std::fs::read_to_string(&trace)
                .is_ok_and(|text| text.contains("worker is draining"))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        with_timeout("a worker to stop", draining).await;
    }

    /// Requests the status of a job and records it.
    pub async fn query_status(&self, node: usize, id: &str) -> ObservedStatus {
        self.domain.status_queries.fetch_add(1, Ordering::Relaxed);
        let status = fetch_status(self.node_addr(node), id).await.unwrap_or_default();
        self.domain
            .history
            .lock()
            .observed_statuses
            .entry(id.to_owned())
            .or_default()
            .push(status.clone());
        status
    }

    /// Polls the status until the job has ended.
    pub async fn wait_for_outcome(&self, node: usize, id: &str) -> ObservedStatus {
        let outcome = async {
            loop {
                let status = self.query_status(node, id).await;
                if status.is_final() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(COMPLETION_TIMEOUT, outcome).await;
        ended.unwrap_or_else(|_| {
            panic!("{id} does not end; the logs are in {:?}", self.log_folder())
        })
    }

    /// Cancels a job. Returns the status of the response, or 0 without one.
    pub async fn cancel_job(&self, node: usize, id: &str) -> u16 {
        self.domain.sent_requests.fetch_add(1, Ordering::Relaxed);
        let cancel = request(self.node_addr(node), "DELETE", &format!("/deferred/{id}"));
        cancel.try_send().await.map_or(0, |answer| answer.status.as_u16())
    }

    /// Waits until a handler has started to run this job.
    pub async fn wait_for_run_start(&self, id: &str) {
        let started = || self.runs().iter().any(|run| run.job_id.as_deref() == Some(id));
        let wait = async {
            while !started() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let started = tokio::time::timeout(COMPLETION_TIMEOUT, wait).await;
        assert!(started.is_ok(), "{id} does not start; the logs are in {:?}", self.log_folder());
    }

    /// Returns the runs of a job recorded until now.
    #[must_use]
    pub fn runs_of(&self, id: &str) -> Vec<RecordedRun> {
        self.runs().into_iter().filter(|run| run.job_id.as_deref() == Some(id)).collect()
    }

    /// Returns the runs recorded until now, in the order of their starts.
    #[must_use]
    pub fn runs(&self) -> Vec<RecordedRun> {
        self.recorded_history().runs
    }

    /// Returns the records of all processes until now.
    pub(super) fn recorded_history(&self) -> DeferredHistory {
        let mut history = DeferredHistory::default();
        self.read_logs(|incarnation, text| history.add_log(incarnation, text));
        history.runs.sort_by_key(|run| run.started_at);
        history
    }

    /// Ends the fleet without checks, for tests with incomplete records.
    pub fn close_unchecked(self) {
        self.close(true);
    }
}
