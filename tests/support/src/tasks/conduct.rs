//! The domain of tasks: its faults, its checks and its figures.

use std::{collections::BTreeMap, time::Duration};

use lockgate::{
    Store,
    queue::{Queue, TaskId, TaskState},
};

use super::{LEASE, Line, MOST, QUEUE};
use crate::{
    checker::{
        Guarantee, Violation,
        deferred::{AcceptedJob, AcceptedTerms, DeferredHistory, ObservedStatus, RecordedRun},
    },
    fleet::{
        AFTERMATH, Domain,
        Fault::{self, *},
        Fleet, Plan, Rules, Verdict,
        clock::{self, MS},
        dice::Dice,
    },
    redis::{Server, patient_store},
};

const PROCESSES: usize = 3;

/// Until all have ended once nothing is done to them any more: leases of the dead, pauses before the next attempt, and a
/// machine that has other things to do.
const ALL: Duration = Duration::from_secs(60);

/// The domain of tasks.
#[derive(Debug)]
pub struct Tasks {
    store: Store,
    queue: Queue<()>,
}

impl Domain for Tasks {
    const NAME: &'static str = "tasks";
    const MODE: &'static str = "runner";
    const RULES: Rules = Rules {
        faults: &[
            (Kill, 3),
            (KillAtCall, 4),
            (Stop, 2),
            (LoseReply, 4),
            (Deafen, 1),
            (CutCalls, 1),
            (ForgetScripts, 2),
            (Freeze, 1),
            (Restart, 1),
            (Stall, 1),
        ],
        scripts: &["tasks_push", "tasks_poll", "tasks_renew"],
        lease: LEASE,
        ..Rules::COMMON
    };

    async fn open(server: &Server) -> Self {
        let store = patient_store(&server.url(Self::NAME)).await;
        Self { queue: store.queue(QUEUE), store }
    }

    async fn begin(fleet: &mut Fleet<Self>, _dice: &mut Dice) {
        for _ in 0..PROCESSES {
            fleet.start(String::new()).await;
        }
    }

    fn aftermath(fault: Fault) -> Option<Duration> {
        matches!(fault, Stop | CutCalls | Freeze | Restart | Stall).then_some(AFTERMATH)
    }

    async fn judge(fleet: &mut Fleet<Self>, _plan: &Plan, calm: u64) -> Verdict {
        let mut wrong = fleet.stop_all().await;
        wrong.extend(fleet.domain.all_end().await);
        let ended = (clock::now() - calm) / MS;
        let report = fleet.domain.store.check().run().await.expect("the store is there");
        wrong.extend(report.faults().map(|fault| violation(Guarantee::N1, fault.to_string())));
        let mut history = history(fleet);
        fleet.domain.look_up(&mut history).await;
        let (looked, mut found) = history.check();
        // At least once: a process that stood still for longer than its lease may run beside the next one.
        found.retain(|found| matches!(found.guarantee, Guarantee::D1 | Guarantee::D3));
        wrong.extend(found);
        if looked.accepted == 0 || looked.runs == 0 {
            wrong.push(violation(Guarantee::L1, "nothing was ever run".to_owned()));
        }
        let told = vec![
            format!("{looked:?}; pushed without an answer {}", history.unanswered.len()),
            format!("figure: fewest tasks pushed {}", looked.accepted),
            format!("figure: all tasks ended after the faults {ended} ms"),
        ];
        Verdict { told, wrong, logs: None }
    }
}

impl Tasks {
    /// Waits until nothing waits or runs, and looks whether the counts add up.
    async fn all_end(&self) -> Option<Violation> {
        let until = tokio::time::Instant::now() + ALL;
        loop {
            let stats = self.queue.stats().await.expect("the store is there");
            if stats.waiting + stats.running == 0 {
                return (stats.lost > 0 || stats.done + stats.dead != stats.pushed).then(|| {
                    violation(Guarantee::D1, format!("tasks are unaccounted for: {stats:?}"))
                });
            }
            if tokio::time::Instant::now() > until {
                return Some(violation(Guarantee::L1, format!("they do not end: {stats:?}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A dead letter is known. The store keeps nothing of a task that is done, so its runs have to say it.
    async fn look_up(&self, history: &mut DeferredHistory) {
        for accepted in &history.accepted {
            let id = TaskId::parse(&accepted.id).expect("an id");
            let info = self.queue.get(&id).await.expect("the store is there");
            let state = match info.map(|info| info.state) {
                None => "done",
                Some(TaskState::Dead) => "dead",
                Some(_) => "waiting",
            };
            let of = |run: &&RecordedRun| run.job_id.as_deref() == Some(&*accepted.id);
            let last = history.runs.iter().filter(of).max_by_key(|run| run.started_at);
            let end = last.and_then(|run| run.end.as_ref());
            let response = end.map(|end| (end.status, end.body.clone()));
            let seen = ObservedStatus { state: state.to_owned(), reason: String::new(), response };
            history.observed.entry(accepted.id.clone()).or_default().push(seen);
        }
    }
}

fn violation(check: Guarantee, told: String) -> Violation {
    Violation { guarantee: check, description: told }
}

/// What all processes have written.
fn history(fleet: &Fleet<Tasks>) -> DeferredHistory {
    let mut history = DeferredHistory::default();
    let mut tasks = BTreeMap::<String, (u64, bool, Option<(String, u64)>)>::new();
    fleet.read(|life, text| {
        history.add_log(life, text);
        for (at, line) in text.lines().filter_map(Line::read) {
            match line {
                Line::Push(name, once) => drop(tasks.insert(name, (at, once, None))),
                Line::Pushed(name, id) => {
                    tasks.entry(name).and_modify(|task| task.2 = Some((id, at)));
                }
            }
        }
    });
    fleet.take_notes().tell(&mut history);
    for (resource, (sent, once, pushed)) in tasks {
        let terms = if once { AcceptedTerms::SINGLE_RUN } else { AcceptedTerms::retryable(MOST) };
        match pushed {
            Some((id, told)) => {
                let task = AcceptedJob {
                    id,
                    resource,
                    sent_at: sent,
                    answered_at: told,
                    terms,
                    is_certain: true,
                };
                history.accepted.push(task);
            }
            None => *history.unanswered.entry(resource).or_default() += 1,
        }
    }
    history
}
