//! Calls of a rate check to the store, and the handling of their answers.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::RateCheck;
use crate::{
    error::Error,
    key::Key,
    rate_limit::{
        decision::QuotaReading,
        engine::check_request::{CheckGroup, PolicyCheck},
    },
    store::{ChargeCommand, ChargeFuture, ChargeOutcome, ChargedWindow, QuotaSnapshots, Store},
};

/// Answer of the store to a charge.
#[derive(Debug)]
pub(in crate::rate_limit::engine) struct ChargeAnswer {
    /// Time before the call was sent.
    pub(in crate::rate_limit::engine) sent_at: Instant,
    pub(in crate::rate_limit::engine) admitted: bool,
    pub(in crate::rate_limit::engine) states: QuotaSnapshots,
}

impl ChargeAnswer {
    pub(super) fn from_result(
        sent: Instant,
        said: Result<ChargeOutcome, Error>,
    ) -> Result<Self, Error> {
        let ChargeOutcome { admitted, snapshots: states } = said?;
        Ok(Self { sent_at: sent, admitted: admitted > 0, states })
    }
}

/// Starts the charge of one check. Returns the time before the call, and the call.
pub(super) fn start_charge<'a>(
    store: &'a Store,
    question: &PolicyCheck,
    tag: &Key,
) -> (Instant, ChargeFuture<'a>) {
    let items =
        question.charge_item().map_or_else(|| Arc::new([]) as Arc<[_]>, |item| Arc::new([item]));
    let charge = ChargeCommand { tag: tag.clone(), items, repetitions: 1 };
    (Instant::now(), store.backend().charge(charge))
}

impl RateCheck<'_> {
    /// Charges a group, in the store unless its shard is unavailable.
    pub(super) async fn charge_group(
        &mut self,
        group: &CheckGroup<'_>,
        given_back: bool,
        receipt: bool,
    ) -> Result<bool, Error> {
        if self.is_decided_locally(group.0, &group.1) {
            return Ok(self.decide_locally(group.1.iter().copied()));
        }
        let answer = self.call_store(group, 1).await;
        self.apply_answer(group, answer, given_back, receipt)
    }

    /// Applies the answer to the charge of a group.
    pub(super) fn apply_answer(
        &mut self,
        group: &CheckGroup<'_>,
        answer: Result<ChargeAnswer, Error>,
        given_back: bool,
        receipt: bool,
    ) -> Result<bool, Error> {
        match answer {
            Ok(answer) => {
                self.engine.record_charge_success(self.store, group.0);
                self.record_states(&group.1, &answer, given_back);
                if receipt && answer.admitted {
                    self.record_receipt(group, &answer);
                }
                Ok(answer.admitted)
            }
            Err(error) => self.decide_without_store(group, error),
        }
    }

    /// Records the charges, so that they can be adjusted.
    #[expect(clippy::indexing_slicing, reason = "the indices belong to the checks of this request")]
    pub(super) fn record_receipt(&mut self, group: &CheckGroup<'_>, answer: &ChargeAnswer) {
        let (tag, members) = group;
        let receipt = self.receipt.attach(self.engine, self.store);
        for (at, state) in members.iter().zip(&answer.states) {
            receipt.add_charge(tag, &self.request.checks[*at], *at, state.charged_window);
        }
    }

    /// Records the checks without a cost too, since the handler may set one.
    pub(super) fn record_zero_cost_checks(&mut self) {
        let (ask, all) = (self.request, self.request.checks.iter().enumerate());
        for (at, question) in all.filter(|(_, each)| each.cost == 0 && !each.quota.is_unlimited()) {
            let receipt = self.receipt.attach(self.engine, self.store);
            receipt.add_charge(ask.tag(question), question, at, ChargedWindow::default());
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) async fn call_store(
        &self,
        group: &CheckGroup<'_>,
        times: u32,
    ) -> Result<ChargeAnswer, Error> {
        let (tag, members) = group;
        let items =
            members.iter().filter_map(|at| self.request.checks[*at].charge_item()).collect();
        let charge = ChargeCommand { tag: (*tag).clone(), items, repetitions: times };
        let sent = Instant::now();
        ChargeAnswer::from_result(sent, self.store.backend().charge(charge).await)
    }

    /// Records the states of the counters. If the charge was refused, the policies with a wait are
    /// violated. If it was admitted, a wait is that of the next request.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) fn record_states(
        &mut self,
        members: &[usize],
        answer: &ChargeAnswer,
        given_back: bool,
    ) {
        for (at, state) in members.iter().zip(&answer.states) {
            let each = &mut self.policies[*at];
            let told = QuotaReading::from_state(state);
            each.violated = !answer.admitted && !state.retry_after.is_zero();
            let retry = if each.violated { told.retry_after } else { Duration::ZERO };
            each.reading = Some(QuotaReading { retry_after: retry, ..told });
            self.engine.record_answer(
                self.request,
                &self.request.checks[*at],
                answer,
                state,
                given_back,
            );
        }
    }
}
