//! What is read of a request before anything is awaited.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{
    plan::{Counting, Limit, Plan},
    quotas::Found,
    status::{At, Charged, RateStatus},
    ticket::standings,
};
use crate::{
    gate::{Asked, KeyFault, RememberedRun, Replay, View, current_replay},
    rate_limit::{
        engine::{Ask, Engine, Question},
        quota::Quota,
        standing::Standing,
    },
    reply::Reply,
    store::Store,
};

const LAYER: &str = "RateLimitLayer";

/// What the limits need of a request.
pub struct RateLimitFacts {
    /// What the application gave to the request, if the layer has none of its own.
    found: Option<(Store, Arc<Engine>)>,
    /// Of that, or the layer's own.
    pub(super) at: At,
    pub(super) ask: Ask,
    /// Quotas that have to be asked for, and of which policy.
    pub(super) quotas: Vec<(usize, BoxFuture<'static, Quota>)>,
    pub(super) outer: Option<RateStatus>,
    /// A run of a deferred request that was not charged yet.
    pub(super) run: Option<Replay>,
    /// The remembered run that the request belongs to.
    pub(super) remembered: Option<RememberedRun>,
}

impl<N: ?Sized> Plan<N> {
    #[expect(clippy::indexing_slicing, reason = "a question has the place of its own limit")]
    pub(super) fn read<V: View<Native = N>>(
        &self,
        view: &mut V,
    ) -> Asked<RateLimitFacts, Option<RateStatus>> {
        let run = current_replay(view);
        // Outside of its lock it was asked when it was accepted; to what is within nobody comes while that is held.
        if run.as_ref().is_some_and(|run| !run.was_seen()) {
            return Asked::Skip;
        }
        let sources = self.limits.iter().map(|limit| &limit.source);
        if let Some(asked) = self.facing.ask(view, sources) {
            return asked;
        }
        // What was accepted is refused by no quota any more.
        let asks = run.is_none();
        let mut ask = match self.questions(view) {
            Ok(read) => read,
            // It comes without credentials.
            Err(_) if !asks => return Asked::Skip,
            Err(fault) => return fault.answer(LAYER).map_or(Asked::Skip, Asked::Answer),
        };
        let keys = ask.questions.iter().map(|each| &each.key);
        if let Some(asked) = self.facing.ask_keys(keys) {
            return asked;
        }
        // An earlier attempt was charged.
        if run.as_ref().is_some_and(|run| run.deferred().attempt > 1) {
            return Asked::Skip;
        }
        let found = match self.own() {
            Some(_) => None,
            None => view.store().map(|store| {
                let engine = Engine::of(&store);
                (store, engine)
            }),
        };
        let Some((store, engine)) = counting(self, &found) else {
            return Asked::Answer(no_store());
        };
        let mut quotas = Vec::new();
        for question in &mut ask.questions {
            let asked = self.limits[question.place].complete(question, view);
            quotas.extend(asked.map(|asked| (question.place, asked)));
        }
        let (at, outer) = (At::of(store), RateStatus::last(view));
        if let Some(outer) = &outer
            && self.is_charged(&mut ask, at, outer, &quotas)
        {
            return Asked::Skip;
        }
        // Nothing is waited for, and nothing else is done, for what is refused already, or was charged in advance.
        if asks && quotas.is_empty() {
            if !self.settles()
                && let Some(decision) = engine.at_hand(store, &ask)
            {
                let status = RateStatus::new(decision, (ask, at), None, outer);
                status.put(view);
                return Asked::Pass(Some(status));
            }
            if let Some(decision) = engine.remembered(&ask) {
                return self.refuse(&standings(&decision));
            }
        }
        let remembered = RememberedRun::of(view);
        Asked::Enter(RateLimitFacts { found, at, ask, quotas, outer, run, remembered })
    }

