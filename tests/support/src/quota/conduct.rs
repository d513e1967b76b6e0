//! The domain of quotas: its faults, its checks and its figures.

use std::time::Duration;

use super::{epoch, fill, limiter::TASKS, policies};
use crate::{
    checker::{Guarantee, Violation, quota::QuotaHistory},
    fleet::{
        Closing, Domain,
        Fault::*,
        Fleet, Plan, Rules, Verdict,
        clock::{MS, ns},
        dice::Dice,
    },
    proxy::{Moment, Rule, Struck},
    redis::Server,
};

const PROCESSES: usize = 3;

/// How soon each client is let in or refused after the faults. A half-open connection costs three calls their
/// deadlines, and a breaker that has opened meanwhile a probe more; the rest is for a machine that has other things to
/// do.
const PATIENCE: Duration = Duration::from_secs(3);

/// The domain of quotas.
#[derive(Debug)]
pub struct Limits {
    /// Calls that put charges right, to be lost.
    settlements: Vec<Struck>,
    /// The [`epoch`] in which it began.
    first: u64,
    /// What the maps of the oldest process take, in a soak.
    filled: Option<String>,
}

impl Domain for Limits {
    const NAME: &'static str = "quota";
    const MODE: &'static str = "limiter";
    const RULES: Rules = Rules {
        faults: &[
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
        scripts: &["charge_batch"],
        away: 1500,
        pause: (50, 600),
        last: Duration::from_secs(4),
        gaps: true,
        old: &["a process of quotas"],
        server: "the server of quotas",
        store: "quotas",
        closing: Closing { all_keys: true, ..Closing::COMMON },
        ..Rules::COMMON
    };

    async fn open(_server: &Server) -> Self {
        Self { settlements: Vec::new(), first: epoch(), filled: None }
    }

    async fn begin(fleet: &mut Fleet<Self>, _dice: &mut Dice) {
        for _ in 0..PROCESSES {
            fleet.start(String::new()).await;
        }
        if fleet.soaks() {
            fleet.domain.filled = Some(fill::full(fleet.process(0)).await);
        }
    }

    /// A call that puts a charge right is lost on its way there, or, mostly, its reply on the way back.
    fn beside(fleet: &mut Fleet<Self>, dice: &mut Dice) {
        let moment = if dice.percent(75) { Moment::After } else { Moment::Before };
        let struck = fleet.proxy(dice.index(PROCESSES)).strike(Rule::new("settle_charge", moment));
        fleet.domain.settlements.push(struck);
    }

    /// Whether a charge that was put right twice would be seen by now. It would not while so much is lost that each
    /// count of the store may be right.
    fn shows(fleet: &Fleet<Self>) -> bool {
        fleet.domain.lost() > 0 && history(fleet).check().0.tight_readings > 0
    }

    async fn judge(fleet: &mut Fleet<Self>, _plan: &Plan, calm: u64) -> Verdict {
        let mut wrong = fleet.come_to_rest().await;
        let mut history = history(fleet);
        (history.last_fault_end, history.max_wait) = (calm, ns(PATIENCE));
        let ((looked, found), lost) = (history.check(), fleet.domain.lost());
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
                looked.longest_wait / MS
            ),
        ];
        told.extend(fleet.domain.filled.take());
        Verdict { told, wrong, logs: None }
    }
}

impl Limits {
    fn lost(&self) -> usize {
        self.settlements.iter().filter(|struck| struck.has_happened()).count()
    }
}

/// What all processes have written.
fn history(fleet: &Fleet<Limits>) -> QuotaHistory {
    let (mut history, policies) = (QuotaHistory::default(), policies());
    fleet.read(|life, text| history.add_log(life, text));
    let clients = (policies.len() * TASKS) as u64;
    history.clients_per_process.extend(fleet.lives_of_all().iter().map(|life| (*life, clients)));
    for asked in policies {
        // Those that are not asked for anew have one name in all.
        let epochs = fleet.domain.first..=epoch();
        history.quotas.extend(epochs.map(|epoch| (asked.name_in(epoch), asked.limit)));
    }
    fleet.noted(|notes| {
        history.killed.extend(notes.killed.keys().copied());
        history.stalls.extend(&notes.stalls);
    });
    history
}
