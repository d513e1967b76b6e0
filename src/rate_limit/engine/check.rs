//! One check: what is asked of whom, in which order, and what is taken back.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::{
    Engine,
    ask::{Ask, Group, Groups, Question},
    lease::Spent,
    receipt::Receipt,
};
use crate::{
    error::Error,
    key::Key,
    outage::Outage,
    rate_limit::decision::{Decision, PolicyDecision, Told},
    store::{Charge, Charged, States, Store},
};

/// A decision, and what was paid for it.
#[derive(Debug)]
pub(in crate::rate_limit) struct Checked {
    pub(in crate::rate_limit) decision: Decision,
    /// Dropped, it gives all of it back; see [`Receipt::keep`].
    pub(in crate::rate_limit) receipt: Receipt,
}

/// What the store said.
#[derive(Debug)]
pub(super) struct Answer {
    /// A moment before it was asked.
    pub(super) sent: Instant,
    pub(super) admitted: bool,
    pub(super) states: States,
}

impl Answer {
    fn of(sent: Instant, said: Result<Charged, Error>) -> Result<Self, Error> {
        let Charged { admitted, states } = said?;
        Ok(Self { sent, admitted: admitted > 0, states })
    }
}

/// The charge of one question, and the moment before it.
fn asked<'a>(
    store: &'a Store,
    question: &Question,
    tag: &Key,
) -> (Instant, BoxFuture<'a, Result<Charged, Error>>) {
    let items = question.item().map_or_else(|| Arc::new([]) as Arc<[_]>, |item| Arc::new([item]));
    let charge = Charge { tag: tag.clone(), items, times: 1 };
    (Instant::now(), store.backend().charge(charge))
}

struct Checking<'a> {
    engine: &'a Arc<Engine>,
    store: &'a Store,
    ask: &'a Ask,
    each: SmallVec<[PolicyDecision; 1]>,
    receipt: Receipt,
    local: bool,
}

impl Engine {
    /// Charges all or nothing. `receipts`: whether charges may be changed later.
    ///
    /// Dropped at any point, it gives back what was charged, save by a call that is under way: whether
    /// that one has run can't be known, and giving back what was never taken would let somebody in.
    pub(in crate::rate_limit) async fn check(
        self: &Arc<Self>,
        store: &Store,
        ask: &Ask,
        receipts: bool,
    ) -> Result<Checked, Error> {
        match self.remembered(ask) {
            Some(decision) => Ok(Checked { decision, receipt: Receipt::default() }),
            None => self.charge(store, ask, receipts).await,
        }
    }

    /// As `check`, for who has looked already whether the answer is known.
    pub(in crate::rate_limit) async fn charge(
        self: &Arc<Self>,
        store: &Store,
        ask: &Ask,
        receipts: bool,
    ) -> Result<Checked, Error> {
        self.tend(store, ask);
        // What few requests need has a box of its own: the futures of all are moved about.
        match ask.only().filter(|question| !self.is_away() && !question.is_too_dear()) {
            Some(question) => {
                let (sent, call) = asked(store, question, ask.tag(question));
                let answer = Answer::of(sent, call.await);
                let mut checking = Checking::new(self, store, ask);
                let group = (ask.tag(question), smallvec![0]);
                let admitted = checking.hear(&group, answer, receipts, receipts)?;
                Ok(checking.done(admitted))
            }
            None => Box::pin(self.charge_all(store, ask, receipts)).await,
        }
    }

    async fn charge_all(
        self: &Arc<Self>,
        store: &Store,
        ask: &Ask,
        receipts: bool,
    ) -> Result<Checked, Error> {
        let mut checking = Checking::new(self, store, ask);
        let admitted = !checking.is_hopeless() && checking.enforce(receipts).await?;
        if admitted && ask.questions.iter().any(|question| question.policy.is_shadow()) {
            checking.watch().await;
        }
        Ok(checking.done(admitted))
    }

