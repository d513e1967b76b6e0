//! `QuotaDomain`: faults, checks and figures of the history of quotas.

use std::time::Duration;

use super::{counter_map_fill, current_epoch, quota_client::TASKS_PER_KEY, tested_quotas};
use crate::{
    checker::{Guarantee, Violation, quota::QuotaHistory},
    fleet::{
        ClosingChecks, DomainRules, FleetDomain, HistoryPlan, HistoryReport,
        InjectedFault::*,
        ProcessFleet,
        clock::{NS_PER_MS, duration_ns},
        seeded_rng::SeededRng,
    },
    proxy::{FaultPoint, FaultRule, RuleMatch},
    redis_server::RedisServer,
};

const PROCESS_COUNT: usize = 3;

/// Longest time until each client is admitted or refused after the faults. A half-open connection
/// costs three call timeouts, and an open circuit breaker a probe; the rest allows for a loaded
/// machine.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// The domain of quotas.
#[derive(Debug)]
pub struct QuotaDomain {
    /// Lost calls that adjust charges.
    settlement_faults: Vec<RuleMatch>,
    /// The [`current_epoch`] at the start.
    first_epoch: u64,
    /// Memory of the filled maps of the oldest process, in a soak.
    map_fill_report: Option<String>,
}

impl FleetDomain for QuotaDomain {
    const NAMESPACE: &'static str = "quota";
    const PROCESS_MODE: &'static str = "limiter";
    const RULES: DomainRules = DomainRules {
        fault_weights: &[
            (Kill, 1),
            (Stop, 1),
            (CutCalls, 1),
            (ForgetScripts, 1),
            (Freeze, 1),
            (Restart, 1),
            (Stall, 1),
            (HalfOpen, 1),
            (Delay, 1),
            (LoseReply, 1),
        ],
        target_scripts: &["charge_batch"],
        max_downtime_ms: 1500,
        pause_ms: (50, 600),
        final_calm: Duration::from_secs(4),
        records_short_stalls: true,
        permanent_processes: &["a process of quotas"],
        server_label: "the server of quotas",
        store_label: "quotas",
        closing_checks: ClosingChecks { counts_all_keys: true, ..ClosingChecks::COMMON },
        ..DomainRules::COMMON
    };

    async fn open(_server: &RedisServer) -> Self {
        Self { settlement_faults: Vec::new(), first_epoch: current_epoch(), map_fill_report: None }
    }

    async fn start_processes(fleet: &mut ProcessFleet<Self>, _rng: &mut SeededRng) {
        for _ in 0..PROCESS_COUNT {
            fleet.start_process(String::new()).await;
        }
        if fleet.is_soak() {
            fleet.domain.map_fill_report =
                Some(counter_map_fill::measure_counter_map_fill(fleet.process(0)).await);
        }
    }

    /// Loses a call that adjusts a charge or, more often, its reply.
    fn on_fault(fleet: &mut ProcessFleet<Self>, rng: &mut SeededRng) {
        let fault_point =
            if rng.chance_percent(75) { FaultPoint::AfterCall } else { FaultPoint::BeforeCall };
        let rule_match = fleet
            .proxy(rng.random_index(PROCESS_COUNT))
            .add_rule(FaultRule::new("settle_charge", fault_point));
        fleet.domain.settlement_faults.push(rule_match);
    }

    /// Returns true if a double adjustment would be detected by now. With too many lost calls, each
    /// count of the store could be correct.
    fn has_sufficient_coverage(fleet: &ProcessFleet<Self>) -> bool {
        fleet.domain.lost_settlements() > 0 && collect_history(fleet).check().0.tight_readings > 0
    }

    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        _plan: &HistoryPlan,
        last_fault_end: u64,
    ) -> HistoryReport {
        let mut violations = fleet.stop_and_check_idle().await;
        let mut history = collect_history(fleet);
        (history.last_fault_end, history.max_wait) = (last_fault_end, duration_ns(MAX_WAIT));
        let ((stats, history_violations), lost_settlements) =
            (history.check(), fleet.domain.lost_settlements());
        violations.extend(history_violations);
        let mut require = |holds: bool, guarantee, description: &str| {
            if !holds {
                violations.push(Violation {
                    guarantee,
                    description: format!("{description}: {stats:?}"),
                });
            }
        };
        require(stats.admitted > 0, Guarantee::L1, "no request was ever let in");
        require(
            stats.exhausted_keys > 0,
            Guarantee::RL1,
            "no quota was ever spent: nothing shows that it holds",
        );
        require(lost_settlements > 0, Guarantee::RL2, "no settlement was lost");
        require(
            stats.tight_readings > 0,
            Guarantee::RL2,
            "no reading shows that a charge is settled once",
        );
        let mut lines = vec![
            format!("{stats:?}, {lost_settlements} settlements lost"),
            format!("figure: let in beyond a quota {}", stats.max_excess),
            format!(
                "figure: longest without an answer after the faults {} ms",
                stats.longest_wait / NS_PER_MS
            ),
        ];
        lines.extend(fleet.domain.map_fill_report.take());
        HistoryReport { lines, violations, log_folder: None }
    }
}

impl QuotaDomain {
    fn lost_settlements(&self) -> usize {
        self.settlement_faults.iter().filter(|fault| fault.has_matched()).count()
    }
}

/// Returns the records of all processes.
fn collect_history(fleet: &ProcessFleet<QuotaDomain>) -> QuotaHistory {
    let (mut history, policies) = (QuotaHistory::default(), tested_quotas());
    fleet.read_logs(|incarnation, text| history.add_log(incarnation, text));
    let clients = (policies.len() * TASKS_PER_KEY) as u64;
    history
        .clients_per_process
        .extend(fleet.all_incarnations().iter().map(|incarnation| (*incarnation, clients)));
    for quota in policies {
        // Quotas without a key per epoch have one name in all epochs.
        let epochs = fleet.domain.first_epoch..=current_epoch();
        history.quotas.extend(epochs.map(|epoch| (quota.name_in_epoch(epoch), quota.bound)));
    }
    fleet.read_disturbances(|log| {
        history.killed.extend(log.killed_at.keys().copied());
        history.stalls.extend(&log.stalls);
    });
    history
}
