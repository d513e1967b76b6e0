//! Where a process did not run: the machine had no time for it.

mod held;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockgate_history::deferred::{History, Trouble};
use parking_lot::Mutex;

use self::held::HeldUp;
use crate::history::clock::{self, ns};

/// How long after a fault its traces are looked for: a lease and the time to notice.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(4);

const TICK: Duration = Duration::from_millis(50);

/// So late is late: far more than a machine with other things to do takes, and less than a lease.
const LATE: Duration = Duration::from_millis(500);

/// The stalls of this process, for a thread of its own, which nothing but the machine holds up. That thread may be lucky:
/// so the others are looked at too.
#[derive(Default)]
pub(crate) struct Stalls(HeldUp);

impl Stalls {
    /// Waits for the next tick. Of each stall that it sees: since when it lasts, and until when it may have traces, ns.
    pub(crate) fn tick(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let late = tick();
        let held_up = self.0.of(std::process::id());
        late.into_iter().chain(held_up)
    }
}

fn tick() -> Option<(u64, u64)> {
    let before = clock::now();
    std::thread::sleep(TICK);
    stalled(before, clock::now())
}

fn stalled(before: u64, now: u64) -> Option<(u64, u64)> {
    (now.saturating_sub(before) > ns(TICK + LATE)).then(|| (before, now + ns(AFTERMATH)))
}

/// The proxies of all are in this process, and a server can't say of itself that it did not run. A process of the fleet
/// notes its own stalls ([`Event::Stall`]): whoever was stopped on purpose does so too, and that is no trouble of the
/// others. (Other threads of this process may be other tests', and are not looked at.)
///
/// [`Event::Stall`]: lockgate_history::deferred::Event::Stall
pub(crate) fn note(history: Weak<Mutex<History>>, server: Arc<AtomicU32>) {
    std::thread::spawn(move || {
        let mut of_server = HeldUp::default();
        loop {
            let late = tick();
            let held_up = of_server.of(server.load(Ordering::Relaxed));
            let Some(history) = history.upgrade() else { return };
            for (from, to) in late.into_iter().chain(held_up) {
                history.lock().stalls.push(Trouble { life: None, from, to });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_is_late_is_a_stall() {
        const MS: u64 = clock::MS;
        assert_eq!(stalled(1000 * MS, 1050 * MS), None);
        assert_eq!(stalled(1000 * MS, 1550 * MS), None);
        assert_eq!(stalled(1000 * MS, 1551 * MS), Some((1000 * MS, 5551 * MS)));
    }
}
