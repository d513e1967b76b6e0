//! `FleetDomain`: the part that a domain supplies, and the run of a history.

use std::time::{Duration, Instant};

use super::{
    ChildProcess, ClosingChecks, HistoryPlan, HistoryReport, InjectedFault, ProcessFleet,
    seeded_rng::SeededRng,
};
use crate::{checker::ProcessIncarnation, proxy::FaultProxy, redis_server::RedisServer};

/// Kind of history: locks, jobs, quotas or tasks.
#[expect(
    async_fn_in_trait,
    reason = "implemented in this crate alone, and its futures need not be `Send`"
)]
pub trait FleetDomain: Sized {
    /// Namespace in the store, and part of the name of the log folder.
    const NAMESPACE: &'static str;

    /// Subcommand of its processes.
    const PROCESS_MODE: &'static str;

    const RULES: DomainRules;

    async fn open(server: &RedisServer) -> Self;

    /// Starts the processes, and the clients if the domain has any.
    async fn start_processes(fleet: &mut ProcessFleet<Self>, rng: &mut SeededRng);

    /// Called after each start of a process.
    async fn on_process_start(
        &mut self,
        _incarnation: ProcessIncarnation,
        _process: &mut ChildProcess,
    ) {
    }

    /// Time after a fault in which its effects are not checked. `None`: the fault excuses nothing.
    fn grace_period(_fault: InjectedFault) -> Option<Duration> {
        None
    }

    /// Called with each fault.
    fn on_fault(_fleet: &mut ProcessFleet<Self>, _rng: &mut SeededRng) {}

    fn make_half_open(_fleet: &ProcessFleet<Self>, proxy: &FaultProxy, _node: usize) {
        proxy.half_open_connections();
    }

    /// Returns false if the coverage is insufficient; the run then continues for a limited time.
    fn has_sufficient_coverage(_fleet: &ProcessFleet<Self>) -> bool {
        true
    }

    /// Ends the run and checks it. `last_fault_end` is in ns.
    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        plan: &HistoryPlan,
        last_fault_end: u64,
    ) -> HistoryReport;
}

/// Faults and closing checks of a domain.
#[derive(Debug)]
pub struct DomainRules {
    /// Weight of each fault.
    pub fault_weights: &'static [(InjectedFault, u64)],
    /// Weights that are added in a soak.
    pub soak_fault_weights: &'static [(InjectedFault, u64)],
    /// Scripts whose calls are lost or killed at.
    pub target_scripts: &'static [&'static str],
    /// Lease of its processes: half of the pauses are shorter, half are longer.
    pub lease: Duration,
    /// Longest downtime of a killed server, ms.
    pub max_downtime_ms: u64,
    /// Range of the pause after a fault, ms.
    pub pause_ms: (u64, u64),
    /// Durations of alternating periods with and without faults, so that part of the run is
    /// undisturbed. `None`: faults without interruption.
    pub fault_cycle: Option<(Duration, Duration)>,
    /// True if the measurements of a soak wait for a period without faults.
    pub measures_in_calm: bool,
    /// Time without faults at the end.
    pub final_calm: Duration,
    /// True if a process stays paused while the next faults are injected.
    pub stops_overlap: bool,
    /// True if processes have no proxy outside of a soak.
    pub bypasses_proxy: bool,
    /// True if short gaps of this process and the server are recorded as stalls, instead of long
    /// waits of their threads.
    pub records_short_stalls: bool,
    /// Names of the processes that are never replaced in a soak; they are the first of all
    /// processes.
    pub permanent_processes: &'static [&'static str],
    /// Name of the server in the measurements.
    pub server_label: &'static str,
    /// Measures the memory of the server without its keys.
    pub excludes_key_memory: bool,
    /// Name of the store in the measurements.
    pub store_label: &'static str,
    pub closing_checks: ClosingChecks,
}

/// Faults of a soak; they need a proxy or a server with an append-only file.
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

    /// Returns true if the server is restarted and so needs an append-only file.
    pub(super) fn needs_append_only_log(&self, soaks: bool) -> bool {
        soaks || self.fault_weights.iter().any(|(fault, _)| *fault == InjectedFault::Restart)
    }
}

/// Runs a history and checks it.
///
/// # Panics
///
/// If a server or a process cannot be started.
pub async fn run_history<D: FleetDomain>(plan: &HistoryPlan) -> HistoryReport {
    let (started, mut rng) = (Instant::now(), SeededRng::new(plan.seed));
    let mut fleet = ProcessFleet::<D>::from_plan(plan, rng.next_u64()).await;
    D::start_processes(&mut fleet, &mut rng).await;
    let last_fault_end = fleet.run_fault_schedule(plan, started, &mut rng).await;
    let mut report = D::finish_and_check(&mut fleet, plan, last_fault_end).await;
    let (lines, growth) = fleet.growth_report();
    report.violations.extend(growth);
    let (seed, elapsed, faults) = (plan.seed, started.elapsed(), fleet.fault_summary());
    report.lines.insert(0, format!("seed {seed}, {elapsed:.0?}; faults: {faults}"));
    report.lines.extend(lines);
    report.lines.push(format!("figure: violations {}", report.violations.len()));
    report.log_folder = fleet.close(report.violations.is_empty());
    report
}
