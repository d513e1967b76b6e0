//! Rollback of a check that was refused after some policies were charged.

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::RateCheck;
use crate::rate_limit::engine::check_request::CheckGroup;

impl RateCheck<'_> {
    /// Refunds all charges, and finds the other policies that refuse. Always returns false.
    pub(super) async fn roll_back(&mut self, unasked: &[CheckGroup<'_>]) -> bool {
        self.restore_remaining();
        let back = self.receipt.refund_all();
        let asked = unasked.iter().filter(|(tag, members)| !self.is_decided_locally(tag, members));
        let asked: SmallVec<[_; 4]> = asked.collect();
        let answers = join_all(asked.iter().map(|group| self.call_store(group, 0))).await;
        for ((_, members), answer) in asked.into_iter().zip(answers) {
            // A policy that does not answer is not reported.
            if let Ok(answer) = answer {
                self.record_states(members, &answer, true);
            }
        }
        if let Some(back) = back {
            back.wait().await;
        }
        false
    }

    /// Adds the units of the coming refund to the reported readings and to the refusal cache.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn restore_remaining(&mut self) {
        let questions = &self.request.checks;
        let charged: SmallVec<[_; 4]> = self.receipt.charged_costs().collect();
        let alike = |at: usize, other: usize| questions[at].shares_counter(&questions[other]);
        for (nth, (at, _)) in charged.iter().copied().enumerate() {
            let same = charged.iter().filter(|(other, _)| alike(at, *other));
            let units = same.fold(0, |sum: u64, (_, cost)| sum.saturating_add(*cost));
            self.add_remaining(at, units);
            // The cache has one entry for each counter and quota, to which the units are added
            // once.
            let twice = |(other, _): &(usize, u64)| {
                alike(at, *other) && questions[at].quota == questions[*other].quota
            };
            if !charged.iter().take(nth).any(twice) {
                self.engine.record_refund(self.request.counter_ref(&questions[at]), units);
            }
        }
        let leased: SmallVec<[_; 4]> = self.receipt.leased_checks().collect();
        leased.into_iter().for_each(|at| self.add_remaining(at, 1));
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn add_remaining(&mut self, at: usize, units: u64) {
        let most = self.request.checks[at].quota.capacity();
        if let Some(told) = &mut self.policies[at].reading {
            told.remaining = told.remaining.saturating_add(units).min(most);
        }
    }
}
