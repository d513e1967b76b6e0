//! Clients that send one request after the other, and the counts of their responses.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate_tests::ledger::{
    DeferrableRequest, JobFleet, RecordingClient, RedisTopology, SendOutcome,
};
use tokio::task::JoinSet;

/// Clients of each resource: while one is served, the other one's request is deferred.
const CLIENTS_PER_RESOURCE: usize = 2;

/// Between two requests of a client: there is less to do than there is time for.
const REQUEST_PAUSE: Duration = Duration::from_millis(60);

/// Before a request that was not taken is made again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What a request of a client is.
pub(super) type RequestConfigurator = fn(DeferrableRequest) -> DeferrableRequest;

/// What has become of them.
struct LoadCounters {
    /// What its figures are called.
    load_name: &'static str,
    stop_requested: AtomicBool,
    /// Those that have run at once, or were accepted.
    served: AtomicU64,
    accepted: AtomicU64,
    /// Those that were not taken, and those of which nobody knows.
    refused: AtomicU64,
    uncertain: AtomicU64,
    /// From when it was wanted until it was served, refusals in between included, ms.
    longest_wait_ms: AtomicU64,
    /// Of one answer, whatever it was.
    longest_answer_ms: AtomicU64,
}

pub(super) struct ClientLoad {
    counters: Arc<LoadCounters>,
    clients: JoinSet<()>,
}

impl ClientLoad {
    pub(super) fn new(name: &'static str) -> Self {
        let seen = LoadCounters {
            load_name: name,
            stop_requested: AtomicBool::default(),
            served: AtomicU64::default(),
            accepted: AtomicU64::default(),
            refused: AtomicU64::default(),
            uncertain: AtomicU64::default(),
            longest_wait_ms: AtomicU64::default(),
            longest_answer_ms: AtomicU64::default(),
        };
        Self { counters: Arc::new(seen), clients: JoinSet::new() }
    }

    /// From now on there are clients of this resource, who ask all processes in turn.
    pub(super) fn start_clients<G: RedisTopology>(
        &mut self,
        fleet: &JobFleet<G>,
        resource: &str,
        kind: RequestConfigurator,
    ) {
        let nodes: Vec<_> = (0..fleet.process_count()).map(|node| fleet.node_addr(node)).collect();
        for _ in 0..CLIENTS_PER_RESOURCE {
            let (seen, resource) = (Arc::clone(&self.counters), resource.to_owned());
            self.clients.spawn(run_client(
                seen,
                fleet.recording_client(),
                nodes.clone(),
                resource,
                kind,
            ));
        }
    }

    /// For [`rate`].
    pub(super) fn meter(&self) -> LoadMeter {
        LoadMeter(Arc::clone(&self.counters))
    }

    /// Until so many more are accepted.
    pub(super) async fn wait_for_accepted(&self, more: u64) {
        let accepted = || self.counters.accepted.load(Ordering::Relaxed);
        let before = accepted();
        lockgate_tests::eventually("more to be accepted", async || accepted() >= before + more)
            .await;
    }

    /// How many were not taken, and of how many nobody knows.
    pub(super) fn refused_and_uncertain(&self) -> (u64, u64) {
        let LoadCounters { refused, uncertain: perhaps, .. } = &*self.counters;
        (refused.load(Ordering::Relaxed), perhaps.load(Ordering::Relaxed))
    }

    /// Until all clients have gone: the longest that one has waited until it was served.
    pub(super) async fn stop_and_report(&mut self) -> Duration {
        self.counters.stop_requested.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no client panics");
        }
        let [longest, answer] = [&self.counters.longest_wait_ms, &self.counters.longest_answer_ms]
            .map(|ms| ms.load(Ordering::Relaxed));
        let ((refused, perhaps), name) = (self.refused_and_uncertain(), self.counters.load_name);
        println!("{name}: {refused} were not taken, of {perhaps} nobody knows");
        println!("figure: longest wait of {name} {longest} ms");
        println!("figure: longest answer to {name} {answer} ms");
        Duration::from_millis(longest)
    }
}

/// Counts those that are served.
pub(super) struct LoadMeter(Arc<LoadCounters>);

impl LoadMeter {
    fn served_count(&self) -> u64 {
        self.0.served.load(Ordering::Relaxed)
    }
}

/// How many are served in this time.
pub(super) async fn measure_rate<T>(
    meters: &[LoadMeter],
    phase: &str,
    meanwhile: impl Future<Output = T>,
) -> T {
    let before: Vec<_> = meters.iter().map(LoadMeter::served_count).collect();
    let began = Instant::now();
    let output = meanwhile.await;
    for (meter, before) in meters.iter().zip(before) {
        let (name, rate) =
            (meter.0.load_name, (meter.served_count() - before) * 1000 / elapsed_ms(began).max(1));
        println!("figure: lowest {name} a second {phase} {rate}");
    }
    output
}

async fn run_client(
    seen: Arc<LoadCounters>,
    requests: RecordingClient,
    nodes: Vec<SocketAddr>,
    resource: String,
    kind: RequestConfigurator,
) {
    let mut wanted = Instant::now();
    for at in nodes.iter().cycle() {
        if seen.stop_requested.load(Ordering::Relaxed) {
            return;
        }
        let sent = Instant::now();
        let told = kind(requests.deferrable_request(*at, &resource))
            .instruct_handler("ms=20")
            .send()
            .await;
        seen.longest_answer_ms.fetch_max(elapsed_ms(sent), Ordering::Relaxed);
        let counts = match told {
            SendOutcome::Accepted(_) => &seen.accepted,
            SendOutcome::RanDirectly(..) => &seen.served,
            SendOutcome::PossiblyAccepted(_) => &seen.uncertain,
            SendOutcome::Refused(..) | SendOutcome::NoResponse => &seen.refused,
        };
        counts.fetch_add(1, Ordering::Relaxed);
        if !matches!(told, SendOutcome::Accepted(_) | SendOutcome::RanDirectly(200, _)) {
            tokio::time::sleep(RETRY_PAUSE).await;
            continue;
        }
        if let SendOutcome::Accepted(_) = told {
            seen.served.fetch_add(1, Ordering::Relaxed);
        }
        seen.longest_wait_ms.fetch_max(elapsed_ms(wanted), Ordering::Relaxed);
        tokio::time::sleep(REQUEST_PAUSE).await;
        wanted = Instant::now();
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