    fn refuse<F, T>(&self, standings: &[Standing<'_>]) -> Asked<F, T> {
        match standings {
            // Its answer hangs on nothing else.
            [one] if self.limits.len() == 1 && !self.facing.responds() => {
                Asked::Again(self.again.refuse(one, || self.facing.refuse(standings)))
            }
            _ => Asked::Answer(self.facing.refuse(standings)),
        }
    }

    /// The policies that have a key here, and the key of the group.
    fn questions<V: View<Native = N>>(&self, view: &mut V) -> Result<Ask, KeyFault> {
        let mut questions = SmallVec::with_capacity(self.limits.len());
        let mut none = None;
        for (place, limit) in self.limits.iter().enumerate() {
            match limit.source.read(view) {
                Ok(key) => {
                    let cost = limit.policy.default_cost();
                    questions.push(Question { place, ..Question::new(&limit.policy, key, cost) });
                }
                Err(fault) if fault.lets_pass() => none = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        match none {
            Some(fault) if questions.is_empty() => Err(fault),
            _ => {
                let group = self.group.as_ref().map(|group| group.read(view)).transpose()?;
                Ok(Ask { questions, group })
            }
        }
    }
}

impl<N: ?Sized> Plan<N> {
    /// Takes out what a layer further out has charged already; true if nothing is left to be asked.
    fn is_charged(
        &self,
        ask: &mut Ask,
        at: At,
        outer: &RateStatus,
        quotas: &[(usize, BoxFuture<'static, Quota>)],
    ) -> bool {
        let differs = |place: usize| {
            // A quota that is not known yet might be another one; and nobody else changes what is charged here.
            quotas.iter().any(|(asked, _)| *asked == place)
                || self.limits.get(place).is_some_and(Limit::settles)
        };
        let (group, mut questions) = (ask.group.take(), std::mem::take(&mut ask.questions));
        questions.retain(|question| match outer.has_charged(at, group.as_ref(), question) {
            Charged::Never => true,
            charged => {
                warn_of_two(question.policy.label());
                charged == Charged::Otherwise || differs(question.place)
            }
        });
        *ask = Ask { questions, group };
        ask.questions.is_empty()
    }
}

impl<N: ?Sized> Limit<N> {
    /// What depends on the request; the quota, if it has to be asked for.
    fn complete<V: View<Native = N>>(
        &self,
        question: &mut Question,
        view: &mut V,
    ) -> Option<BoxFuture<'static, Quota>> {
        if let Some(cost) = &self.cost_by {
            question.cost = cost(view.native());
        }
        question.unsteady = self.settles() || self.quotas.is_some();
        match self.quotas.as_ref()?.find(&self.policy, &question.key, view.native()) {
            Found::Known(quota) => {
                question.quota = quota;
                None
            }
            Found::Asked(asked) => Some(asked),
        }
    }
}

/// Logged once in a process.
fn warn_of_two(policy: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            policy,
            "two RateLimitLayers around one handler have a policy of one name, and count for one key: \
             the request is charged once if they ask the same of it, and twice if not; give one of them \
             another .name(..), or remove it"
        );
    }
}

/// Where the requests of this layer are counted, or those with this store.
fn counting<'a, N: ?Sized>(
    plan: &'a Plan<N>,
    found: &'a Option<(Store, Arc<Engine>)>,
) -> Option<Counting<'a>> {
    plan.own().or_else(|| found.as_ref().map(|(store, engine)| (store, engine)))
}

pub(super) fn no_store() -> Reply {
    crate::outage::no_store(LAYER)
}

impl RateLimitFacts {
    /// There is one: it was asked.
    pub(super) fn counting<'a, N: ?Sized>(&'a self, plan: &'a Plan<N>) -> Option<Counting<'a>> {
        counting(plan, &self.found)
    }

    /// Asks for the quotas.
    pub(super) async fn complete(&mut self) {
        for (place, quota) in self.quotas.drain(..) {
            let (quota, all) = (quota.await, self.ask.questions.iter_mut());
            all.filter(|each| each.place == place).for_each(|each| each.quota = quota);
        }
    }
}

impl fmt::Debug for RateLimitFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitFacts").field("ask", &self.ask).finish_non_exhaustive()
    }
}