    /// What `check` would say now. Charges nothing, and asks the store whatever is remembered.
    pub(in crate::rate_limit) async fn peek(
        self: &Arc<Self>,
        store: &Store,
        ask: &Ask,
    ) -> Result<Decision, Error> {
        let mut checking = Checking::new(self, store, ask);
        if checking.is_hopeless() {
            let Checking { each, .. } = checking;
            return Ok(Decision { admitted: false, local: false, each });
        }
        let counting = ask.questions.iter().enumerate().filter(|(_, q)| q.counts());
        let groups = ask.groups(counting.map(|(at, _)| at));
        let answers = join_all(groups.iter().map(|group| checking.call(group, 0))).await;
        for ((_, members), answer) in groups.iter().zip(answers) {
            checking.tell(members, &answer?, true);
        }
        let Checking { each, .. } = checking;
        let admitted = !each.iter().any(|each| each.violated && !each.policy.is_shadow());
        Ok(Decision { admitted, local: false, each })
    }
}

impl<'a> Checking<'a> {
    fn new(engine: &'a Arc<Engine>, store: &'a Store, ask: &'a Ask) -> Self {
        let decision = |question: &Question| PolicyDecision::new(&question.policy, question.quota);
        let each = match &ask.questions[..] {
            [question] => smallvec![decision(question)],
            all => all.iter().map(decision).collect(),
        };
        Self { engine, store, ask, each, receipt: Receipt::default(), local: false }
    }

    fn done(self, admitted: bool) -> Checked {
        let Self { each, receipt, local, .. } = self;
        Checked { decision: Decision { admitted, local, each }, receipt }
    }

