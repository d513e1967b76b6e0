//! What the store has said of late: refusals, to be repeated without asking, and what was left of the
//! others, to begin with if the store goes away.
//!
//! A refusal is good until the moment the store named, counted from before it was asked: at that moment
//! its own clock has come further. So repeating it is exact, unless something gives quota back sooner; what
//! may do so makes it unsteady, and then it is repeated for a short time only. Refusing a cost says
//! nothing of lesser ones, and of greater ones no more than that they have to wait longer still.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Engine,
    ask::{Ask, Question},
    check::Answer,
    counter_map::{CounterState, Spot},
};
use crate::{
    rate_limit::decision::{Decision, PolicyDecision, Told},
    store::QuotaSnapshot,
};

#[derive(Debug)]
pub(super) struct Known {
    /// When the call was sent that said so.
    sent: Instant,
    remaining: u64,
    reset_at: Instant,
    /// When all of it will be there, whatever is charged no more.
    full_at: Instant,
    refused: Option<Refusal>,
    /// What was said in answer to calls sent before is void.
    void_before: Option<Instant>,
}

/// An answer of the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// When it was asked for.
    pub(super) sent: Instant,
    /// What was left, if that is worth anything still.
    pub(super) left: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    cost: u64,
    /// Whoever costs more has to wait as long, and not longer.
    alike: bool,
    /// To be repeated until then.
    until: Instant,
    /// When the store will let it in.
    retry_at: Instant,
}

impl Known {
    fn nothing(sent: Instant) -> Self {
        Self { sent, remaining: 0, reset_at: sent, full_at: sent, refused: None, void_before: None }
    }

    /// What was said in answer to calls sent before this is worth nothing.
    fn void(&mut self, now: Instant) {
        (self.refused, self.void_before) = (None, Some(now));
    }

    /// What is left, if nothing newer is known of that.
    fn hear(&mut self, sent: Instant, state: &QuotaSnapshot) {
        if self.sent <= sent {
            (self.sent, self.remaining) = (sent, state.remaining);
            self.reset_at = after(Instant::now(), state.reset_after);
            self.full_at = after(sent, state.full_after);
        }
    }

    /// What is left to tell of it.
    fn tell(&self, cost: u64, now: Instant) -> Option<Told> {
        let refusal = self.refuses(cost, now);
        let retry = refusal.map_or(Duration::ZERO, |refusal| refusal.retry_at - now);
        let reset = self.reset_at.saturating_duration_since(now);
        let reset = if retry.is_zero() { reset } else { reset.min(retry).max(MOMENT) };
        let told = Told { remaining: self.remaining, reset, retry };
        (!reset.is_zero()).then_some(told)
    }

    fn refuses(&self, cost: u64, now: Instant) -> Option<Refusal> {
        self.refused.filter(|refusal| refusal.is_about(cost) && now < refusal.until)
    }

    /// Whether it may well be refused still, which is no longer repeated without asking.
    fn may_refuse(&self, cost: u64, now: Instant) -> bool {
        let lapsed = |refusal: Refusal| refusal.until <= now && now < refusal.retry_at;
        self.refused.is_some_and(|refusal| refusal.is_about(cost) && lapsed(refusal))
    }
}

impl Refusal {
    fn is_about(self, cost: u64) -> bool {
        self.cost == cost || (self.alike && cost > self.cost)
    }
}

impl CounterState for Known {
    /// A reset applies to the counter, under all quotas.
    fn inherit(&mut self, other: &Self) {
        self.void_before = self.void_before.max(other.void_before);
    }
}

/// A moment so far away that it need not be told apart from others.
pub(super) fn after(moment: Instant, time: Duration) -> Instant {
    moment + time.min(crate::clock::LONGEST)
}

impl Engine {
    /// Notes what the store said: also whoever was let in knows how long the next one has to wait.
    pub(super) fn note(
        &self,
        ask: &Ask,
        question: &Question,
        answer: &Answer,
        state: &QuotaSnapshot,
        given_back: bool,
    ) {
        let (sent, most) = (answer.sent, question.remembered(given_back));
        // The store has run in between. Nobody is refused for longer than it said, nor told a time that is too short.
        let heard = Instant::now();
        // Each refusal counts towards a penalty, so the store has to see them all, until it blocks.
        let counted = question.policy.penalised().is_some() && state.blocked_for.is_none();
        let lasts = !state.retry_after.is_zero() && state.retry_after < Duration::MAX;
        let keep = lasts && !counted && !self.is_by_hand();
        let refused = keep.then(|| Refusal {
            cost: ask.charged(question),
            // Until the window ends, whatever it costs.
            alike: question.quota.is_fixed() && state.blocked_for.is_none(),
            // And again when it blocks no more.
            until: after(sent, state.retry_after.min(most).min(state.blocked_for.unwrap_or(most))),
            retry_at: after(heard, state.retry_after),
        });
        self.known.enter(
            ask.spot(question),
            || Known::nothing(sent),
            |known| {
                if known.sent > sent || known.void_before.is_some_and(|moment| sent < moment) {
                    return;
                }
                *known = Known {
                    sent,
                    remaining: state.remaining,
                    reset_at: after(heard, state.reset_after),
                    full_at: after(sent, state.full_after),
                    // Who was refused for less knows too little now: somebody has spent since.
                    refused,
                    void_before: known.void_before,
                };
            },
        );
    }

    /// A lease was filled: this is what the store has left beside it. Whoever was refused before may have a unit now, so
    /// that is void, as by [`forget`](Self::forget).
    pub(super) fn note_rest(&self, spot: Spot<'_>, sent: Instant, state: &QuotaSnapshot) {
        let rest = |known: &mut Known| {
            known.void(Instant::now());
            known.hear(sent, state);
        };
        self.known.enter(spot, || Known::nothing(sent), rest);
    }

