//! Word of the store that is asked for ahead, while the holder works.
//!
//! A word is good for T = 10 ms and H = 16 hand-overs. When both are over, the lock goes back to the store, and
//! whoever is next waits for a round trip with the lock idle. Where work under it takes milliseconds, that is one
//! trip for each or every other holder. So whoever's turn it is, the store is asked meanwhile, by [`Still`], if by what
//! turns here have taken so far the word will be too old at the end of this one, or few fences are left.
//!
//! # Why that weakens nothing
//!
//! - What a hand-over may do is decided by the [rules](super::rules) as ever, with the younger word, which counts from
//!   before it was asked for.
//! - It counts only while nobody it tells of came before whoever is next here. So who waits at another process is
//!   passed by no more, and for no longer, than one word allows.
//! - H counts from before it was asked for too: hand-overs while it was under way are taken off the new fences.
//! - Who joined while it was under way may have been told of before the answer came: both are believed.
//! - Its fences are larger than all before, and are used from the first hand-over that has them.
//! - It holds nothing and changes no lease, so renewal, release and loss need not know of it, and there is no undo. Its
//!   answer counts only while the same lease has the turn.
//! - "Lost": nothing is handed on any more, so the end of the turn asks the store.
//!
//! At most one is asked for in a turn, and only for those who could be next: none for a lock that nobody of this
//! process waits for, nor where somebody of another one comes first.
//!
//! [`Still`]: crate::store::Still

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    lines::Lines,
    map::{Line, Name},
    rules::{Fences, HandOver, Word},
};
use crate::store::{Store, LockToken};

/// Turns shorter than this end before the store could answer.
const SHORT: Duration = Duration::from_micros(100);

/// Beside turns longer than so many T, a round trip is nothing.
const LONG: u32 = 20;

/// So few fences are few: while those who have them work, the answer comes.
const FEW: u64 = 3;

/// What is known of the turns of a line, to ask in time.
#[derive(Default)]
pub(super) struct Ahead {
    bounds: HandOver,
    /// When the turn began that is on.
    began: Option<Instant>,
    /// How long turns take, a moving average.
    usual: Option<Duration>,
    /// Turns so far, each with one fence.
    turns: u64,
    /// Fences left to the turn that is on.
    left: u64,
    /// The turn in which the store was asked, or will be.
    asked: Option<u64>,
    /// The fence of a word that has come, whose lease it is, and how many turns there had been when it was asked for.
    more: Option<(LockToken, u64, u64)>,
}

impl Ahead {
    /// A grant of the store.
    pub(super) fn granted(&mut self, bounds: HandOver) {
        (self.bounds, self.left, self.more) = (bounds, bounds.most, None);
        self.begin();
    }

    /// A turn of this process follows another one.
    pub(super) fn handed_on(&mut self, fences: &Fences) {
        self.left = fences.left();
        self.turn_ended();
        self.begin();
    }

    fn begin(&mut self) {
        self.began = Some(Instant::now());
        self.turns += 1;
    }

    pub(super) fn turn_ended(&mut self) {
        if let Some(began) = self.began.take() {
            let took = began.elapsed();
            self.usual = Some(self.usual.map_or(took, |usual| (usual * 3 + took) / 4));
        }
    }

    /// The fences of a later word, if it has come.
    pub(super) fn bring(&mut self, me: &LockToken, fences: &mut Fences) {
        if let Some((_, fence, asked)) = self.more.take_if(|(whose, ..)| whose == me) {
            fences.anew(fence, self.turns - asked);
        }
    }

    /// When the store should be asked in the turn that is on.
    fn due(&self, word: &Word) -> Option<Instant> {
        let HandOver { most, within } = self.bounds;
        let (began, usual) = (self.began?, self.usual?);
        let worth = usual >= SHORT && usual / LONG <= within && most > 0;
        if !worth || self.asked == Some(self.turns) {
            return None;
        }
        let end = began + usual;
        if end.saturating_duration_since(word.sent()) >= within / 5 * 4 {
            // Late, so that it is good for more turns, and early enough to be there at the end of this one.
            return Some(end.checked_sub(within / 5 * 2).map_or(began, |at| at.max(began)));
        }
        (self.left <= FEW).then_some(began)
    }
}

