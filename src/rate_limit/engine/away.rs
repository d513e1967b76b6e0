//! While the store is away: a limit in this process alone, at its share of the quota.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Engine,
    alone::{Alone, Share, cells},
    ask::{Ask, Question},
    ways::Ways,
};
use crate::error::{Error, ErrorKind};

/// So long the store must have answered before it is asked again: a store that comes and goes would have
/// every key limited by both, in turns.
const WELL: Duration = Duration::from_secs(1);

/// Failures without a success between them, after which the store counts as away.
const FAILURES: u32 = 3;

/// Whether the store is away, and what is decided meanwhile.
#[derive(Default)]
pub(super) struct Away {
    /// Requests are decided here.
    away: AtomicBool,
    failures: AtomicU32,
    /// Since when it has answered again.
    well_since: Mutex<Option<Instant>>,
    processes: AtomicU64,
    limiters: Ways<Alone>,
}

impl Away {
    /// How many processes share the quotas, this one included, as far as is known.
    pub(super) fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed).max(1)
    }

    /// The store has answered a call that is made every now and then.
    pub(super) fn beats(&self, processes: usize) {
        let now = Instant::now();
        let since = *self.well_since.lock().get_or_insert(now);
        let away = self.away.load(Ordering::Acquire);
        if away && now - since < WELL {
            // Who was away for long is not counted any more until he has told that he is there, too.
            self.processes.fetch_max(processes as u64, Ordering::Relaxed);
            return;
        }
        self.processes.store(processes as u64, Ordering::Relaxed);
        if away {
            self.failures.store(0, Ordering::Relaxed);
            // What was let in here is not charged there. It still counts here, should the store go again at once:
            // else each time it comes and goes would be another burst.
            self.limiters.retain(|_, alone| !alone.has_all_again());
            self.away.store(false, Ordering::Release);
            tracing::info!("quotas are counted in the store again");
        }
    }

    pub(super) fn misses_a_beat(&self) {
        *self.well_since.lock() = None;
    }
}

impl Engine {
    /// Whether policies that can do without the store should.
    pub(super) fn is_away(&self) -> bool {
        self.away.away.load(Ordering::Acquire)
    }

    /// A charge was answered.
    pub(super) fn answers(&self) {
        if self.away.failures.load(Ordering::Relaxed) > 0 {
            self.away.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A charge was not answered.
    pub(super) fn fails(&self, error: &Error) {
        let before = self.away.failures.fetch_add(1, Ordering::Relaxed);
        let gone = error.kind() == ErrorKind::Unavailable || before + 1 >= FAILURES;
        // Without anybody to find out that it is back, each request has to.
        if gone && self.is_tended() && !self.away.away.swap(true, Ordering::AcqRel) {
            self.away.misses_a_beat();
            tracing::warn!(%error, "quotas are counted in this process alone: the store is away");
            self.wake();
        }
    }

    /// Decides by this process's share of the quota. A refusal says how long it lasts at least.
    pub(super) fn decide(&self, ask: &Ask, question: &Question) -> Result<(), Duration> {
        let processes = self.away.processes();
        let share = Share::of(question, processes);
        let seen = self.last_seen(ask, question);
        let cost = NonZeroU32::new(cells(question.cost)).unwrap_or(NonZeroU32::MIN);
        let decided = self.away.limiters.enter(
            ask.spot(question),
            |_| true,
            || Alone::new(share),
            |alone| {
                alone.is_to_have(share);
                if let Some(seen) = seen {
                    let left = seen.left.map(|left| cells(left / processes));
                    alone.has_heard(seen.sent, left);
                }
                alone.lets_in(cost)
            },
        );
        decided.unwrap_or(Ok(()))
    }
}
