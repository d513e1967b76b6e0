//! `LockDomain`: faults, checks and figures of the history of locks.

use std::time::Duration;

use super::lock_attempt::{LEASE, LOCKS_WITH_REGISTER};
use crate::{
    checker::{
        Guarantee, Violation,
        idle_snapshot::check_command_cost,
        locks::{DisturbedInterval, LockCheckStats, LockHistory},
    },
    fleet::{
        ClosingChecks, DomainRules, FleetDomain, HistoryPlan, HistoryReport,
        InjectedFault::{self, *},
        ProcessFleet,
        clock::{self, NS_PER_MS, duration_ns},
        register_client::{RegisterClient, RegisterOutcome},
        seeded_rng::SeededRng,
    },
    redis_server::RedisServer,
};

const PROCESS_COUNT: usize = 4;

/// Longest wait of a request after the faults, beyond the lease of a dead holder: offer timeouts of
/// a few dead queue entries, on a loaded machine. It is below the longest wait of a worker, since a
/// request that times out was not served.
const MAX_WAIT_AFTER_FAULTS: Duration = Duration::from_secs(5);

/// Least number of holds in a run, on a loaded machine.
const MIN_HOLDS: usize = 100;

/// Shortest run that must have waits without a disturbance. A shorter run may have none on a loaded
/// machine. `tests/faults/lock_contention.rs` continues until there are some.
const LONG_RUN: Duration = Duration::from_secs(40);

/// Calls per acquisition: an acquire and a release, and as many again for requests that wait, are
/// refused or are dropped.
const MAX_CALLS_PER_GRANT: u64 = 4;

/// The domain of locks.
#[derive(Debug)]
pub struct LockDomain {
    /// Separate server without faults, so that faults of the lock server do not hit the registers.
    register_server: RedisServer,
    started_at: u64,
}

impl FleetDomain for LockDomain {
    const NAMESPACE: &'static str = "locks";
    const PROCESS_MODE: &'static str = "worker";
    const RULES: DomainRules = DomainRules {
        fault_weights: &[
            (Kill, 6),
            (Stop, 7),
            (CutMessages, 3),
            (CutCalls, 2),
            (ForgetScripts, 1),
            (Freeze, 1),
        ],
        soak_fault_weights: &[
            (Restart, 2),
            (Stall, 3),
            (HalfOpen, 3),
            (Delay, 2),
            (Cut, 2),
            (LoseReply, 4),
        ],
        target_scripts: &["acquire", "release", "renew", "lock_batch"],
        lease: LEASE,
        pause_ms: (60, 320),
        // The order of grants is checked in periods without faults.
        fault_cycle: Some((Duration::from_millis(3200), Duration::from_millis(2800))),
        measures_in_calm: true,
        // Time in which waiters are served and the order is checked.
        final_calm: Duration::from_millis(2000),
        stops_overlap: true,
        bypasses_proxy: true,
        records_short_stalls: true,
        permanent_processes: &["a process of locks"],
        server_label: "the server of locks",
        store_label: "locks",
        // The queue entry of a waiter that has just been dropped is removed in the background, and
        // an undo is repeated until the lease ends: all calls are made within three seconds.
        closing_checks: ClosingChecks {
            locks_only: true,
            max_idle_windows: 4,
            ..ClosingChecks::COMMON
        },
        ..DomainRules::COMMON
    };

    async fn open(_server: &RedisServer) -> Self {
        Self { register_server: RedisServer::start().await, started_at: clock::now_ns() }
    }

    async fn start_processes(fleet: &mut ProcessFleet<Self>, _rng: &mut SeededRng) {
        for _ in 0..PROCESS_COUNT {
            fleet.start_process(fleet.domain.register_server.url("")).await;
        }
    }

    /// Time in which the order and the waits are not checked.
    fn grace_period(fault: InjectedFault) -> Option<Duration> {
        Some(match fault {
            Kill => 2 * LEASE,
            CutMessages | CutCalls | ForgetScripts => Duration::from_millis(800),
            // A half-open connection is replaced after three consecutive timeouts.
            Restart | Stall | HalfOpen => 2 * LEASE + Duration::from_secs(1),
            _ => LEASE + Duration::from_millis(500),
        })
    }

    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        plan: &HistoryPlan,
        last_fault_end: u64,
    ) -> HistoryReport {
        let mut violations = fleet.stop_and_check_idle().await;
        let registers = RegisterClient::connect(&fleet.domain.register_server.url("")).await;
        let registers =
            registers.expect("the registers are there").read_outcomes(LOCKS_WITH_REGISTER).await;
        let mut history = collect_history(fleet, last_fault_end);
        history.registers = registers.iter().map(|outcome| outcome.fenced.clone()).collect();
        let killed = history.killed_at.len();
        let (calls, grants) = (fleet.server.script_calls(), history.grant_count() as u64);
        let (stats, history_violations) = history.check();
        violations.extend(
            check_command_cost(calls, grants, MAX_CALLS_PER_GRANT)
                .into_iter()
                .chain(history_violations),
        );
        violations.extend(insufficient_coverage(killed, &stats, plan.duration));
        let mut lines = vec![
            format!("{calls} calls for {grants} acquisitions, {killed} killed"),
            format!("figure: fewest holds {}", stats.hold_count),
            format!("figure: fewest waits judged {}", stats.checked_waits),
            format!("passed by {} of one process at most", stats.max_overtakes),
            format!("figure: longest wait after the faults {} ms", stats.longest_wait / NS_PER_MS),
        ];
        for RegisterOutcome { fenced, unfenced: (written, value) } in &registers {
            let lost = written - value.min(written);
            let (lock, fenced) = (&fenced.lock, fenced.writes.len());
            lines.push(format!("{lock}: fenced {fenced} writes; unfenced {written}, {lost} lost"));
        }
        HistoryReport { lines, violations, log_folder: None }
    }
}

fn collect_history(fleet: &ProcessFleet<LockDomain>, last_fault_end: u64) -> LockHistory {
    let mut history = LockHistory::default();
    (history.started_at, history.last_fault_end) = (fleet.domain.started_at, last_fault_end);
    history.max_wait = duration_ns(LEASE + MAX_WAIT_AFTER_FAULTS);
    fleet.read_logs(|incarnation, text| history.add_log(incarnation, text));
    let log = fleet.take_disturbances();
    history.killed_at = log.killed_at;
    let disturbances =
        log.disturbances.iter().map(|disturbance| (disturbance.from, disturbance.to));
    let stalls = log.stalls.iter().map(|(from, to)| (*from, to + 400 * NS_PER_MS));
    history.disturbances =
        disturbances.chain(stalls).map(|(from, to)| DisturbedInterval { from, to }).collect();
    history
}

/// Too few holds, kills or checked waits could hide violations.
fn insufficient_coverage(
    killed: usize,
    stats: &LockCheckStats,
    duration: Duration,
) -> Option<Violation> {
    let LockCheckStats { hold_count, checked_waits, .. } = *stats;
    (hold_count < MIN_HOLDS || killed == 0 || (duration >= LONG_RUN && checked_waits == 0)).then(
        || {
            let description = format!(
                "{hold_count} holds, {killed} killed, {checked_waits} waits judged: too little"
            );
            Violation { guarantee: Guarantee::L1, description }
        },
    )
}
