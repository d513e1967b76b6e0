//! Rollback of a check that was refused after some policies were charged: refunds the charges, and
//! raises the reported readings and the refusal cache.

use smallvec::SmallVec;

use super::RateCheck;
use crate::rate_limit::engine::check_request::CheckGroup;

impl RateCheck<'_> {
    /// Refunds all charges, and finds the other policies that refuse. Always returns false.
    pub(super) async fn roll_back(&mut self, unsent_groups: &[CheckGroup<'_>]) -> bool {
        self.restore_remaining();
        let refund = self.receipt.refund_all();
        self.query_unsent_groups(unsent_groups).await;
        if let Some(refund) = refund {
            refund.wait().await;
        }
        false
    }

    /// Adds the units of the coming refund to the reported readings and to the refusal cache.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn restore_remaining(&mut self) {
        let checks = &self.request.checks;
        let charged_costs: SmallVec<[_; 4]> = self.receipt.charged_costs().collect();
        let shares_counter =
            |index: usize, other_index: usize| checks[index].shares_counter(&checks[other_index]);
        for (position, (index, _)) in charged_costs.iter().copied().enumerate() {
            let same_counter =
                charged_costs.iter().filter(|(other_index, _)| shares_counter(index, *other_index));
            let units = same_counter.fold(0, |sum: u64, (_, cost)| sum.saturating_add(*cost));
            self.add_remaining(index, units);
            // The cache has one entry for each counter and quota, to which the units are added
            // once.
            let is_recorded = |(other_index, _): &(usize, u64)| {
                shares_counter(index, *other_index)
                    && checks[index].quota == checks[*other_index].quota
            };
            if !charged_costs.iter().take(position).any(is_recorded) {
                self.engine.record_refund(self.request.borrowed_counter_id(&checks[index]), units);
            }
        }
        let leased: SmallVec<[_; 4]> = self.receipt.leased_checks().collect();
        leased.into_iter().for_each(|index| self.add_remaining(index, 1));
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn add_remaining(&mut self, index: usize, units: u64) {
        let capacity = self.request.checks[index].quota.capacity();
        if let Some(reading) = &mut self.decisions[index].reading {
            reading.remaining = reading.remaining.saturating_add(units).min(capacity);
        }
    }
}
