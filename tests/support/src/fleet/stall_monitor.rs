//! Detects times in which the machine did not run a process.

mod thread_stall_detector;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use self::thread_stall_detector::ThreadStallDetector;
use super::{
    DisturbanceLog, LEASE_GRACE_PERIOD,
    clock::{self, duration_ns},
    event_log::EventLog,
};
use crate::checker::deferred::RunEvent;

const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// So late is late: far more than a machine with other things to do takes, and less than a lease.
const STALL_THRESHOLD: Duration = Duration::from_millis(500);

/// Writes down the stalls of this process, on a thread of its own, which nothing but the machine holds up. That thread may
/// be lucky: so the others are looked at too.
pub(crate) fn record_own_stalls(log: Arc<EventLog>) {
    std::thread::spawn(move || {
        let mut threads = ThreadStallDetector::default();
        loop {
            let late = sleep_and_detect_stall();
            for (since, to) in late.into_iter().chain(threads.detect(std::process::id())) {
                log.record(&RunEvent::Stalled { from: since, to });
            }
        }
    });
}

fn sleep_and_detect_stall() -> Option<(u64, u64)> {
    let before = clock::now_ns();
    std::thread::sleep(CHECK_INTERVAL);
    stalled_interval(before, clock::now_ns())
}

fn stalled_interval(before: u64, now: u64) -> Option<(u64, u64)> {
    (now.saturating_sub(before) > duration_ns(CHECK_INTERVAL + STALL_THRESHOLD))
        .then(|| (before, now + duration_ns(LEASE_GRACE_PERIOD)))
}

/// The proxies of all are in this process, and a server can't say of itself that it did not run. A process of the fleet
/// [notes its own stalls](note_own): one that was stopped on purpose does so too, and that is no trouble of the others.
/// (Other threads of this process may belong to other tests, and are not looked at.)
pub(crate) fn record_stalls_of_server(notes: Weak<Mutex<DisturbanceLog>>, server: Arc<AtomicU32>) {
    std::thread::spawn(move || {
        let mut of_server = ThreadStallDetector::default();
        loop {
            let late = sleep_and_detect_stall();
            let held_up = of_server.detect(server.load(Ordering::Relaxed));
            let Some(notes) = notes.upgrade() else { return };
            notes.lock().stalls.extend(late.into_iter().chain(held_up));
        }
    });
}
