//! One check: what is asked of whom, in which order, and what is taken back.

mod answer;
mod back;
mod watch;
mod without;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

pub(super) use self::answer::Answer;
use self::answer::asked;
use super::{
    Engine,
    ask::{Ask, Question},
    lease::Spent,
    receipt::Receipt,
};
use crate::{
    error::Error,
    rate_limit::decision::{Decision, PolicyDecision, Told},
    store::Store,
};

/// A decision, and what was paid for it.
#[derive(Debug)]
pub(in crate::rate_limit) struct Checked {
    pub(in crate::rate_limit) decision: Decision,
    /// Dropped, it gives all of it back; see [`Receipt::keep`].
    pub(in crate::rate_limit) receipt: Receipt,
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
        let is_asked = |q: &&Question| !self.is_away(store, ask.tag(q)) && !q.is_too_dear();
        match ask.only().filter(is_asked) {
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
            checking.watch(receipts).await;
        }
        if admitted && receipts {
            checking.owe();
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
        // What costs nothing is a look at what is left, and at whether the key is blocked.
        for (each, question) in checking.each.iter_mut().zip(&ask.questions) {
            if question.quota.is_zero() {
                (each.told, each.violated) = (Some(question.told_of_zero()), question.cost > 0);
            }
        }
        let is_counted = |q: &Question| !q.quota.is_unlimited() && !q.quota.is_zero();
        let told = ask.questions.iter().enumerate().filter(|(_, q)| is_counted(q));
        let groups = ask.groups(told.map(|(at, _)| at));
        let answers = join_all(groups.iter().map(|group| checking.call(group, 0))).await;
        for ((_, members), answer) in groups.iter().zip(answers) {
            checking.tell(members, &answer?, true);
        }
        checking.add_units();
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

    /// Whether a policy can never let the request in, since it costs more than that ever has. A quota of 0 is not the
    /// request's fault, and may be that of a plan that changes: its refusal has an end.
    #[expect(
        clippy::indexing_slicing,
        reason = "places are those of its own questions, and there is one of each for each of them"
    )]
    fn is_hopeless(&mut self) -> bool {
        let mut hopeless = false;
        for (at, question) in self.ask.binding().filter(|(_, question)| question.is_too_dear()) {
            // Others may be within what is left.
            let (remaining, reset) = self.engine.rest(self.ask, question);
            let each = &mut self.each[at];
            let told = Told { remaining, reset, retry: Duration::MAX };
            each.told = Some(if question.quota.is_zero() { question.told_of_zero() } else { told });
            (each.violated, hopeless) = (true, true);
        }
        hopeless
    }

    /// What this process has charged in advance is there for whoever asks it, whatever the store has left.
    fn add_units(&mut self) {
        for (each, question) in self.each.iter_mut().zip(&self.ask.questions) {
            if question.cost > 0 && question.leased().is_none() {
                continue;
            }
            let units = self.engine.units(self.ask.spot(question));
            if let (1.., Some(told)) = (units, &mut each.told) {
                (told.remaining, told.retry, each.violated) =
                    (told.remaining + units, Duration::ZERO, false);
            }
        }
    }

    /// Charges the policies that count; true if all of them let the request in.
    async fn enforce(&mut self, receipts: bool) -> Result<bool, Error> {
        let ask = self.ask;
        let is_alone = |(at, question)| self.is_alone(ask.tag(question), &[at]);
        if ask.binding().any(is_alone) && ask.binding().all(is_alone) {
            return Ok(self.alone(ask.binding().map(|(at, _)| at)));
        }
        let mut settled = Vec::new();
        for (at, question) in ask.binding() {
            let in_advance = question.leased().filter(|_| !self.is_alone(ask.tag(question), &[at]));
            let Some(most) = in_advance else { continue };
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
                Err(error) => {
                    let group = (ask.tag(question), smallvec![at]);
                    return self.without_store(&group, error).map(Some);
                }
            };
        if sent.is_some() {
            self.engine.answers(self.store, spot.tag);
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
}
