//! Policies that are only watched.

use futures_util::future::join_all;
use smallvec::smallvec;

use super::RateCheck;
use crate::rate_limit::engine::check_request::CheckGroups;

impl RateCheck<'_> {
    /// Charges the policies that are only watched, each on its own; nothing they say has consequences.
    /// But that what they were charged is put right as that of the others is, if `receipts`.
    pub(super) async fn charge_shadow_policies(&mut self, receipts: bool) {
        let ask = self.request;
        let watched = ask.checks.iter().enumerate().filter(|(_, question)| {
            question.policy.is_shadow() && question.is_counted() && !question.exceeds_capacity()
        });
        let groups: CheckGroups<'_> =
            watched.map(|(at, question)| (ask.tag(question), smallvec![at])).collect();
        let answers = join_all(groups.iter().map(|group| self.call_store(group, 1))).await;
        for (group, answer) in groups.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            self.record_states(&group.1, &answer, true);
            if receipts && answer.admitted {
                self.record_receipt(group, &answer);
            }
        }
        for (each, question) in self.policies.iter_mut().zip(&ask.checks) {
            each.violated |= question.policy.is_shadow() && question.exceeds_capacity();
            if each.violated {
                let (policy, subject) = (question.policy.name(), question.key.log_hash());
                tracing::info!(policy, %subject, "shadow policy: would have been refused");
            }
        }
    }
}
