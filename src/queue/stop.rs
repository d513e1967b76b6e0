//! How a worker stops.

use std::{collections::HashSet, pin::pin, sync::atomic::Ordering, time::Duration};

use tokio::{
    task::{Id, JoinError},
    time::{Instant, timeout, timeout_at},
};

use super::{
    rounds::{Rounds, under_way},
    run::{Ran, Running},
    turn::{Refused, answer_to},
};
use crate::store::{TaskSettlement, TaskOutcome, RunToken, TaskFault};

/// How often it is looked whether the store is away.
const AGAIN: Duration = Duration::from_millis(100);

/// How long the last turns of a worker that stops may take, with the wait for what they tell of.
const LAST: Duration = Duration::from_secs(2);

/// How long it waits for runs to be dropped: those whose handler blocks its thread may never be.
const DROPPED: Duration = Duration::from_secs(1);

impl Rounds {
    pub(super) async fn drain(&mut self) {
        self.stopping = true;
        let mut deadline = pin!(tokio::time::sleep(self.worker.drain));
        loop {
            // A store that is away has begun nothing that could be handed back.
            let away = self.tells == 0 && self.refused.load(Ordering::Relaxed);
            let idle = self.running.is_empty() && self.ends.is_empty();
            if idle && (self.turn.is_none() || away) {
                break;
            }
            tokio::select! {
                () = &mut deadline => break,
                () = self.step() => {}
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
        let last = async {
            self.hand_back().await;
            // Also to be among the idle ones no more.
            loop {
                let turn = self.next_turn();
                self.tells = turn.settlements.len();
                let answer = answer_to(self.worker.store.clone(), turn, Refused::default()).await;
                self.tells = 0;
                self.answered(answer);
                if self.ends.is_empty() {
                    return;
                }
            }
        };
        let _ = timeout(LAST, last).await;
        let (queue, running) = (self.worker.queue.hashed(), self.running.len());
        let left = self.tells + self.ends.len() + running;
        // What was refused has begun nothing.
        let in_doubt = self.turn.is_some() && !self.refused.load(Ordering::Relaxed);
        if left > 0 || in_doubt {
            tracing::warn!(
                %queue, left, running,
                "the queue worker could not hand back its tasks: they count as crashed once their leases are over"
            );
        }
    }

    /// What has not ended in time goes back, uncharged; what must not happen twice is dead, for it may have
    /// happened. It is over when it has been dropped, not before: a handler that blocks its thread keeps its own task from
    /// that, and no other. Nobody renews it any more, so it does not go on while a turn is waited for.
    async fn hand_back(&mut self) {
        self.runs.abort_all();
        let (mut dropped, over) = (HashSet::new(), Instant::now() + DROPPED);
        if self.turn.is_some() {
            let looked = under_way(&mut self.turn).await;
            (self.turn, self.tells) = (None, 0);
            self.looked(looked);
        }
        let drops = async {
            while let Some(ended) = self.runs.join_next().await {
                self.note_drop(ended, &mut dropped);
            }
        };
        let _ = timeout_at(over, drops).await;
        // All that have been dropped, although the turn took all the time.
        while let Some(ended) = self.runs.try_join_next() {
            self.note_drop(ended, &mut dropped);
        }
        for (_, run) in self.running.extract_if(|_, run| dropped.contains(&run.abort.id())) {
            let Running { token, bytes, unique, again, .. } = run;
            let verdict = if again {
                TaskOutcome::ReturnToQueue { delay: Duration::ZERO }
            } else {
                TaskOutcome::Dead { fault: TaskFault::Crashed, reason: "drained, may have run".into() }
            };
            self.ends.push(TaskSettlement { run: token, record_bytes: bytes, unique_key: unique, outcome: verdict });
        }
    }

    fn note_drop(&mut self, ended: Result<(RunToken, Ran), JoinError>, dropped: &mut HashSet<Id>) {
        dropped.extend(ended.as_ref().err().map(JoinError::id));
        self.note(ended);
    }
}
