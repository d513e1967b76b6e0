//! Policies in shadow mode.

use futures_util::future::join_all;
use smallvec::smallvec;

use super::RateCheck;
use crate::rate_limit::engine::check_request::CheckGroups;

impl RateCheck<'_> {
    /// Charges the shadow policies, each in a call of its own. Their results have no consequences.
    /// With `receipts`, their charges are adjusted after the response like those of other policies.
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
                tracing::info!(
                    policy, %subject, "shadow policy: the request would have been refused"
                );
            }
        }
    }
}
