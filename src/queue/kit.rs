//! A worker that runs what is due when it is told to: for tests.

use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::Mutex;

use super::{
    rounds::Rounds,
    run::{Ran, run},
    task::Raw,
    turn::{Refused, answer_to},
    worker::QueueWorker,
};
use crate::store::{TaskFault, TaskId, TaskPollCommand};

/// Most turns of one call, each of which runs a task: tasks that push tasks without end are a fault of the test. This crate's
/// own test of it need not run as many.
const RUNS: usize = if cfg!(test) { 500 } else { 10_000 };

/// One run of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RanTask {
    /// The task.
    pub id: TaskId,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// What went wrong; `None` if nothing did.
    pub fault: Option<TaskFault>,
    /// What the handler, or its panic, said of that; empty if nothing went wrong.
    pub reason: String,
}

type Runs = Arc<Mutex<Vec<RanTask>>>;

pub(crate) struct Stepper {
    rounds: Rounds,
    ran: Runs,
}

impl Stepper {
    /// One task at a time, so that they run in their order.
    pub(crate) fn new(worker: QueueWorker) -> Self {
        let ran = Runs::default();
        let rounds = Rounds::new(noting(worker.concurrency(1), Arc::clone(&ran)));
        Self { rounds, ran }
    }

    /// Runs everything that is due, one after the other, until nothing is.
    #[expect(clippy::panic, reason = "a test that would go on for ever is to fail")]
    pub(crate) async fn run_due(&mut self) -> Vec<RanTask> {
        for _ in 0..RUNS {
            let turn = self.rounds.next_turn();
            self.take(turn).await;
            if self.rounds.ends.is_empty() {
                return std::mem::take(&mut *self.ran.lock());
            }
        }
        let last = TaskPollCommand { max_runs: 0, ..self.rounds.next_turn() };
        self.take(last).await;
        panic!(
            "TestQueueWorker::run_due: {RUNS} runs, and there may be more; do tasks push tasks without end?"
        );
    }

    async fn take(&mut self, turn: TaskPollCommand) {
        let answer = answer_to(self.rounds.worker.store.clone(), turn, Refused::default()).await;
        self.rounds.answered(answer);
        while let Some(ended) = self.rounds.runs.join_next().await {
            self.rounds.note(ended);
        }
    }
}

/// The worker, with a handler that writes down what has run. It bears panics and ends what takes too long, so
/// that these are written down too.
fn noting(mut worker: QueueWorker, ran: Runs) -> QueueWorker {
    let (handler, longest) = (worker.handler, worker.longest.take());
    worker.handler = Arc::new(move |raw: Raw| {
        let (id, attempt) = (raw.facts.id.clone(), raw.facts.attempt);
        let ran = Arc::clone(&ran);
        let note = move |ended: Ran| {
            let wrong = ended.as_ref().err();
            let reason = wrong.map_or("", |(_, why)| why.reason()).to_owned();
            ran.lock().push(RanTask { id, attempt, fault: wrong.map(|(fault, _)| *fault), reason });
            ended
        };
        run(Arc::clone(&handler), raw, longest).map(note).boxed()
    });
    worker
}