    /// Charges were changed, and this is left. Who was refused before is as he was.
    pub(super) fn note_changed(&self, spot: Spot<'_>, sent: Instant, state: &QuotaSnapshot) {
        let changed = |known: &mut Known| {
            if known.void_before.is_none_or(|moment| moment <= sent) {
                known.hear(sent, state);
            }
        };
        self.known.with(spot, changed);
    }

    /// So much of what was said to be spent is given back.
    pub(super) fn unspend(&self, spot: Spot<'_>, units: u64) {
        let most = spot.quota.capacity();
        let back = |known: &mut Known| {
            known.remaining = known.remaining.saturating_add(units).min(most);
        };
        self.known.with(spot, back);
    }

    /// The quota of this counter is larger than was said, from now on.
    pub(super) fn forget(&self, spot: Spot<'_>) {
        let now = Instant::now();
        self.known.enter(spot, || Known::nothing(now), |known| known.void(now));
    }

    /// Nor is anything spent of it by any other quota.
    pub(super) fn forget_all(&self, spot: Spot<'_>) {
        let now = Instant::now();
        self.known.each(spot, |known| known.void(now));
        self.forget(spot);
    }

    /// The refusal of all of this, if it need not be asked for.
    pub(in crate::rate_limit) fn remembered(&self, ask: &Ask) -> Option<Decision> {
        let now = Instant::now();
        let each = match &ask.questions[..] {
            // One look is enough for most.
            [question] if question.binds() => {
                let told = self.told(ask, question, now).filter(|told| !told.retry.is_zero())?;
                self.is_final(ask, question, Some(told))?
                    .then(|| smallvec::smallvec![recalled(question, Some(told))])?
            }
            questions => {
                let mut refused = false;
                for (_, question) in ask.binding() {
                    refused |= self.is_final(ask, question, self.told(ask, question, now))?;
                    // It may have to be waited for longer than those that refuse for sure.
                    if self.may_refuse(ask, question, now) {
                        return None;
                    }
                }
                let recall = |question: &Question| {
                    let told = question.binds().then(|| self.told(ask, question, now)).flatten();
                    // What is left of a lease is not known of the store.
                    let leased = question.leased().map_or(0, |_| self.units(ask.spot(question)));
                    let told = told.map(|told| Told { remaining: told.remaining + leased, ..told });
                    recalled(question, told)
                };
                refused.then(|| questions.iter().map(recall).collect())?
            }
        };
        Some(Decision { admitted: false, local: false, each })
    }

    /// What is told of a question that is refused for sure, by what is known.
    pub(super) fn refusal(&self, ask: &Ask, question: &Question) -> Option<Told> {
        let told = self.told(ask, question, Instant::now());
        told.filter(|_| self.is_final(ask, question, told) == Some(true))
    }

    /// Whether what is known refuses the question. `None`: the store has to be asked, whoever else refuses.
    fn is_final(&self, ask: &Ask, question: &Question, told: Option<Told>) -> Option<bool> {
        let refused = told.is_some_and(|told| !told.retry.is_zero());
        // It might be its turn to say that no waiting helps, or to count this refusal.
        if question.is_too_dear() || (!refused && question.policy.penalised().is_some()) {
            return None;
        }
        Some(refused && (question.leased().is_none() || !self.has_units(ask.spot(question))))
    }

    fn may_refuse(&self, ask: &Ask, question: &Question, now: Instant) -> bool {
        let cost = ask.charged(question);
        self.known.with(ask.spot(question), |known| known.may_refuse(cost, now)).unwrap_or(false)
    }

    /// What is left to tell of a question.
    fn told(&self, ask: &Ask, question: &Question, now: Instant) -> Option<Told> {
        let cost = ask.charged(question);
        self.known.with(ask.spot(question), |known| known.tell(cost, now)).flatten()
    }

    /// What is left of a question's quota, and until there is more, as far as is known: what it costs does not matter.
    pub(super) fn rest(&self, ask: &Ask, question: &Question) -> (u64, Duration) {
        let (spot, quota, now) = (ask.spot(question), question.quota, Instant::now());
        let left = |known: &mut Known| {
            let reset = known.reset_at.saturating_duration_since(now);
            (known.full_at > now).then_some((known.remaining, reset))
        };
        // As the store tells of a key that has spent nothing.
        let whole = if quota.is_fixed() { quota.window() } else { Duration::ZERO };
        let known = self.known.with(spot, left).flatten();
        let (remaining, reset) = known.unwrap_or((quota.capacity(), whole));
        (remaining.saturating_add(self.units(spot)).min(quota.capacity()), reset)
    }

    /// What the store has said last, if anything was spent by then.
    pub(super) fn last_seen(&self, ask: &Ask, question: &Question) -> Option<Seen> {
        let now = Instant::now();
        let seen = |known: &mut Known| {
            let left = (known.full_at > now).then_some(known.remaining);
            // A place that was made to forget something has heard of nothing.
            (known.full_at > known.sent).then_some(Seen { sent: known.sent, left })
        };
        self.known.with(ask.spot(question), seen).flatten()
    }
}

fn recalled(question: &Question, told: Option<Told>) -> PolicyDecision {
    let violated = told.is_some_and(|told| !told.retry.is_zero());
    PolicyDecision { told, violated, ..PolicyDecision::new(&question.policy, question.quota) }
}

/// What is told of a window that ends this instant.
const MOMENT: Duration = Duration::from_millis(1);
