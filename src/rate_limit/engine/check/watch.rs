//! Policies that are only watched.

use futures_util::future::join_all;
use smallvec::smallvec;

use super::Checking;
use crate::rate_limit::engine::ask::Groups;

impl Checking<'_> {
    /// Charges the policies that are only watched, each on its own; nothing they say has consequences.
    pub(super) async fn watch(&mut self) {
        let ask = self.ask;
        let watched = ask.questions.iter().enumerate().filter(|(_, question)| {
            question.policy.is_shadow() && question.counts() && !question.is_too_dear()
        });
        let groups: Groups<'_> =
            watched.map(|(at, question)| (ask.tag(question), smallvec![at])).collect();
        let answers = join_all(groups.iter().map(|group| self.call(group, 1))).await;
        for ((_, members), answer) in groups.iter().zip(answers) {
            if let Ok(answer) = answer {
                self.tell(members, &answer, true);
            }
        }
        for (each, question) in self.each.iter_mut().zip(&ask.questions) {
            each.violated |= question.policy.is_shadow() && question.is_too_dear();
            if each.violated {
                let (policy, subject) = (question.policy.label(), question.key.hashed());
                tracing::info!(policy, %subject, "shadow policy: would have been refused");
            }
        }
    }
}
