//! What the store is asked, and what becomes of its answer.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::Checking;
use crate::{
    error::Error,
    key::Key,
    rate_limit::{
        decision::Told,
        engine::ask::{Group, Question},
    },
    store::{ChargeCommand, ChargeOutcome, ChargeFuture, QuotaSnapshots, Store, ChargedWindow},
};

/// What the store said.
#[derive(Debug)]
pub(in crate::rate_limit::engine) struct Answer {
    /// A moment before it was asked.
    pub(in crate::rate_limit::engine) sent: Instant,
    pub(in crate::rate_limit::engine) admitted: bool,
    pub(in crate::rate_limit::engine) states: QuotaSnapshots,
}

impl Answer {
    pub(super) fn of(sent: Instant, said: Result<ChargeOutcome, Error>) -> Result<Self, Error> {
        let ChargeOutcome { admitted, snapshots: states } = said?;
        Ok(Self { sent, admitted: admitted > 0, states })
    }
}

/// The charge of one question, and the moment before it.
pub(super) fn asked<'a>(
    store: &'a Store,
    question: &Question,
    tag: &Key,
) -> (Instant, ChargeFuture<'a>) {
    let items = question.item().map_or_else(|| Arc::new([]) as Arc<[_]>, |item| Arc::new([item]));
    let charge = ChargeCommand { tag: tag.clone(), items, repetitions: 1 };
    (Instant::now(), store.backend().charge(charge))
}

impl Checking<'_> {
    /// Charges a group, in the store if that is there.
    pub(super) async fn charge(
        &mut self,
        group: &Group<'_>,
        given_back: bool,
        receipt: bool,
    ) -> Result<bool, Error> {
        if self.is_alone(group.0, &group.1) {
            return Ok(self.alone(group.1.iter().copied()));
        }
        let answer = self.call(group, 1).await;
        self.hear(group, answer, given_back, receipt)
    }

    /// Takes what the store said to the charge of a group.
    pub(super) fn hear(
        &mut self,
        group: &Group<'_>,
        answer: Result<Answer, Error>,
        given_back: bool,
        receipt: bool,
    ) -> Result<bool, Error> {
        match answer {
            Ok(answer) => {
                self.engine.answers(self.store, group.0);
                self.tell(&group.1, &answer, given_back);
                if receipt && answer.admitted {
                    self.pay(group, &answer);
                }
                Ok(answer.admitted)
            }
            Err(error) => self.without_store(group, error),
        }
    }

    /// Notes what was charged, so that it can be changed.
    #[expect(clippy::indexing_slicing, reason = "places are those of its own questions")]
    pub(super) fn pay(&mut self, group: &Group<'_>, answer: &Answer) {
        let (tag, members) = group;
        let receipt = self.receipt.of(self.engine, self.store);
        for (at, state) in members.iter().zip(&answer.states) {
            receipt.add(tag, &self.ask.questions[*at], *at, state.charged_window);
        }
    }

    /// Notes also what has cost nothing so far: the handler may find that it does.
    pub(super) fn owe(&mut self) {
        let (ask, all) = (self.ask, self.ask.questions.iter().enumerate());
        for (at, question) in all.filter(|(_, each)| each.cost == 0 && !each.quota.is_unlimited()) {
            let receipt = self.receipt.of(self.engine, self.store);
            receipt.add(ask.tag(question), question, at, ChargedWindow::default());
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) async fn call(&self, group: &Group<'_>, times: u32) -> Result<Answer, Error> {
        let (tag, members) = group;
        let items = members.iter().filter_map(|at| self.ask.questions[*at].item()).collect();
        let charge = ChargeCommand { tag: (*tag).clone(), items, repetitions: times };
        let sent = Instant::now();
        Answer::of(sent, self.store.backend().charge(charge).await)
    }

    /// Notes what was said, of which those are refused that say they have to wait, unless all are admitted: then it
    /// is the next who would have to.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    pub(super) fn tell(&mut self, members: &[usize], answer: &Answer, given_back: bool) {
        for (at, state) in members.iter().zip(&answer.states) {
            let each = &mut self.each[*at];
            let told = Told::of(state);
            each.violated = !answer.admitted && !state.retry_after.is_zero();
            let retry = if each.violated { told.retry } else { Duration::ZERO };
            each.told = Some(Told { retry, ..told });
            self.engine.note(self.ask, &self.ask.questions[*at], answer, state, given_back);
        }
    }
}
