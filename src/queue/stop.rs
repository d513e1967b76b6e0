//! How a worker stops.

use std::{pin::pin, sync::atomic::Ordering, time::Duration};

use super::{
    rounds::{Rounds, under_way},
    run::Running,
    turn::{Refused, answer_to},
};
use crate::store::{End, EndAs, TaskFault};

/// How often it is looked whether the store is away.
const AGAIN: Duration = Duration::from_millis(100);

/// How long the last turn of a worker that stops may take.
const LAST: Duration = Duration::from_secs(2);

impl Rounds {
    pub(super) async fn drain(&mut self) {
        self.stopping = true;
        let mut deadline = pin!(tokio::time::sleep(self.worker.drain));
        loop {
            // A store that is away has begun nothing that could be handed back.
            let away = !self.tells && self.refused.load(Ordering::Relaxed);
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
                let answer = answer_to(self.worker.store.clone(), turn, Refused::default()).await;
                self.answered(answer);
                if self.ends.is_empty() {
                    return;
                }
            }
        };
        if tokio::time::timeout(LAST, last).await.is_err() {
            tracing::warn!(
                left = self.ends.len(),
                "the queue worker could not hand back its tasks"
            );
        }
    }

    /// What has not ended in time goes back, uncharged; what must not happen twice is dead, for it may have
    /// happened. It is over when it has been dropped, not before. Nobody renews it any more, so it does not go on while
    /// a turn is waited for.
    async fn hand_back(&mut self) {
        self.runs.abort_all();
        if self.turn.is_some() {
            let looked = under_way(&mut self.turn).await;
            self.turn = None;
            self.looked(looked);
        }
        while let Some(ended) = self.runs.join_next().await {
            self.note(ended);
        }
        for (_, run) in self.running.drain() {
            let Running { token, bytes, unique, again, .. } = run;
            let verdict = if again {
                EndAs::Back { delay: Duration::ZERO }
            } else {
                EndAs::Dead { fault: TaskFault::Crashed, reason: "drained, may have run".into() }
            };
            self.ends.push(End { run: token, bytes, unique, verdict });
        }
    }
}
