//! What a domain supplies, and the run of a history.

use std::time::{Duration, Instant};

use super::{Closing, Fault, Fleet, Plan, Process, Verdict, dice::Dice};
use crate::{checker::ProcessIncarnation, proxy::Proxy, redis::Server};

/// A kind of history.
#[expect(
    async_fn_in_trait,
    reason = "implemented in this crate alone, and its futures need not be `Send`"
)]
pub trait Domain: Sized {
    /// Namespace in the store, and a part of the name of the folder with the logs.
    const NAME: &'static str;

    /// Word on the command line of its processes.
    const MODE: &'static str;

    const RULES: Rules;

    async fn open(server: &Server) -> Self;

    /// Starts the processes, and the clients if it has any.
    async fn begin(fleet: &mut Fleet<Self>, dice: &mut Dice);

    /// Called after each start of a process.
    async fn started(&mut self, _life: ProcessIncarnation, _process: &mut Process) {}

    /// Time after a fault in which its traces are not judged. None: the fault excuses nothing.
    fn aftermath(_fault: Fault) -> Option<Duration> {
        None
    }

    /// Called with each fault, whichever it is.
    fn beside(_fleet: &mut Fleet<Self>, _dice: &mut Dice) {}

    fn half_open(_fleet: &Fleet<Self>, proxy: &Proxy, _who: usize) {
        proxy.half_open();
    }

    /// Returns false if the run has not shown enough yet and goes on, for a bounded time.
    fn shows(_fleet: &Fleet<Self>) -> bool {
        true
    }

    /// Ends the run and checks it. `calm`: when the last fault was over, ns.
    async fn judge(fleet: &mut Fleet<Self>, plan: &Plan, calm: u64) -> Verdict;
}

/// The faults that a domain meets, and how its closing checks look.
#[derive(Debug)]
pub struct Rules {
    /// Weight of each fault.
    pub faults: &'static [(Fault, u64)],
    /// Weights that are added in a soak.
    pub soak: &'static [(Fault, u64)],
    /// Scripts whose calls are struck.
    pub scripts: &'static [&'static str],
    /// Lease of its processes: half of the stops are shorter, half are longer.
    pub lease: Duration,
    /// Longest time a server that was killed stays away, ms.
    pub away: u64,
    /// Pause after a fault, ms: from, to.
    pub pause: (u64, u64),
    /// Alternating times with and without faults, so that some of the run is untouched. None: faults all the time.
    pub turns: Option<(Duration, Duration)>,
    /// Whether the measurements of a soak wait for the next time without faults.
    pub rests_in_calm: bool,
    /// Time without faults at the end.
    pub last: Duration,
    /// Whether a process stays stopped while the next faults are made.
    pub overlaps: bool,
    /// Whether processes have no proxy outside a soak.
    pub straight: bool,
    /// Whether short gaps of this process and the server are noted as stalls, not long ones of their threads alone.
    pub gaps: bool,
    /// Processes that are never replaced in a soak, and what they are called: the first of all.
    pub old: &'static [&'static str],
    /// Name of the server in the measurements; its memory is measured beside its keys, if `beside_keys`.
    pub server: &'static str,
    pub beside_keys: bool,
    /// Name of the store in the measurements.
    pub store: &'static str,
    pub closing: Closing,
}

/// Faults of a soak that need a proxy, or a server with a log.
pub(crate) const SOAK: [(Fault, u64); 5] = [
    (Fault::Restart, 2),
    (Fault::Stall, 3),
    (Fault::HalfOpen, 3),
    (Fault::Delay, 2),
    (Fault::Cut, 2),
];

impl Rules {
    pub(crate) const COMMON: Self = Self {
        faults: &[],
        soak: &[],
        scripts: &[],
        lease: Duration::from_secs(1),
        away: 400,
        pause: (50, 400),
        turns: None,
        rests_in_calm: false,
        last: Duration::ZERO,
        overlaps: false,
        straight: false,
        gaps: false,
        old: &[],
        server: "",
        beside_keys: false,
        store: "",
        closing: Closing::COMMON,
    };

    /// Whether the server is restarted, so that it needs a log.
    pub(super) fn restarts(&self, soaks: bool) -> bool {
        soaks || self.faults.iter().any(|(fault, _)| *fault == Fault::Restart)
    }
}

/// Runs a history and checks it.
///
/// # Panics
///
/// If a server or a process can't be started.
pub async fn conduct<D: Domain>(plan: &Plan) -> Verdict {
    let (started, mut dice) = (Instant::now(), Dice::new(plan.seed));
    let mut fleet = Fleet::<D>::planned(plan, dice.roll()).await;
    D::begin(&mut fleet, &mut dice).await;
    let calm = fleet.storm(plan, started, &mut dice).await;
    let mut verdict = D::judge(&mut fleet, plan, calm).await;
    let (flat, grown) = fleet.growth();
    verdict.wrong.extend(grown);
    let (seed, took, done) = (plan.seed, started.elapsed(), fleet.done());
    verdict.told.insert(0, format!("seed {seed}, {took:.0?}; faults: {done}"));
    verdict.told.extend(flat);
    verdict.told.push(format!("figure: violations {}", verdict.wrong.len()));
    verdict.logs = fleet.close(verdict.wrong.is_empty());
    verdict
}
