//! What is read of a request before anything is awaited.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::BoxFuture;

use super::{
    plan::{Limit, Plan},
    quotas::Found,
    status::{Charged, RateStatus},
    ticket::standings,
};
use crate::{
    gate::{Asked, KeyFault, View, current_replay},
    key::Key,
    rate_limit::{
        engine::{Ask, Engine, Question},
        quota::Quota,
    },
    store::Store,
};

const LAYER: &str = "RateLimitLayer";

/// What the limits need of a request.
pub struct RateLimitFacts {
    pub(super) store: Store,
    pub(super) engine: Arc<Engine>,
    pub(super) ask: Ask,
    /// Quotas that have to be asked for, and of which question.
    pub(super) quotas: Vec<(usize, BoxFuture<'static, Quota>)>,
    /// Of each question, which of the layer's policies it is about.
    pub(super) places: Vec<usize>,
    pub(super) outer: Option<RateStatus>,
}

impl<N: ?Sized> Plan<N> {
    pub(super) fn read<V: View<Native = N>>(&self, view: &mut V) -> Asked<RateLimitFacts> {
        // Charged when it was accepted.
        if current_replay(view).is_some() {
            return Asked::Skip;
        }
        if let Some(asked) = self.facing.ask(view, &self.limits[0].source) {
            return asked;
        }
        let (keys, group) = match self.keys(view) {
            Ok(read) => read,
            Err(fault) => return fault.answer(LAYER).map_or(Asked::Skip, Asked::Answer),
        };
        if let Some(asked) = self.facing.ask_keys(keys.iter().map(|(_, key)| key)) {
            return asked;
        }
        let Some(store) = self.store.clone().or_else(|| view.store()) else {
            return Asked::Answer(crate::outage::no_store(LAYER));
        };
        let engine = Engine::of(&store);
        let outer = view.get::<RateStatus>();
        let ask = Ask { questions: Vec::with_capacity(keys.len()), group };
        let (quotas, places) = (Vec::new(), Vec::with_capacity(keys.len()));
        let mut facts = RateLimitFacts { store, engine, ask, quotas, places, outer };
        for (at, key) in keys {
            facts.add(&self.limits[at], at, key, view);
        }
        if facts.ask.questions.is_empty() {
            return Asked::Skip;
        }
        // Nothing is waited for, and nothing else is done, for what is refused already.
        match facts.engine.remembered(&facts.ask).filter(|_| facts.quotas.is_empty()) {
            Some(decision) => Asked::Answer(self.facing.refuse(&standings(&decision))),
            None => Asked::Enter(facts),
        }
    }

    /// The keys of the policies that have one here, and that of the group.
    #[expect(clippy::type_complexity, reason = "a pair of what is taken apart at once")]
    fn keys<V: View<Native = N>>(
        &self,
        view: &mut V,
    ) -> Result<(Vec<(usize, Key)>, Option<Key>), KeyFault> {
        let mut keys = Vec::with_capacity(self.limits.len());
        let mut none = None;
        for (at, limit) in self.limits.iter().enumerate() {
            match limit.source.read(view) {
                Ok(key) => keys.push((at, key)),
                Err(fault) if fault.lets_pass() => none = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        match (keys.is_empty(), none) {
            (true, Some(fault)) => Err(fault),
            _ => Ok((keys, self.group.as_ref().map(|group| group.read(view)).transpose()?)),
        }
    }
}

impl RateLimitFacts {
    fn add<N: ?Sized, V: View<Native = N>>(
        &mut self,
        limit: &Limit<N>,
        at: usize,
        key: Key,
        view: &mut V,
    ) {
        let usual = limit.policy.default_cost();
        let cost = limit.cost_by.as_ref().map_or(usual, |cost| cost(view.native()));
        let mut question = Question::new(&limit.policy, key, cost);
        question.unsteady = limit.settles() || limit.quotas.is_some();
        let asked = match &limit.quotas {
            Some(quotas) => match quotas.find(&limit.policy, &question.key, view.native()) {
                Found::Known(quota) => {
                    question.quota = quota;
                    None
                }
                Found::Asked(asked) => Some(asked),
            },
            None => None,
        };
        let charged = self.outer.as_ref().map(|outer| outer.has_charged(&self.ask, &question));
        match charged.unwrap_or(Charged::Never) {
            Charged::Never => {}
            Charged::Alike if asked.is_none() => return warn_of_two(limit.policy.label()),
            Charged::Alike | Charged::Otherwise => warn_of_two(limit.policy.label()),
        }
        self.quotas.extend(asked.map(|asked| (self.ask.questions.len(), asked)));
        self.places.push(at);
        self.ask.questions.push(question);
    }
}

/// Logged once in a process.
fn warn_of_two(policy: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            policy,
            "two RateLimitLayers around one handler have a policy of one name, and count for one key: \
             the request is charged once if the quotas are the same, and twice if not; give one of them \
             another .name(..), or remove it"
        );
    }
}

impl fmt::Debug for RateLimitFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitFacts").field("ask", &self.ask).finish_non_exhaustive()
    }
}