/// To be put to the store in one turn.
pub(super) struct Question {
    due: Instant,
    me: LockToken,
    turn: u64,
}

impl Line {
    /// What the store should be asked in the turn that is on.
    pub(super) fn question(&mut self) -> Option<Question> {
        let word = self.word.as_ref()?;
        let due = self.ahead.due(word)?;
        let first = self.waiters.front()?;
        let [me] = &self.turns[..] else { return None };
        if !word.is_in_turn(first.came) {
            return None;
        }
        let (me, turn) = (me.clone(), self.ahead.turns);
        self.ahead.asked = Some(turn);
        Some(Question { due, me, turn })
    }

    fn is_in(&self, question: &Question) -> bool {
        self.turns.contains(&question.me) && self.ahead.turns == question.turn
    }
}

impl Lines {
    /// Puts it when it is due, if that turn is on then.
    pub(super) fn look_ahead(
        self: &Arc<Self>,
        store: &Store,
        name: &Name,
        question: Option<Question>,
    ) {
        if let Some(question) = question {
            let (lines, name, weak) = (Arc::downgrade(self), name.clone(), store.downgrade());
            store.spawn_background(async move {
                tokio::time::sleep_until(question.due).await;
                if let (Some(lines), Some(store)) = (lines.upgrade(), weak.upgrade()) {
                    lines.ask_ahead(&store, &name, question).await;
                }
            });
        }
    }

    async fn ask_ahead(&self, store: &Store, name: &Name, question: Question) {
        if !self.lines.lock().get(name).is_some_and(|line| line.is_in(&question)) {
            return;
        }
        let Question { me, turn, .. } = question;
        let sent = Instant::now();
        let answer = store.backend().refresh_grant(name.0.clone(), me.clone()).await;
        let mut lines = self.lines.lock();
        let Some(line) = lines.get(name).filter(|line| line.turns.contains(&me)) else { return };
        match (answer, &mut line.word) {
            (Ok(Some(still)), Some(word)) => {
                let later = word.followed_by(Word::new(sent, still.server_us, still.contenders));
                let first = line.waiters.front().map(|first| first.came);
                // Two turns may each have asked, and the younger answer be here already.
                let is_later = sent >= word.sent();
                // Whoever comes here now came after all that it tells of.
                if is_later && first.map_or(!later.others_wait(), |came| later.is_in_turn(came)) {
                    *word = later;
                    line.ahead.more = Some((me, still.fence, turn));
                } else {
                    word.joined(still.contenders);
                }
            }
            (Ok(None), word) => *word = None,
            (Ok(Some(_)), None) | (Err(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Node, Others};

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn hand_overs_while_it_was_under_way_are_taken_off() {
        let (bounds, me) = (HandOver { most: 4, within: 10 * MS }, Token::new(&Node::new()));
        let (mut ahead, mut fences) = (Ahead::default(), Fences::after(100, bounds));
        ahead.granted(bounds);
        let asked = ahead.turns;
        for fence in [101, 102] {
            assert_eq!(fences.next(), Some(fence));
            ahead.handed_on(&fences);
        }
        ahead.more = Some((me.clone(), 200, asked));
        ahead.bring(&Token::new(&Node::new()), &mut fences);
        assert_eq!(fences.left(), 2, "of another lease");
        ahead.bring(&me, &mut fences);
        assert_eq!([fences.next(), fences.next(), fences.next()], [Some(201), Some(202), None]);
        ahead.more = Some((me.clone(), 300, asked));
        ahead.turns = asked + 5;
        ahead.bring(&me, &mut fences);
        assert_eq!(fences.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_bound_is_too_great() {
        let bounds = HandOver { most: 16, within: Duration::MAX };
        let mut ahead = Ahead::default();
        ahead.granted(bounds);
        tokio::time::advance(MS).await;
        ahead.handed_on(&Fences::after(100, bounds));
        assert_eq!(ahead.due(&Word::new(Instant::now(), 1_000_000, Others::NOBODY)), None);
    }
}
