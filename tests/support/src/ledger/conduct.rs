//! The long run: clients and faults at random, and the books at the end.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate_history::{Check, Violation, deferred::Looked};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet};

use super::{
    fault::{Addrs, Fault, one},
    fleet::{Fleet, Requests, Verdict},
    node::Setup,
};
use crate::{
    flat::{self, Kind, Samples},
    gauge::Gauge,
    history::{clock::MS, dice::Dice},
    redis::Server,
    site::Framework,
};

/// Clients, each with one request at a time. As many resources as half of them.
const CLIENTS: usize = 12;
const RESOURCES: u64 = 6;

/// Times of faults and times without take turns: what a run meets counts for its aftermath, and what nothing has touched
/// is judged by all checks.
const FAULTY: Duration = Duration::from_secs(6);
const CALM: Duration = Duration::from_secs(8);

/// How long a client may wait for its answer: those who stand in line for their lock are told after ten seconds that they
/// don't have it, and the rest is for a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(16);

/// In runs so long that there were some times without faults, so many of a hundred runs must be untouched by any.
const LONG: Duration = Duration::from_secs(40);
const UNTOUCHED: usize = 10;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program whose `node` mode is [`node`](super::node).
    pub program: PathBuf,
    /// How long there are clients, and faults but for the last seconds.
    pub time: Duration,
    /// Of all choices.
    pub seed: u64,
    /// All that can be done, on a server that comes back with its log; and every so often all rest, and what they
    /// have taken of the machine is compared.
    pub soak: Option<Duration>,
}

/// Runs it, and has it checked. What was done is told as well.
///
/// # Panics
///
/// If a server or a process can't be started.
pub async fn conduct(plan: &Plan) -> (String, Verdict) {
    let (started, mut dice) = (Instant::now(), Dice::new(plan.seed));
    let server = match plan.soak {
        Some(_) => Server::with_log("always").await,
        None => Server::start().await,
    };
    let mut fleet = Fleet::on(&plan.program, server).await;
    let registers = fleet.keeps_registers(RESOURCES).await;
    for framework in [Framework::Axum, Framework::Actix, Framework::Axum, Framework::Actix] {
        let setup = Setup { registers: registers.clone(), ..Setup::new(framework) };
        fleet.join(setup).await;
    }
    let addrs = Arc::new(Mutex::new((0..fleet.size()).map(|node| fleet.addr(node)).collect()));
    let (pace, paced) = watch::channel(Pace::Go);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (requests, dice) = (fleet.requests(), Dice::new(dice.roll()));
        clients.spawn(client(requests, Arc::clone(&addrs), dice, paced.clone()));
    }
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    let (mut samples, mut rested) = (Samples::new(), Instant::now());
    fleet.judges_answers(PATIENCE);
    let mut calm = Instant::now();
    while started.elapsed() + CALM < plan.time {
        // Dice of its own: whatever comes of one, the next ones are the same for the same seed.
        let mut own = Dice::new(dice.roll());
        let fault = Fault::draw(&mut own, plan.soak.is_some());
        *done.entry(format!("{fault:?}")).or_default() += 1;
        one(&mut fleet, fault, &addrs, &mut own, plan.soak.is_some()).await;
        tokio::time::sleep(own.ms(150, 900)).await;
        if plan.soak.is_some_and(|every| rested.elapsed() > every) {
            pace.send_replace(Pace::Rest);
            rest(&mut fleet, &mut samples).await;
            pace.send_replace(Pace::Go);
            (rested, calm) = (Instant::now(), Instant::now());
        }
        if calm.elapsed() > FAULTY {
            tokio::time::sleep(CALM).await;
            calm = Instant::now();
        }
    }
    tokio::time::sleep(plan.time.saturating_sub(started.elapsed())).await;
    pace.send_replace(Pace::Stop);
    while let Some(ended) = clients.join_next().await {
        // One that has waited for too long.
        ended.expect("no client panics");
    }
    // What a proxy was told to do to somebody who is dead by now, or did not call, is not done any more.
    for node in 0..fleet.size() {
        fleet.proxy(node).forget_rules();
        fleet.proxy(node).lose_messages(false);
        fleet.proxy(node).end_half_open();
        if !fleet.lives(node) {
            fleet.replace(node).await;
        }
    }
    let mut verdict = fleet.settle(0).await;
    let expected = if plan.soak.is_some() { &SERIES[..] } else { &[] };
    let (flat, grown) = samples.compare(expected);
    verdict.wrong.extend(grown.into_iter().map(|told| Violation { check: Check::N1, told }));
    verdict.wrong.extend(too_little(&verdict, plan.time));
    let done: Vec<_> = done.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let (seed, took) = (plan.seed, started.elapsed());
    let mut told = vec![format!("seed {seed}, {took:.0?}; faults: {}", done.join(", "))];
    told.extend(flat);
    told.push(format!("figure: violations {}", verdict.wrong.len()));
    let looked = &verdict.looked;
    told.push(format!(
        "figure: longest answer of those that nothing is done to {} ms",
        looked.longest / MS
    ));
    told.push(format!("figure: answers that the machine alone excuses {}", looked.excused));
    told.push(format!(
        "figure: fewest runs of 100 that nothing has touched {}",
        share(looked.untouched, looked)
    ));
    told.push(verdict.figure());
    (told.join("\n"), verdict)
}