    /// Whether a policy can never let the request in, since it costs more than that ever has.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn is_hopeless(&mut self) -> bool {
        let mut hopeless = false;
        for (at, _) in self.ask.binding().filter(|(_, question)| question.is_too_dear()) {
            let each = &mut self.each[at];
            each.told = Some(Told { remaining: 0, reset: Duration::ZERO, retry: Duration::MAX });
            (each.violated, hopeless) = (true, true);
        }
        hopeless
    }

    /// Charges the policies that count; true if all of them let the request in.
    async fn enforce(&mut self, receipts: bool) -> Result<bool, Error> {
        let ask = self.ask;
        let is_local =
            |(_, question): (usize, &Question)| question.policy.outage() == Outage::Local;
        if self.engine.is_away() && ask.binding().all(is_local) {
            return Ok(self.alone(ask.binding().map(|(at, _)| at)));
        }
        let mut settled = Vec::new();
        for (at, question) in ask.binding() {
            let Some(most) = question.leased() else { continue };
            match self.spend_lease(at, question, most).await? {
                Some(true) => settled.push(at),
                Some(false) => {
                    // Nobody else was asked yet, and somebody may have to be waited for longer.
                    let others = ask.binding().filter(|(other, question)| {
                        let has_units = self.engine.has_units(ask.spot(question));
                        *other != at && !settled.contains(other) && !has_units
                    });
                    let unasked = ask.groups(others.map(|(other, _)| other));
                    return Ok(self.refuse(&unasked).await);
                }
                None => {}
            }
        }
        let unpaid = ask.binding().filter(|(at, _)| !settled.contains(at));
        let groups = ask.groups(unpaid.map(|(at, _)| at));
        // Calls that come after a charge, in which it may have to be given back.
        let watched = ask.questions.iter().any(|each| each.policy.is_shadow());
        let more = groups.len() > 1 || watched;
        let mut rest = &groups[..];
        while let Some((group, later)) = rest.split_first() {
            rest = later;
            let given_back = receipts || watched || !later.is_empty();
            if !self.charge(group, given_back, more || receipts).await? {
                return Ok(self.refuse(later).await);
            }
        }
        Ok(true)
    }

    /// From a lease: whether the quota is spent. `None` leaves the question to the store.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    async fn spend_lease(
        &mut self,
        at: usize,
        question: &Question,
        most: u32,
    ) -> Result<Option<bool>, Error> {
        let ask = self.ask;
        let spot = ask.spot(question);
        let Spent { sent, state, unit } =
            match self.engine.unit(self.store, spot, question, most).await {
                Ok(Some(spent)) => spent,
                Ok(None) => return Ok(None),
                Err(error) => return self.without_store(&[at], error).map(Some),
            };
        if sent.is_some() {
            self.engine.answers();
        }
        let admitted = unit.is_some();
        if let Some(unit) = unit {
            self.receipt.of(self.engine, self.store).add_unit(spot, at, unit);
        }
        match sent {
            Some(sent) if !admitted => {
                self.tell(&[at], &Answer { sent, admitted, states: smallvec![state] }, true);
            }
            _ => self.each[at].told = Some(Told { retry: Duration::ZERO, ..Told::of(&state) }),
        }
        Ok(Some(admitted))
    }

    /// Charges a group.
    async fn charge(
        &mut self,
        group: &Group<'_>,
        given_back: bool,
        receipt: bool,
    ) -> Result<bool, Error> {
        let answer = self.call(group, 1).await;
        self.hear(group, answer, given_back, receipt)
    }

    /// Takes what the store said to the charge of a group.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn hear(
        &mut self,
        group: &Group<'_>,
        answer: Result<Answer, Error>,
        given_back: bool,
        receipt: bool,
    ) -> Result<bool, Error> {
        match answer {
            Ok(answer) => {
                self.engine.answers();
                self.tell(&group.1, &answer, given_back);
                let paid = group.1.iter().zip(&answer.states);
                for (at, state) in paid.filter(|_| receipt && answer.admitted) {
                    let question = &self.ask.questions[*at];
                    let receipt = self.receipt.of(self.engine, self.store);
                    receipt.add(group.0, question, *at, state.window);
                }
                Ok(answer.admitted)
            }
            Err(error) => self.without_store(&group.1, error),
        }
    }

    /// Errors of the store are decided by the policies it was asked about.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn without_store(&mut self, members: &[usize], error: Error) -> Result<bool, Error> {
        let outage = |at: &usize| self.ask.questions[*at].policy.outage();
        self.engine.fails(&error);
        if members.iter().any(|at| outage(at) == Outage::Refuse) {
            return Err(error);
        }
        tracing::warn!(%error, "quota decided without the store");
        let local: Vec<_> =
            members.iter().copied().filter(|at| outage(at) == Outage::Local).collect();
        Ok(self.alone(local.into_iter()))
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    async fn call(&self, group: &Group<'_>, times: u32) -> Result<Answer, Error> {
        let (tag, members) = group;
        let items = members.iter().filter_map(|at| self.ask.questions[*at].item()).collect();
        let charge = Charge { tag: (*tag).clone(), items, times };
        let sent = Instant::now();
        Answer::of(sent, self.store.backend().charge(charge).await)
    }

    /// Notes what was said, of which those are refused that say they have to wait, unless all are admitted: then it
    /// is the next who would have to.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn tell(&mut self, members: &[usize], answer: &Answer, given_back: bool) {
        for (at, state) in members.iter().zip(&answer.states) {
            let each = &mut self.each[*at];
            let told = Told::of(state);
            each.violated = !answer.admitted && !state.retry.is_zero();
            let retry = if each.violated { told.retry } else { Duration::ZERO };
            each.told = Some(Told { retry, ..told });
            self.engine.note(self.ask, &self.ask.questions[*at], answer, state, given_back);
        }
    }

    /// Takes back what was charged, and finds out who else would have refused. Always false.
    async fn refuse(&mut self, unasked: &[Group<'_>]) -> bool {
        let back = self.receipt.give_back();
        let answers = join_all(unasked.iter().map(|group| self.call(group, 0))).await;
        for ((_, members), answer) in unasked.iter().zip(answers) {
            // Who can't be asked is not named.
            if let Ok(answer) = answer {
                self.tell(members, &answer, true);
            }
        }
        if let Some(back) = back {
            // It is done, or its runtime has ended.
            let _ = back.await;
        }
        false
    }

    /// Decides without the store.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn alone(&mut self, members: impl Iterator<Item = usize>) -> bool {
        self.local = true;
        let mut admitted = true;
        for at in members {
            let question = &self.ask.questions[at];
            if let Err(retry) = self.engine.decide(self.ask, question) {
                let each = &mut self.each[at];
                each.told = Some(Told { remaining: 0, reset: retry, retry });
                each.violated = true;
                admitted = false;
            }
        }
        admitted
    }

    /// Charges the policies that are only watched, each on its own; nothing they say has consequences.
    async fn watch(&mut self) {
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
