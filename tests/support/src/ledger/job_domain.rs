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

/// How long it may take until everything has ended: a watch of ten seconds over the shards of the dead,
/// a few leases, backoffs, and a machine that has other things to do.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(90);

/// Addresses of the processes, by their numbers.
pub(super) type NodeAddrs = Arc<Mutex<Vec<SocketAddr>>>;

/// The domain of deferred requests.
#[derive(Debug)]
pub struct JobDomain {
    store: Store,
    pub(super) history: Arc<Mutex<DeferredHistory>>,
    started_at: Instant,
    /// Requests that were sent.
    sent_requests: Arc<AtomicU64>,
    pub(super) node_addrs: NodeAddrs,
    listeners: ListenerMap,
    /// Where runs write to under their locks, and of how many resources.
    registers: Option<(RedisServer, u64)>,
    /// Looks at the status resource, of one call each.
    status_queries: AtomicU64,
    /// Most runs of a PUT.
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

    pub(super) fn record_listener(&self, life: ProcessIncarnation, addr: SocketAddr) {
        self.listeners.lock().insert(addr, life);
        let mut addrs = self.node_addrs.lock();
        match addrs.get_mut(life.process) {
            Some(old) => *old = addr,
            None => addrs.push(addr),
        }
    }

    /// What the registers have taken.
    pub(super) async fn read_registers(&self) -> Vec<FencedRegister> {
        let Some((server, resources)) = &self.registers else { return Vec::new() };
        let registers = RegisterClient::connect(&server.url("")).await;
        let registers = registers.expect("the registers are there");
        let all =
            registers.read_outcomes((0..*resources).map(|resource| resource.to_string())).await;
        all.into_iter().map(|outcome| outcome.fenced).collect()
    }
}

impl JobFleet {
    /// Without any process yet, on a server of its own. The program is the one whose `node` mode is
    /// [`run_node`](super::run_node).
    ///
    /// # Panics
    ///
    /// If there is no server, or no folder for the logs.
    pub async fn new(program: &Path) -> Self {
        Self::with_topology(program, RedisServer::start().await).await
    }
}

impl<G: RedisTopology> JobFleet<G> {
    /// On this server, or in this cluster.
    ///
    /// # Panics
    ///
    /// If there is no folder for the logs.
    pub async fn with_topology(program: &Path, server: G) -> Self {
        let books = JobDomain::connect(&server).await;
        Self::with_domain(program, server, books)
    }

    /// Starts one more process; its number.
    pub async fn start_node(&mut self, setup: NodeSetup) -> usize {
        if self.process_count() == 0 {
            self.domain.max_attempts = setup.max_put_runs;
        }
        self.start_process(serde_json::to_string(&setup).expect("words and numbers")).await
    }

    /// From now on there are registers of so many resources, which are judged at the end; their URL. They are on a server
    /// of their own: no fault of the locks' is one of theirs.
    pub(super) async fn start_register_server(&mut self, resources: u64) -> String {
        let server = RedisServer::start().await;
        let url = server.url("");
        self.domain.registers = Some((server, resources));
        url
    }

    /// Where it listens.
    #[must_use]
    pub fn node_addr(&self, node: usize) -> SocketAddr {
        self.domain.node_addrs.lock()[node]
    }