/// Of a hundred runs.
fn share(of: usize, looked: &Looked) -> usize {
    100 * of / (looked.runs + looked.direct).max(1)
}

/// Faults that touch nearly all that runs excuse nearly all: then nothing was judged. What the machine has touched besides
/// is not to be blamed on the faults.
fn too_little(verdict: &Verdict, time: Duration) -> Option<Violation> {
    let spared = share(verdict.looked.spared, &verdict.looked);
    (time >= LONG && spared < UNTOUCHED).then(|| {
        let told = format!("faults touch all but {spared} of 100 runs: too little is judged");
        Violation { check: Check::D3, told }
    })
}

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Go,
    Rest,
    Stop,
}

/// What a soak must have measured.
const SERIES: [(&str, &[Kind]); 4] = [
    (NODES[0], flat::PROCESS),
    (NODES[1], flat::PROCESS),
    ("the server of jobs, beside its keys", flat::SERVER),
    ("jobs", flat::STORE),
];

/// Those that are never replaced, in the order in which they have joined.
const NODES: [&str; 2] = ["a node of axum", "a node of actix-web"];

/// Until what was accepted has run; then those processes that are never replaced are measured.
async fn rest(fleet: &mut Fleet, samples: &mut Samples) {
    samples.rest();
    let left = fleet.left_at_rest().await;
    samples.add("jobs", Kind::Keys, left);
    samples.add("jobs", Kind::Kept, fleet.kept_for_ever().await);
    for (node, name) in NODES.into_iter().enumerate() {
        samples.gauge(name, fleet.gauge(node).await);
    }
    // What has run is kept for a day, and is no growth; keys that have no end are looked at by themselves, above.
    let beside_keys = Some(fleet.beside_keys().await);
    let gauge = Gauge::of(fleet.server.pid());
    samples.gauge("the server of jobs, beside its keys", Gauge { memory: beside_keys, ..gauge });
}

async fn client(requests: Requests, addrs: Addrs, mut dice: Dice, pace: watch::Receiver<Pace>) {
    while *pace.borrow() != Pace::Stop {
        if *pace.borrow() == Pace::Rest {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let resource = dice.below(RESOURCES).to_string();
        let node = usize::try_from(dice.below(4)).unwrap_or(0);
        let at = addrs.lock()[node];
        let request = requests.later(at, &resource);
        let ms = dice.below(60);
        let later = match dice.below(20) {
            0..=3 => request.pay().wish(&format!("ms={ms}")),
            4..=5 => request.ship().wish(&format!("ms={ms}")),
            6..=11 => request.wish(&format!("ms={ms}")),
            12..=14 => request.put().wish(&format!("ms={ms}")),
            15 => request.put().delayed().wish(&format!("ms={ms}")),
            16 => request.soon().wish(&format!("ms={ms}")),
            17 => request.put().skip().wish(&format!("ms={ms}&fail=1")),
            18 => request.put().wish(&format!("ms={ms}&fail=1")),
            _ => request.wish(&format!("ms={ms}&panic=1")),
        };
        let key = uuid::Uuid::new_v4().simple().to_string();
        let later = if dice.percent(30) { later.key(&key) } else { later };
        later.send().await;
        tokio::time::sleep(dice.ms(1, 40)).await;
    }
}
