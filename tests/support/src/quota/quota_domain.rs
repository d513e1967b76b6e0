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

/// How soon each client is let in or refused after the faults. A half-open connection costs three calls their
/// deadlines, and a breaker that has opened meanwhile a probe more; the rest is for a machine that has other things to
/// do.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// The domain of quotas.
#[derive(Debug)]
pub struct QuotaDomain {
    /// Calls that put charges right, to be lost.
    settlement_faults: Vec<RuleMatch>,
    /// The [`epoch`] in which it began.
    first_epoch: u64,
    /// What the maps of the oldest process take, in a soak.
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

    async fn start_processes(fleet: &mut ProcessFleet<Self>, _dice: &mut SeededRng) {
        for _ in 0..PROCESS_COUNT {
            fleet.start_process(String::new()).await;
        }
        if fleet.is_soak() {
            fleet.domain.map_fill_report =
                Some(counter_map_fill::measure_counter_map_fill(fleet.process(0)).await);
        }
    }

    /// A call that puts a charge right is lost on its way there, or, mostly, its reply on the way back.
    fn on_fault(fleet: &mut ProcessFleet<Self>, dice: &mut SeededRng) {
        let moment =
            if dice.chance_percent(75) { FaultPoint::AfterCall } else { FaultPoint::BeforeCall };
        let struck = fleet
            .proxy(dice.random_index(PROCESS_COUNT))
            .add_rule(FaultRule::new("settle_charge", moment));
        fleet.domain.settlement_faults.push(struck);
    }

    /// Whether a charge that was put right twice would be seen by now. It would not while so much is lost that each
    /// count of the store may be right.
    fn has_sufficient_coverage(fleet: &ProcessFleet<Self>) -> bool {
        fleet.domain.lost_settlements() > 0 && collect_history(fleet).check().0.tight_readings > 0
    }

    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        _plan: &HistoryPlan,
        calm: u64,
    ) -> HistoryReport {
        let mut wrong = fleet.stop_and_check_idle().await;
        let mut history = collect_history(fleet);
        (history.last_fault_end, history.max_wait) = (calm, duration_ns(MAX_WAIT));
        let ((looked, found), lost) = (history.check(), fleet.domain.lost_settlements());
        wrong.extend(found);
        let mut must = |so: bool, check, told: &str| {
            if !so {
                wrong.push(Violation {
                    guarantee: check,
                    description: format!("{told}: {looked:?}"),
                });
            }
        };
        must(looked.admitted > 0, Guarantee::L1, "no request was ever let in");
        must(
            looked.exhausted_keys > 0,
            Guarantee::RL1,
            "no quota was ever spent: nothing shows that it holds",
        );
        must(lost > 0, Guarantee::RL2, "no settlement was lost");
        must(
            looked.tight_readings > 0,
            Guarantee::RL2,
            "no look shows that charges are put right once",
        );
        let mut told = vec![
            format!("{looked:?}, {lost} settlements lost"),
            format!("figure: let in beyond a quota {}", looked.max_excess),
            format!(
                "figure: longest without an answer after the faults {} ms",
                looked.longest_wait / NS_PER_MS
            ),
        ];
        told.extend(fleet.domain.map_fill_report.take());
        HistoryReport { lines: told, violations: wrong, log_folder: None }
    }
}

impl QuotaDomain {
    fn lost_settlements(&self) -> usize {
        self.settlement_faults.iter().filter(|struck| struck.has_matched()).count()
    }
}

/// What all processes have written.
fn collect_history(fleet: &ProcessFleet<QuotaDomain>) -> QuotaHistory {
    let (mut history, policies) = (QuotaHistory::default(), tested_quotas());
    fleet.read_logs(|life, text| history.add_log(life, text));
    let clients = (policies.len() * TASKS_PER_KEY) as u64;
    history
        .clients_per_process
        .extend(fleet.all_incarnations().iter().map(|life| (*life, clients)));
    for asked in policies {
        // Those that are not asked for anew have one name in all.
        let epochs = fleet.domain.first_epoch..=current_epoch();
        history.quotas.extend(epochs.map(|epoch| (asked.name_in_epoch(epoch), asked.bound)));
    }
    fleet.read_disturbances(|notes| {
        history.killed.extend(notes.killed_at.keys().copied());
        history.stalls.extend(&notes.stalls);
    });
    history
}
