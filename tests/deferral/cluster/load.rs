//! Clients that ask one request after the other, and how they are served.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate_tests::ledger::{Fleet, Ground, Later, Requests, Told};
use tokio::task::JoinSet;

/// Clients of each resource: while one is served, the other one's request is deferred.
const CLIENTS: usize = 2;

/// Between two requests of a client: there is less to do than there is time for.
const PAUSE: Duration = Duration::from_millis(60);

/// Before a request that was not taken is made again.
const AGAIN: Duration = Duration::from_millis(20);

/// What a request of a client is.
pub(super) type Kind = fn(Later) -> Later;

/// What has become of them.
struct Seen {
    /// What its figures are called.
    name: &'static str,
    stop: AtomicBool,
    /// Those that have run at once, or were accepted.
    served: AtomicU64,
    accepted: AtomicU64,
    /// Those that were not taken, and those of which nobody knows.
    refused: AtomicU64,
    perhaps: AtomicU64,
    /// From when it was wanted until it was served, refusals in between included, ms.
    longest: AtomicU64,
    /// Of one answer, whatever it was.
    longest_answer: AtomicU64,
}

pub(super) struct Load {
    seen: Arc<Seen>,
    clients: JoinSet<()>,
}

impl Load {
    pub(super) fn new(name: &'static str) -> Self {
        let seen = Seen {
            name,
            stop: AtomicBool::default(),
            served: AtomicU64::default(),
            accepted: AtomicU64::default(),
            refused: AtomicU64::default(),
            perhaps: AtomicU64::default(),
            longest: AtomicU64::default(),
            longest_answer: AtomicU64::default(),
        };
        Self { seen: Arc::new(seen), clients: JoinSet::new() }
    }

    /// From now on there are clients of this resource, who ask all processes in turn.
    pub(super) fn begin<G: Ground>(&mut self, fleet: &Fleet<G>, resource: &str, kind: Kind) {
        let nodes: Vec<_> = (0..fleet.size()).map(|node| fleet.addr(node)).collect();
        for _ in 0..CLIENTS {
            let (seen, resource) = (Arc::clone(&self.seen), resource.to_owned());
            self.clients.spawn(go_round(seen, fleet.requests(), nodes.clone(), resource, kind));
        }
    }

    /// For [`rate`].
    pub(super) fn meter(&self) -> Meter {
        Meter(Arc::clone(&self.seen))
    }

    /// Until so many more are accepted.
    pub(super) async fn accepts(&self, more: u64) {
        let accepted = || self.seen.accepted.load(Ordering::Relaxed);
        let before = accepted();
        lockgate_tests::eventually("more to be accepted", async || accepted() >= before + more)
            .await;
    }

    /// How many were not taken, and of how many nobody knows.
    pub(super) fn refused(&self) -> (u64, u64) {
        let Seen { refused, perhaps, .. } = &*self.seen;
        (refused.load(Ordering::Relaxed), perhaps.load(Ordering::Relaxed))
    }

    /// Until all clients have gone: the longest that one has waited until it was served.
    pub(super) async fn ends(&mut self) -> Duration {
        self.seen.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no client panics");
        }
        let [longest, answer] =
            [&self.seen.longest, &self.seen.longest_answer].map(|ms| ms.load(Ordering::Relaxed));
        let ((refused, perhaps), name) = (self.refused(), self.seen.name);
        println!("{name}: {refused} were not taken, of {perhaps} nobody knows");
        println!("figure: longest wait of {name} {longest} ms");
        println!("figure: longest answer to {name} {answer} ms");
        Duration::from_millis(longest)
    }
}

/// Counts those that are served.
pub(super) struct Meter(Arc<Seen>);

impl Meter {
    fn served(&self) -> u64 {
        self.0.served.load(Ordering::Relaxed)
    }
}

/// How many are served in this time.
pub(super) async fn rate<T>(
    meters: &[Meter],
    phase: &str,
    meanwhile: impl Future<Output = T>,
) -> T {
    let before: Vec<_> = meters.iter().map(Meter::served).collect();
    let began = Instant::now();
    let output = meanwhile.await;
    for (meter, before) in meters.iter().zip(before) {
        let (name, rate) = (meter.0.name, (meter.served() - before) * 1000 / ms(began).max(1));
        println!("figure: lowest {name} a second {phase} {rate}");
    }
    output
}

async fn go_round(
    seen: Arc<Seen>,
    requests: Requests,
    nodes: Vec<SocketAddr>,
    resource: String,
    kind: Kind,
) {
    let mut wanted = Instant::now();
    for at in nodes.iter().cycle() {
        if seen.stop.load(Ordering::Relaxed) {
            return;
        }
        let sent = Instant::now();
        let told = kind(requests.later(*at, &resource)).wish("ms=20").send().await;
        seen.longest_answer.fetch_max(ms(sent), Ordering::Relaxed);
        let counts = match told {
            Told::Accepted(_) => &seen.accepted,
            Told::Ran(..) => &seen.served,
            Told::Perhaps(_) => &seen.perhaps,
            Told::Refused(..) | Told::Nothing => &seen.refused,
        };
        counts.fetch_add(1, Ordering::Relaxed);
        if !matches!(told, Told::Accepted(_) | Told::Ran(200, _)) {
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        if let Told::Accepted(_) = told {
            seen.served.fetch_add(1, Ordering::Relaxed);
        }
        seen.longest.fetch_max(ms(wanted), Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
        wanted = Instant::now();
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
