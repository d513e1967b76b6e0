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
        sent_at: Instant,
        result: Result<ChargeOutcome, Error>,
    ) -> Result<Self, Error> {
        let ChargeOutcome { admitted, snapshots: states } = result?;
        Ok(Self { sent_at, admitted: admitted > 0, states })
    }
}

/// Starts the charge of one check. Returns the time before the call, and the call.
pub(super) fn start_charge<'a>(
    store: &'a Store,
    check: &PolicyCheck,
    tag: &Key,
) -> (Instant, ChargeFuture<'a>) {
    let items =
        check.charge_item().map_or_else(|| Arc::new([]) as Arc<[_]>, |item| Arc::new([item]));
    let charge = ChargeCommand { tag: tag.clone(), items, repetitions: 1 };
    (Instant::now(), store.backend().charge(charge))
}

impl RateCheck<'_> {
    /// Charges a group, in the store unless its shard is unavailable.
    pub(super) async fn charge_group(
        &mut self,
        group: &CheckGroup<'_>,
        may_be_refunded: bool,
        keep_receipt: bool,
    ) -> Result<bool, Error> {
        if self.is_decided_locally(group.tag, &group.check_indices) {
            return Ok(self.decide_locally(group.check_indices.iter().copied()));
        }
        let answer = self.call_store(group, 1).await;
        self.apply_answer(group, answer, may_be_refunded, keep_receipt)
    }

    /// Applies the answer to the charge of a group.
    pub(super) fn apply_answer(
        &mut self,
        group: &CheckGroup<'_>,
        answer: Result<ChargeAnswer, Error>,
        may_be_refunded: bool,
        keep_receipt: bool,
    ) -> Result<bool, Error> {
        match answer {
            Ok(answer) => {
                self.engine.record_charge_success(self.store, group.tag);
                self.record_states(&group.check_indices, &answer, may_be_refunded);
                if keep_receipt && answer.admitted {
                    self.record_receipt(group, &answer);
                }
                Ok(answer.admitted)
            }
            Err(error) => self.decide_in_outage(group, error),
        }
    }

    /// Records the charges, so that they can be adjusted.
    #[expect(clippy::indexing_slicing, reason = "the indices belong to the checks of this request")]
    pub(super) fn record_receipt(&mut self, group: &CheckGroup<'_>, answer: &ChargeAnswer) {
        let receipt = self.receipt.attach(self.engine, self.store);
        for (index, state) in group.check_indices.iter().zip(&answer.states) {
            let check = &self.request.checks[*index];
            receipt.add_charge(group.tag, check, *index, state.charged_window);
        }
    }

    /// Records the checks without a cost too, since the handler may set one.
    pub(super) fn record_zero_cost_checks(&mut self) {
        let (request, checks) = (self.request, self.request.checks.iter().enumerate());
        let is_free = |check: &PolicyCheck| check.cost == 0 && !check.quota.is_unlimited();
        for (index, check) in checks.filter(|(_, check)| is_free(check)) {
            let receipt = self.receipt.attach(self.engine, self.store);
            receipt.add_charge(request.tag(check), check, index, ChargedWindow::default());
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) async fn call_store(
        &self,
        group: &CheckGroup<'_>,
        repetitions: u32,
    ) -> Result<ChargeAnswer, Error> {
        let CheckGroup { tag, check_indices } = group;
        let checks = check_indices.iter().map(|index| &self.request.checks[*index]);
        let items = checks.filter_map(PolicyCheck::charge_item).collect();
        let charge = ChargeCommand { tag: (*tag).clone(), items, repetitions };
        let sent_at = Instant::now();
        ChargeAnswer::from_result(sent_at, self.store.backend().charge(charge).await)
    }

    /// Records the states of the counters. If the charge was refused, the policies with a wait are
    /// violated. If it was admitted, a wait is that of the next request.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    pub(super) fn record_states(
        &mut self,
        check_indices: &[usize],
        answer: &ChargeAnswer,
        may_be_refunded: bool,
    ) {
        for (index, state) in check_indices.iter().zip(&answer.states) {
            let decision = &mut self.decisions[*index];
            let reading = QuotaReading::from_state(state);
            decision.violated = !answer.admitted && !state.retry_after.is_zero();
            let retry_after = if decision.violated { reading.retry_after } else { Duration::ZERO };
            decision.reading = Some(QuotaReading { retry_after, ..reading });
            self.engine.record_answer(
                self.request,
                &self.request.checks[*index],
                answer,
                state,
                may_be_refunded,
            );
        }
    }
}
