//! What becomes of a check that was refused when something was charged for it.

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::Checking;
use crate::rate_limit::engine::ask::Group;

impl Checking<'_> {
    /// Takes back what was charged, and finds out who else would have refused. Always false.
    pub(super) async fn refuse(&mut self, unasked: &[Group<'_>]) -> bool {
        self.unspend();
        let back = self.receipt.give_back();
        let asked = unasked.iter().filter(|(tag, members)| !self.is_alone(tag, members));
        let asked: SmallVec<[_; 4]> = asked.collect();
        let answers = join_all(asked.iter().map(|group| self.call(group, 0))).await;
        for ((_, members), answer) in asked.into_iter().zip(answers) {
            // Who can't be asked is not named.
            if let Ok(answer) = answer {
                self.tell(members, &answer, true);
            }
        }
        if let Some(back) = back {
            back.wait().await;
        }
        false
    }

    /// What is about to be given back is told, and remembered, as left.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn unspend(&mut self) {
        let questions = &self.ask.questions;
        let charged: SmallVec<[_; 4]> = self.receipt.charged().collect();
        let alike = |at: usize, other: usize| questions[at].shares_counter(&questions[other]);
        for (nth, (at, _)) in charged.iter().copied().enumerate() {
            let same = charged.iter().filter(|(other, _)| alike(at, *other));
            let units = same.fold(0, |sum: u64, (_, cost)| sum.saturating_add(*cost));
            self.leaves_more(at, units);
            // What is known of a counter is known of each quota once.
            let twice = |(other, _): &(usize, u64)| {
                alike(at, *other) && questions[at].quota == questions[*other].quota
            };
            if !charged.iter().take(nth).any(twice) {
                self.engine.unspend(self.ask.spot(&questions[at]), units);
            }
        }
        let leased: SmallVec<[_; 4]> = self.receipt.leased().collect();
        leased.into_iter().for_each(|at| self.leaves_more(at, 1));
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn leaves_more(&mut self, at: usize, units: u64) {
        let most = self.ask.questions[at].quota.capacity();
        if let Some(told) = &mut self.each[at].told {
            told.remaining = told.remaining.saturating_add(units).min(most);
        }
    }
}
