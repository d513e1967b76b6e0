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

/// With two clients per resource, one request is deferred while the other runs.
const CLIENTS_PER_RESOURCE: usize = 2;

/// Pause between two requests of a client; it keeps the load below the capacity.
const REQUEST_PAUSE: Duration = Duration::from_millis(60);

/// Pause before a refused request is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Function that sets the options of a client's request.
pub(super) type RequestConfigurator = fn(DeferrableRequest) -> DeferrableRequest;

/// Counts of the responses to a load.
struct LoadCounters {
    /// Name of the load in the figures.
    load_name: &'static str,
    stop_requested: AtomicBool,
    /// Requests that ran at once or were accepted.
    served: AtomicU64,
    accepted: AtomicU64,
    /// Requests that were refused, and those with an unknown outcome.
    refused: AtomicU64,
    uncertain: AtomicU64,
    /// Longest time from the first attempt of a request until it was served, including refusals,
    /// ms.
    longest_wait_ms: AtomicU64,
    /// Longest time to any response, ms.
    longest_answer_ms: AtomicU64,
}

pub(super) struct ClientLoad {
    counters: Arc<LoadCounters>,
    clients: JoinSet<()>,
}

impl ClientLoad {
    pub(super) fn new(name: &'static str) -> Self {
        let counters = LoadCounters {
            load_name: name,
            stop_requested: AtomicBool::default(),
            served: AtomicU64::default(),
            accepted: AtomicU64::default(),
            refused: AtomicU64::default(),
            uncertain: AtomicU64::default(),
            longest_wait_ms: AtomicU64::default(),
            longest_answer_ms: AtomicU64::default(),
        };
        Self { counters: Arc::new(counters), clients: JoinSet::new() }
    }

    /// Starts clients of this resource. They use all processes in turn.
    pub(super) fn start_clients<G: RedisTopology>(
        &mut self,
        fleet: &JobFleet<G>,
        resource: &str,
        configure: RequestConfigurator,
    ) {
        let nodes: Vec<_> = (0..fleet.process_count()).map(|node| fleet.node_addr(node)).collect();
        for _ in 0..CLIENTS_PER_RESOURCE {
            let (counters, resource) = (Arc::clone(&self.counters), resource.to_owned());
            self.clients.spawn(run_client(
                counters,
                fleet.recording_client(),
                nodes.clone(),
                resource,
                configure,
            ));
        }
    }

    /// Returns a meter for [`measure_rate`].
    pub(super) fn meter(&self) -> LoadMeter {
        LoadMeter(Arc::clone(&self.counters))
    }

    /// Waits until this many more requests are accepted.
    pub(super) async fn wait_for_accepted(&self, more: u64) {
        let accepted = || self.counters.accepted.load(Ordering::Relaxed);
        let before = accepted();
        lockgate_tests::eventually("more to be accepted", async || accepted() >= before + more)
            .await;
    }

    /// Returns the numbers of refused requests and of those with an unknown outcome.
    pub(super) fn refused_and_uncertain(&self) -> (u64, u64) {
        let LoadCounters { refused, uncertain, .. } = &*self.counters;
        (refused.load(Ordering::Relaxed), uncertain.load(Ordering::Relaxed))
    }

    /// Stops all clients. Returns the longest time until a request was served.
    pub(super) async fn stop_and_report(&mut self) -> Duration {
        self.counters.stop_requested.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no client panics");
        }
        let [longest_wait, longest_answer] =
            [&self.counters.longest_wait_ms, &self.counters.longest_answer_ms]
                .map(|ms| ms.load(Ordering::Relaxed));
        let ((refused, uncertain), name) = (self.refused_and_uncertain(), self.counters.load_name);
        println!("{name}: {refused} refused, {uncertain} uncertain");
        println!("figure: longest wait of {name} {longest_wait} ms");
        println!("figure: longest answer to {name} {longest_answer} ms");
        Duration::from_millis(longest_wait)
    }
}

/// Counter of served requests.
pub(super) struct LoadMeter(Arc<LoadCounters>);

impl LoadMeter {
    fn served_count(&self) -> u64 {
        self.0.served.load(Ordering::Relaxed)
    }
}

/// Prints the served requests per second while `meanwhile` runs.
pub(super) async fn measure_rate<T>(
    meters: &[LoadMeter],
    phase: &str,
    meanwhile: impl Future<Output = T>,
) -> T {
    let before: Vec<_> = meters.iter().map(LoadMeter::served_count).collect();
    let started = Instant::now();
    let output = meanwhile.await;
    for (meter, before) in meters.iter().zip(before) {
        let (name, rate) = (
            meter.0.load_name,
            (meter.served_count() - before) * 1000 / elapsed_ms(started).max(1),
        );
        println!("figure: lowest {name} a second {phase} {rate}");
    }
    output
}

async fn run_client(
    counters: Arc<LoadCounters>,
    requests: RecordingClient,
    nodes: Vec<SocketAddr>,
    resource: String,
    configure: RequestConfigurator,
) {
    let mut wanted_since = Instant::now();
    for node in nodes.iter().cycle() {
        if counters.stop_requested.load(Ordering::Relaxed) {
            return;
        }
        let sent = Instant::now();
        let outcome = configure(requests.deferrable_request(*node, &resource))
            .instruct_handler("ms=20")
            .send()
            .await;
        counters.longest_answer_ms.fetch_max(elapsed_ms(sent), Ordering::Relaxed);
        let counter = match outcome {
            SendOutcome::Accepted(_) => &counters.accepted,
            SendOutcome::RanDirectly(..) => &counters.served,
            SendOutcome::PossiblyAccepted(_) => &counters.uncertain,
            SendOutcome::Refused(..) | SendOutcome::NoResponse => &counters.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !matches!(outcome, SendOutcome::Accepted(_) | SendOutcome::RanDirectly(200, _)) {
            tokio::time::sleep(RETRY_PAUSE).await;
            continue;
        }
        if let SendOutcome::Accepted(_) = outcome {
            counters.served.fetch_add(1, Ordering::Relaxed);
        }
        counters.longest_wait_ms.fetch_max(elapsed_ms(wanted_since), Ordering::Relaxed);
        tokio::time::sleep(REQUEST_PAUSE).await;
        wanted_since = Instant::now();
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
