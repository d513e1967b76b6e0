//! Policies that are only watched.

use futures_util::future::join_all;
use smallvec::smallvec;

use super::Checking;
use crate::rate_limit::engine::ask::Groups;

impl Checking<'_> {
    /// Charges the policies that are only watched, each on its own; nothing they say has consequences.
    /// But that what they were charged is put right as that of the others is, if `receipts`.
    pub(super) async fn watch(&mut self, receipts: bool) {
        let ask = self.ask;
        let watched = ask.questions.iter().enumerate().filter(|(_, question)| {
            question.policy.is_shadow() && question.counts() && !question.is_too_dear()
        });
        let groups: Groups<'_> =
            watched.map(|(at, question)| (ask.tag(question), smallvec![at])).collect();
        let answers = join_all(groups.iter().map(|group| self.call(group, 1))).await;
        for (group, answer) in groups.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            self.tell(&group.1, &answer, true);
            if receipts && answer.admitted {
                self.pay(group, &answer);
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
