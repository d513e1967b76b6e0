//! Where a process did not run: the machine had no time for it.

mod held;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use self::held::HeldUp;
use super::{
    AFTERMATH, Notes,
    clock::{self, ns},
    log::Log,
};
use crate::checker::deferred::RunEvent;

const TICK: Duration = Duration::from_millis(50);

/// So late is late: far more than a machine with other things to do takes, and less than a lease.
const LATE: Duration = Duration::from_millis(500);

/// Writes down the stalls of this process, on a thread of its own, which nothing but the machine holds up. That thread may
/// be lucky: so the others are looked at too.
pub(crate) fn note_own(log: Arc<Log>) {
    std::thread::spawn(move || {
        let mut threads = HeldUp::default();
        loop {
            let late = tick();
            for (since, to) in late.into_iter().chain(threads.of(std::process::id())) {
                log.note(&RunEvent::Stalled(since, to));
            }
        }
    });
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
/// [notes its own stalls](note_own): one that was stopped on purpose does so too, and that is no trouble of the others.
/// (Other threads of this process may belong to other tests, and are not looked at.)
pub(crate) fn note(notes: Weak<Mutex<Notes>>, server: Arc<AtomicU32>) {
    std::thread::spawn(move || {
        let mut of_server = HeldUp::default();
        loop {
            let late = tick();
            let held_up = of_server.of(server.load(Ordering::Relaxed));
            let Some(notes) = notes.upgrade() else { return };
            notes.lock().stalls.extend(late.into_iter().chain(held_up));
        }
    });
}
