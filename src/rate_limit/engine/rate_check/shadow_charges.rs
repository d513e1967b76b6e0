//! Charges of the policies in shadow mode, after the enforced ones have admitted the request.

use futures_util::future::join_all;
use smallvec::smallvec;

use super::RateCheck;
use crate::rate_limit::engine::check_request::{CheckGroup, CheckGroups};

impl RateCheck<'_> {
    /// Charges the shadow policies, each in a call of its own. Their results have no consequences.
    /// With `keep_receipts`, their charges are adjusted after the response like those of other
    /// policies.
    pub(super) async fn charge_shadow_policies(&mut self, keep_receipts: bool) {
        let request = self.request;
        let shadow_checks = request.checks.iter().enumerate().filter(|(_, check)| {
            check.policy.is_shadow() && check.is_counted() && !check.exceeds_capacity()
        });
        let groups: CheckGroups<'_> = shadow_checks
            .map(|(index, check)| CheckGroup {
                tag: request.tag(check),
                check_indices: smallvec![index],
            })
            .collect();
        let answers = join_all(groups.iter().map(|group| self.call_store(group, 1))).await;
        for (group, answer) in groups.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            self.record_states(&group.check_indices, &answer, true);
            if keep_receipts && answer.admitted {
                self.record_receipt(group, &answer);
            }
        }
        for (decision, check) in self.decisions.iter_mut().zip(&request.checks) {
            decision.violated |= check.policy.is_shadow() && check.exceeds_capacity();
            if decision.violated {
                let (policy, subject) = (check.policy.name(), self.store.log_name(&check.key));
                tracing::info!(
                    policy, %subject, "shadow policy: the request would have been refused"
                );
            }
        }
    }
}
