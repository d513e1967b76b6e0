//! What one task does in one go: which lock it asks for and how, for how long, and how it ends.

use std::time::Duration;

use lockgate::{LockRequest, Store};

use crate::{checker::locks::RecordedLockMode, fleet::dice::Dice};

/// Leases are short, so that faults are longer.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(300);

/// Longer than anything takes that is not wrong.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// The locks, and how often of a hundred times each is asked for. Registers are under the first two,
/// which are always exclusive.
pub(crate) const LOCKS: [(&str, u64); 4] = [("hot", 50), ("cold", 15), ("doc", 20), ("pool", 15)];
pub(crate) const REGISTERS: [&str; 2] = ["hot", "cold"];

#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) lock: &'static str,
    pub(crate) mode: RecordedLockMode,
    fixed: bool,
    wait: Option<Duration>,
    /// The future is dropped after this.
    pub(crate) gives_up: Option<Duration>,
    pub(crate) work: Duration,
    pub(crate) end: End,
    pub(crate) pause: Duration,
}

#[derive(Debug)]
pub(crate) enum End {
    Release,
    Drop,
    /// The release is begun, and its future dropped.
    DropRelease,
}

impl Turn {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let mut at = dice.below(100);
        let mut lock = LOCKS[0].0;
        for (name, share) in LOCKS {
            lock = name;
            if at < share {
                break;
            }
            at -= share;
        }
        let mode = match lock {
            "doc" if dice.percent(75) => RecordedLockMode::Shared,
            "pool" if dice.percent(85) => RecordedLockMode::Permits(3),
            _ => RecordedLockMode::Exclusive,
        };
        let wait = match dice.below(20) {
            0 | 1 => None,
            2 | 3 => Some(dice.ms(5, 60)),
            _ => Some(WAIT),
        };
        // Where nearly all wait, few may take long.
        let long = if lock == LOCKS[0].0 { 2 } else { 15 };
        let work = match dice.below(1000) {
            n if n < long => dice.ms(200, 1500),
            15..=99 => dice.ms(3, 20),
            100..=599 => dice.ms(0, 3),
            _ => Duration::ZERO,
        };
        let end = match dice.below(20) {
            0 => End::DropRelease,
            1..=4 => End::Drop,
            _ => End::Release,
        };
        let gives_up = dice.percent(10).then(|| dice.ms(0, 20));
        let pause = if dice.percent(10) { dice.ms(5, 40) } else { dice.ms(0, 2) };
        Self { lock, mode, fixed: dice.percent(8), wait, gives_up, work, end, pause }
    }

    pub(crate) fn request(&self, store: &Store) -> LockRequest {
        let mut request = store.lock(self.lock);
        request = match self.mode {
            RecordedLockMode::Exclusive => request,
            RecordedLockMode::Shared => request.shared(),
            RecordedLockMode::Permits(most) => request.permits(most),
        };
        request = if self.fixed { request.fixed_lease(SHORT) } else { request.lease(LEASE) };
        match self.wait {
            Some(wait) => request.wait(wait),
            None => request,
        }
    }
}
