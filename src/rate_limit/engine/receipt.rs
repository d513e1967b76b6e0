//! What was paid, and how it is given back or put right.

use std::sync::Arc;

use super::{
    Engine,
    ask::{Ask, Question},
    counter_map::{Place, Spot},
    lease::Unit,
    settle::Done,
};
use crate::{
    key::Key,
    store::{AdjustmentKind, SettleChargeCommand, ChargeAdjustment, Store, ChargedWindow},
};

/// Charges that can still be changed. Dropped, all of it is given back, in the background.
#[derive(Debug, Default)]
pub(in crate::rate_limit) struct Receipt {
    /// There if anything is. Most have nothing, and all threads count who holds these two.
    of: Option<(Arc<Engine>, Store)>,
    charges: Vec<Paid>,
    units: Vec<(usize, Place, Unit)>,
}

#[derive(Debug)]
struct Paid {
    /// Which of the questions it answers.
    at: usize,
    tag: Key,
    question: Question,
    window: ChargedWindow,
}

impl Receipt {
    /// To be added to.
    pub(super) fn of(&mut self, engine: &Arc<Engine>, store: &Store) -> &mut Self {
        self.of.get_or_insert_with(|| (Arc::clone(engine), store.clone()));
        self
    }

    pub(super) fn add(&mut self, tag: &Key, question: &Question, at: usize, window: ChargedWindow) {
        self.charges.push(Paid { at, tag: tag.clone(), question: question.clone(), window });
    }

    pub(super) fn add_unit(&mut self, spot: Spot<'_>, at: usize, unit: Unit) {
        self.units.push((at, Place::of(spot), unit));
    }

    /// What the store has charged, by the place of the question.
    pub(super) fn charged(&self) -> impl Iterator<Item = (usize, u64)> {
        self.charges.iter().map(|paid| (paid.at, paid.question.cost))
    }

    /// The questions that were paid out of a lease.
    pub(super) fn leased(&self) -> impl Iterator<Item = usize> {
        self.units.iter().map(|(at, ..)| *at)
    }

    /// The request goes in: what it cost stays charged.
    pub(in crate::rate_limit) fn keep(mut self) {
        self.units.clear();
        self.charges.clear();
    }

    /// Gives back all of it.
    pub(super) fn give_back(&mut self) -> Option<Done> {
        self.change(|_, _| 0)
    }

    /// Makes each question have cost this, of its place and of what it has cost so far.
    ///
    /// What the store does not answer is not tried again, since it may have been done; for what it can't have done see
    /// [`settle`](super::settle).
    pub(in crate::rate_limit) fn settle(
        mut self,
        costs: impl Fn(usize, u64) -> u64,
    ) -> Option<Done> {
        self.change(costs)
    }

    fn change(&mut self, costs: impl Fn(usize, u64) -> u64) -> Option<Done> {
        let (engine, store) = self.of.as_ref()?;
        let mut calls: Vec<SettleChargeCommand> = Vec::new();
        for (at, place, unit) in self.units.drain(..) {
            match costs(at, 1) {
                0 => calls.extend(engine.put_back(&place, &unit)),
                1 => {}
                more => calls.extend(place.settled(AdjustmentKind::Charge { units: more - 1 })),
            }
        }
        for paid in self.charges.drain(..) {
            let Some(settled) = paid.settled(costs(paid.at, paid.question.cost)) else { continue };
            if matches!(settled.kind, AdjustmentKind::Refund { .. }) {
                let group = Some(paid.tag.clone());
                let ask = Ask { questions: smallvec::SmallVec::new(), group };
                engine.forget(ask.spot(&paid.question));
            }
            match calls.iter_mut().find(|call| call.tag == paid.tag) {
                Some(call) => call.items.push(settled),
                None => calls.push(SettleChargeCommand { tag: paid.tag, items: vec![settled] }),
            }
        }
        (!calls.is_empty()).then(|| engine.settle(store, calls))
    }
}

impl Engine {
    /// Charges what was let in already, more than is left too; the policies of these places.
    pub(in crate::rate_limit) fn charge_late(
        self: &Arc<Self>,
        store: &Store,
        ask: &Ask,
        charges: impl Fn(usize) -> bool,
    ) -> Option<Done> {
        let mut calls: Vec<SettleChargeCommand> = Vec::new();
        for question in ask.questions.iter().filter(|each| charges(each.place) && each.cost > 0) {
            let (tag, by) = (ask.tag(question), AdjustmentKind::Charge { units: question.cost });
            let Some(settled) = question.settled(by) else { continue };
            match calls.iter_mut().find(|call| call.tag == *tag) {
                Some(call) => call.items.push(settled),
                None => calls.push(SettleChargeCommand { tag: tag.clone(), items: vec![settled] }),
            }
        }
        (!calls.is_empty()).then(|| self.settle(store, calls))
    }
}

impl Paid {
    /// What has to be changed for it to have cost this.
    fn settled(&self, cost: u64) -> Option<ChargeAdjustment> {
        let (was, window) = (self.question.cost, self.window);
        let by = match cost {
            less if less < was => AdjustmentKind::Refund { units: was - less, window },
            more if more > was => AdjustmentKind::Charge { units: more - was },
            _ => return None,
        };
        self.question.settled(by)
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
