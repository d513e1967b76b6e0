//! `FleetDomain`: the part that a domain supplies, and the run of a history.

use std::time::{Duration, Instant};

use super::{
    ChildProcess, ClosingChecks, HistoryPlan, HistoryReport, InjectedFault, ProcessFleet,
    seeded_rng::SeededRng,
};
use crate::{checker::ProcessIncarnation, proxy::FaultProxy, redis_server::RedisServer};

/// A kind of history.
#[expect(
    async_fn_in_trait,
    reason = "implemented in this crate alone, and its futures need not be `Send`"
)]
pub trait FleetDomain: Sized {
    /// Namespace in the store, and a part of the name of the folder with the logs.
    const NAMESPACE: &'static str;

    /// Word on the command line of its processes.
    const PROCESS_MODE: &'static str;

    const RULES: DomainRules;

    async fn open(server: &RedisServer) -> Self;

    /// Starts the processes, and the clients if it has any.
    async fn start_processes(fleet: &mut ProcessFleet<Self>, dice: &mut SeededRng);

    /// Called after each start of a process.
    async fn on_process_start(&mut self, _life: ProcessIncarnation, _process: &mut ChildProcess) {}

    /// Time after a fault in which its traces are not judged. None: the fault excuses nothing.
    fn grace_period(_fault: InjectedFault) -> Option<Duration> {
        None
    }

    /// Called with each fault, whichever it is.
    fn on_fault(_fleet: &mut ProcessFleet<Self>, _dice: &mut SeededRng) {}

    fn make_half_open(_fleet: &ProcessFleet<Self>, proxy: &FaultProxy, _who: usize) {
        proxy.half_open_connections();
    }

    /// Returns false if the run has not shown enough yet and goes on, for a bounded time.
    fn has_sufficient_coverage(_fleet: &ProcessFleet<Self>) -> bool {
        true
    }

    /// Ends the run and checks it. `calm`: when the last fault was over, ns.
    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        plan: &HistoryPlan,
        calm: u64,
    ) -> HistoryReport;
}

/// The faults that a domain meets, and how its closing checks look.
#[derive(Debug)]
pub struct DomainRules {
    /// Weight of each fault.
    pub fault_weights: &'static [(InjectedFault, u64)],
    /// Weights that are added in a soak.
    pub soak_fault_weights: &'static [(InjectedFault, u64)],
    /// Scripts whose calls are struck.
    pub target_scripts: &'static [&'static str],
    /// Lease of its processes: half of the stops are shorter, half are longer.
    pub lease: Duration,
    /// Longest time a server that was killed stays away, ms.
    pub max_downtime_ms: u64,
    /// Pause after a fault, ms: from, to.
    pub pause_ms: (u64, u64),
    /// Alternating times with and without faults, so that some of the run is untouched. None: faults all the time.
    pub fault_cycle: Option<(Duration, Duration)>,
    /// Whether the measurements of a soak wait for the next time without faults.
    pub measures_in_calm: bool,
    /// Time without faults at the end.
    pub final_calm: Duration,
    /// Whether a process stays stopped while the next faults are made.
    pub stops_overlap: bool,
    /// Whether processes have no proxy outside a soak.
    pub bypasses_proxy: bool,
    /// Whether short gaps of this process and the server are noted as stalls, not long ones of their threads alone.
    pub records_short_stalls: bool,
    /// Processes that are never replaced in a soak, and what they are called: the first of all.
    pub permanent_processes: &'static [&'static str],
    /// Name of the server in the measurements.
    pub server_label: &'static str,
    /// Measures the memory of the server without that of its keys.
    pub excludes_key_memory: bool,
    /// Name of the store in the measurements.
    pub store_label: &'static str,
    pub closing_checks: ClosingChecks,
}

/// Faults of a soak that need a proxy, or a server with a log.
pub(crate) const SOAK_FAULT_WEIGHTS: [(InjectedFault, u64); 5] = [
    (InjectedFault::Restart, 2),
    (InjectedFault::Stall, 3),
    (InjectedFault::HalfOpen, 3),
    (InjectedFault::Delay, 2),
    (InjectedFault::Cut, 2),
];

impl DomainRules {
    pub(crate) const COMMON: Self = Self {
        fault_weights: &[],
        soak_fault_weights: &[],
        target_scripts: &[],
        lease: Duration::from_secs(1),
        max_downtime_ms: 400,
        pause_ms: (50, 400),
        fault_cycle: None,
        measures_in_calm: false,
        final_calm: Duration::ZERO,
        stops_overlap: false,
        bypasses_proxy: false,
        records_short_stalls: false,
        permanent_processes: &[],
        server_label: "",
        excludes_key_memory: false,
        store_label: "",
        closing_checks: ClosingChecks::COMMON,
    };

    /// Whether the server is restarted, so that it needs a log.
    pub(super) fn needs_append_only_log(&self, soaks: bool) -> bool {
        soaks || self.fault_weights.iter().any(|(fault, _)| *fault == InjectedFault::Restart)
    }
}

/// Runs a history and checks it.
///
/// # Panics
///
/// If a server or a process can't be started.
pub async fn run_history<D: FleetDomain>(plan: &HistoryPlan) -> HistoryReport {
    let (started, mut dice) = (Instant::now(), SeededRng::new(plan.seed));
    let mut fleet = ProcessFleet::<D>::from_plan(plan, dice.next_u64()).await;
    D::start_processes(&mut fleet, &mut dice).await;
    let calm = fleet.run_fault_schedule(plan, started, &mut dice).await;
    let mut verdict = D::finish_and_check(&mut fleet, plan, calm).await;
    let (flat, grown) = fleet.growth_report();
    verdict.violations.extend(grown);
    let (seed, took, done) = (plan.seed, started.elapsed(), fleet.fault_summary());
    verdict.lines.insert(0, format!("seed {seed}, {took:.0?}; faults: {done}"));
    verdict.lines.extend(flat);
    verdict.lines.push(format!("figure: violations {}", verdict.violations.len()));
    verdict.log_folder = fleet.close(verdict.violations.is_empty());
    verdict
}
