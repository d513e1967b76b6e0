//! While the store is away: a limit in this process alone, at its share of the quota.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{
    Engine,
    alone::{Alone, Share, cells},
    ask::{Ask, Question},
    counter_map::CounterMap,
};
use crate::{
    error::{Error, ErrorKind},
    key::{COMMON, Key},
    rate_limit::decision::Told,
    store::Store,
};

/// So long the store must have answered before it is asked again: a store that comes and goes would have
/// every key limited by both, in turns.
const WELL: Duration = Duration::from_secs(1);

/// Failures without a success between them, after which the store counts as away.
const FAILURES: u32 = 3;

/// Whether the store is away, and what is decided meanwhile.
#[derive(Default)]
pub(super) struct Away {
    /// Some part of it is not well; otherwise nobody has to look for one.
    troubled: AtomicBool,
    parts: Mutex<HashMap<u16, Part>>,
    processes: AtomicU64,
    limiters: CounterMap<Alone>,
}

/// What goes away by itself: a shard of a cluster, whose other nodes are still there, or else the whole store. One that
/// is well has no entry.
#[derive(Default)]
struct Part {
    failures: u32,
    /// Requests are decided here.
    away: bool,
    /// Since when it has answered again.
    well_since: Option<Instant>,
}

/// The part that a key is of. The processes are counted in the first one.
fn part(store: &Store, tag: &Key) -> u16 {
    if store.backend().is_clustered() { tag.shard() } else { COMMON }
}

impl Away {
    /// How many processes share the quotas, this one included, as far as is known.
    pub(super) fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed).max(1)
    }

    /// So many have been counted: the part in which they are has answered.
    pub(super) fn counts(&self, processes: usize) {
        self.heard_well(COMMON);
        let processes = processes as u64;
        if self.parts().get(&COMMON).is_some_and(|part| part.away) {
            // Who was away for long is not counted any more until he has told that he is there, too.
            self.processes.fetch_max(processes, Ordering::Relaxed);
        } else {
            self.processes.store(processes, Ordering::Relaxed);
        }
    }

    /// The parts that are away.
    pub(super) fn gone(&self) -> Vec<u16> {
        self.parts().iter().filter(|(_, part)| part.away).map(|(part, _)| *part).collect()
    }

    /// This part has answered a call that is made every now and then.
    pub(super) fn heard_well(&self, part: u16) {
        let now = Instant::now();
        let since = match self.parts().get_mut(&part) {
            Some(found) if found.away => *found.well_since.get_or_insert(now),
            _ => return,
        };
        if now - since < WELL {
            return;
        }
        // What was let in here is not charged there. It still counts here, should the store go again at once:
        // else each time it comes and goes would be another burst. They are many: not while requests look.
        self.limiters.retain(|_, _, alone| !alone.has_all_again());
        let mut parts = self.parts();
        self.forget(&mut parts, part);
        if !parts.values().any(|part| part.away) {
            tracing::info!("quotas are counted in the store again");
        }
    }

    pub(super) fn heard_ill(&self, part: u16) {
        if let Some(part) = self.parts().get_mut(&part) {
            part.well_since = None;
        }
    }

    fn parts(&self) -> MutexGuard<'_, HashMap<u16, Part>> {
        self.parts.lock()
    }

    fn forget(&self, parts: &mut HashMap<u16, Part>, part: u16) {
        parts.remove(&part);
        self.troubled.store(!parts.is_empty(), Ordering::Release);
    }
}

impl Engine {
    /// Whether policies that can do without the store should, for keys of this tag.
    pub(super) fn is_away(&self, store: &Store, tag: &Key) -> bool {
        let gone = || self.away.parts().get(&part(store, tag)).is_some_and(|part| part.away);
        self.away.troubled.load(Ordering::Acquire) && gone()
    }

    /// A charge was answered.
    pub(super) fn answers(&self, store: &Store, tag: &Key) {
        if !self.away.troubled.load(Ordering::Relaxed) {
            return;
        }
        let (part, mut parts) = (part(store, tag), self.away.parts());
        if parts.get(&part).is_some_and(|part| !part.away) {
            self.away.forget(&mut parts, part);
        }
    }

    /// A charge has failed. Whoever complains of it is there.
    pub(super) fn fails(&self, store: &Store, tag: &Key, error: &Error) {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) {
            return;
        }
        let mut parts = self.away.parts();
        let first = !parts.values().any(|part| part.away);
        let found = parts.entry(part(store, tag)).or_default();
        self.away.troubled.store(true, Ordering::Release);
        found.failures = found.failures.saturating_add(1);
        let gone = error.kind() == ErrorKind::Unavailable || found.failures >= FAILURES;
        // Without anybody to find out that it is back, each request has to.
        if !gone || found.away || !self.is_tended() {
            return;
        }
        (found.away, found.well_since) = (true, None);
        drop(parts);
        if first {
            tracing::warn!(%error, "quotas are counted in this process alone: the store is away");
        }
        self.wake();
    }

    /// Decides by this process's share of the quota. A refusal says what is left of that, and how long it lasts at least.
    pub(super) fn decide(&self, ask: &Ask, question: &Question) -> Result<(), Told> {
        let processes = self.away.processes();
        let share = Share::of(question, processes);
        let seen = self.last_seen(ask, question);
        // The store has counted them as spent. They are of this process alone, and nobody spends them meanwhile.
        let units = self.units(ask.spot(question));
        let cost = NonZeroU32::new(cells(question.cost)).unwrap_or(NonZeroU32::MIN);
        let decided = self.away.limiters.enter(
            ask.spot(question),
            || Alone::new(share),
            |alone| {
                alone.is_to_have(share);
                if let Some(seen) = seen {
                    let left =
                        seen.left.map(|left| cells((left / processes).saturating_add(units)));
                    alone.has_heard(seen.sent, left);
                }
                alone.lets_in(cost).map_err(|retry| alone.told(retry))
            },
        );
        decided.unwrap_or(Ok(()))
    }
}