    /// A store of the test's own, straight to the server.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.domain.store
    }

    /// Its lock, held by the test, so that what comes is deferred.
    ///
    /// # Panics
    ///
    /// If it does not come free.
    pub async fn hold_lock(&self, resource: &str) -> LockGuard {
        let request = self.store().lock(Key::path_param("id", resource));
        request.wait(Duration::from_secs(60)).acquire().await.expect("the lock")
    }

    /// The shard of a resource, which says so where its lock is held: for the time before anything else is done.
    ///
    /// # Panics
    ///
    /// If it can't be had.
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

    /// A request that may be deferred.
    pub fn deferrable_request(&self, node: usize, resource: &str) -> DeferrableRequest {
        self.recording_client().deferrable_request(self.node_addr(node), resource)
    }

    /// For clients that go their own way.
    #[must_use]
    pub fn recording_client(&self) -> RecordingClient {
        let JobDomain { max_attempts: most, history, sent_requests: sent, listeners, .. } =
            &self.domain;
        RecordingClient {
            max_attempts: *most,
            history: Arc::clone(history),
            sent_requests: Arc::clone(sent),
            listeners: Arc::clone(listeners),
        }
    }

    /// All that clients are told is written down from now on, and judged: for this long they may wait for their answers.
    pub fn check_answers_within(&self, patience: Duration) {
        self.domain.history.lock().max_wait = duration_ns(patience);
    }

    /// Requests that were sent.
    pub(super) fn sent_requests(&self) -> u64 {
        self.domain.sent_requests.load(Ordering::Relaxed)
    }

    /// Calls of scripts since the beginning, without the looks of the test, without what idle workers may
    /// make: two a second, and half a one of each; and without those whose replies a rule has kept from processes that are
    /// still here. How often such a call is made again is a matter of how fast a connection is made anew.
    pub(super) fn script_call_count(&self) -> u64 {
        let idle =
            self.domain.started_at.elapsed().as_secs() * (4 + self.process_count() as u64) / 2;
        let looks = self.domain.status_queries.load(Ordering::Relaxed);
        let all: u64 = self.server.servers().into_iter().map(RedisServer::script_calls).sum();
        let unanswered: u64 = self.proxies().map(crate::proxy::FaultProxy::unanswered_calls).sum();
        all.saturating_sub(looks + idle + unanswered)
    }

    /// Waits until a worker that was told to stop has begun to: from then on it claims nothing.
    pub async fn wait_for_worker_stop(&self, node: usize) {
        let trace = self.log_path(self.incarnation(node)).with_extension("trace");
        let stops = async {
            while !std::fs::read_to_string(&trace)
                .is_ok_and(|told| told.contains("worker is draining"))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        with_timeout("a worker to stop", stops).await;
    }

    /// What the status resource says now. It is written down.
    pub async fn query_status(&self, node: usize, id: &str) -> ObservedStatus {
        self.domain.status_queries.fetch_add(1, Ordering::Relaxed);
        let seen = fetch_status(self.node_addr(node), id).await.unwrap_or_default();
        self.domain
            .history
            .lock()
            .observed_statuses
            .entry(id.to_owned())
            .or_default()
            .push(seen.clone());
        seen
    }

    /// Asks again until it has ended.
    pub async fn wait_for_outcome(&self, node: usize, id: &str) -> ObservedStatus {
        let outcome = async {
            loop {
                let seen = self.query_status(node, id).await;
                if seen.is_final() {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(COMPLETION_TIMEOUT, outcome).await;
        ended.unwrap_or_else(|_| {
            panic!("{id} does not end; the logs are in {:?}", self.log_folder())
        })
    }

    /// Has a job cancelled; the status of the answer, 0 for none.
    pub async fn cancel_job(&self, node: usize, id: &str) -> u16 {
        self.domain.sent_requests.fetch_add(1, Ordering::Relaxed);
        let cancel = request(self.node_addr(node), "DELETE", &format!("/deferred/{id}"));
        cancel.try_send().await.map_or(0, |answer| answer.status.as_u16())
    }

    /// Waits until a handler has begun to run this job.
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

    /// The runs of a job that have been written down until now.
    #[must_use]
    pub fn runs_of(&self, id: &str) -> Vec<RecordedRun> {
        self.runs().into_iter().filter(|run| run.job_id.as_deref() == Some(id)).collect()
    }

    /// The runs that have been written down until now, in the order they began.
    #[must_use]
    pub fn runs(&self) -> Vec<RecordedRun> {
        self.recorded_history().runs
    }

    /// What the processes have written down until now.
    pub(super) fn recorded_history(&self) -> DeferredHistory {
        let mut history = DeferredHistory::default();
        self.read_logs(|life, text| history.add_log(life, text));
        history.runs.sort_by_key(|run| run.started_at);
        history
    }

    /// Ends it without a look into the books, which were not kept by a client.
    pub fn close_unchecked(self) {
        self.close(true);
    }
}
