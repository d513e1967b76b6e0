//! Query of the policies that were not asked before a check was refused, so that all refusing ones
//! are reported.

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::RateCheck;
use crate::rate_limit::engine::check_request::CheckGroup;

impl RateCheck<'_> {
    /// Queries these groups with a cost of 0, and records the policies that refuse.
    pub(super) async fn query_unsent_groups(&mut self, unsent_groups: &[CheckGroup<'_>]) {
        let is_local =
            |group: &&CheckGroup<'_>| self.is_decided_locally(group.tag, &group.check_indices);
        let store_groups: SmallVec<[_; 4]> =
            unsent_groups.iter().filter(|group| !is_local(group)).collect();
        let answers = join_all(store_groups.iter().map(|group| self.call_store(group, 0))).await;
        for (group, answer) in store_groups.into_iter().zip(answers) {
            // A policy that does not answer is not reported.
            if let Ok(answer) = answer {
                self.record_states(&group.check_indices, &answer, true);
            }
        }
    }
}
