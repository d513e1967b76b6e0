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

/// How long a request may wait after the faults, beside the lease of a holder that died: a few dead places of an
/// accept window each, and a machine that has other things to do. Below the longest wait of a worker: a request that is
/// refused at the end of its wait was not served.
const MAX_WAIT_AFTER_FAULTS: Duration = Duration::from_secs(5);

/// So many holds of all there are at least, on a machine that has other things to do.
const MIN_HOLDS: usize = 100;

/// Shortest run that must have waits that no fault has touched. A shorter run may have none, since
/// the load of the machine touches them all. `tests/faults/lock_contention.rs` goes on until there
/// are some.
const LONG_RUN: Duration = Duration::from_secs(40);

/// Calls per acquisition: one that takes the lock and one that releases it, and as many again for requests that wait,
/// are refused or give up.
const MAX_CALLS_PER_GRANT: u64 = 4;

/// The domain of locks.
#[derive(Debug)]
pub struct LockDomain {
    /// A server of their own: no fault of the locks' server is one of theirs.
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
        // Order is judged in the times without faults.
        fault_cycle: Some((Duration::from_millis(3200), Duration::from_millis(2800))),
        measures_in_calm: true,
        // Requests that wait are served, and order is judged.
        final_calm: Duration::from_millis(2000),
        stops_overlap: true,
        bypasses_proxy: true,
        records_short_stalls: true,
        permanent_processes: &["a process of locks"],
        server_label: "the server of locks",
        store_label: "locks",
        // A place whose waiter has just left is released after the shutdown, which did not wait for it, and looked for
        // until its lease is over: all calls are made within three seconds.
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

    async fn start_processes(fleet: &mut ProcessFleet<Self>, _dice: &mut SeededRng) {
        for _ in 0..PROCESS_COUNT {
            fleet.start_process(fleet.domain.register_server.url("")).await;
        }
    }

    /// How long order and speed are not judged.
    fn grace_period(fault: InjectedFault) -> Option<Duration> {
        Some(match fault {
            Kill => 2 * LEASE,
            CutMessages | CutCalls | ForgetScripts => Duration::from_millis(800),
            // Three calls in a row have to time out until a half-open connection is replaced.
            Restart | Stall | HalfOpen => 2 * LEASE + Duration::from_secs(1),
            _ => LEASE + Duration::from_millis(500),
        })
    }

    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        plan: &HistoryPlan,
        calm: u64,
    ) -> HistoryReport {
        let mut wrong = fleet.stop_and_check_idle().await;
        let registers = RegisterClient::connect(&fleet.domain.register_server.url("")).await;
        let registers =
            registers.expect("the registers are there").read_outcomes(LOCKS_WITH_REGISTER).await;
        let mut history = collect_history(fleet, calm);
        history.registers = registers.iter().map(|outcome| outcome.fenced.clone()).collect();
        let killed = history.killed_at.len();
        let (calls, grants) = (fleet.server.script_calls(), history.grant_count() as u64);
        let (looked, found) = history.check();
        wrong.extend(
            check_command_cost(calls, grants, MAX_CALLS_PER_GRANT).into_iter().chain(found),
        );
        wrong.extend(insufficient_coverage(killed, &looked, plan.duration));
        let mut told = vec![
            format!("{calls} calls for {grants} acquisitions, {killed} killed"),
            format!("figure: fewest holds {}", looked.hold_count),
            format!("figure: fewest waits judged {}", looked.checked_waits),
            format!("passed by {} of one process at most", looked.max_overtakes),
            format!("figure: longest wait after the faults {} ms", looked.longest_wait / NS_PER_MS),
        ];
        for RegisterOutcome { fenced, unfenced: (written, value) } in &registers {
            let lost = written - value.min(written);
            let (lock, fenced) = (&fenced.lock, fenced.writes.len());
            told.push(format!("{lock}: fenced {fenced} writes; unfenced {written}, {lost} lost"));
        }
        HistoryReport { lines: told, violations: wrong, log_folder: None }
    }
}

fn collect_history(fleet: &ProcessFleet<LockDomain>, calm: u64) -> LockHistory {
    let mut history = LockHistory::default();
    (history.started_at, history.last_fault_end) = (fleet.domain.started_at, calm);
    history.max_wait = duration_ns(LEASE + MAX_WAIT_AFTER_FAULTS);
    fleet.read_logs(|life, text| history.add_log(life, text));
    let notes = fleet.take_disturbances();
    history.killed_at = notes.killed_at;
    let troubles = notes.disturbances.iter().map(|trouble| (trouble.from, trouble.to));
    let stalls = notes.stalls.iter().map(|(from, to)| (*from, to + 400 * NS_PER_MS));
    history.disturbances =
        troubles.chain(stalls).map(|(from, to)| DisturbedInterval { from, to }).collect();
    history
}

/// Where hardly a lock was held, no process was killed, or no wait was judged, no violation was to be found.
fn insufficient_coverage(
    killed: usize,
    looked: &LockCheckStats,
    time: Duration,
) -> Option<Violation> {
    let LockCheckStats { hold_count: holds, checked_waits: waits, .. } = *looked;
    (holds < MIN_HOLDS || killed == 0 || (time >= LONG_RUN && waits == 0)).then(|| {
        let told = format!("{holds} holds, {killed} killed, {waits} waits judged: too little");
        Violation { guarantee: Guarantee::L1, description: told }
    })
}
