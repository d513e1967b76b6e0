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

/// Far longer than the delays of a loaded machine, and shorter than a lease.
const STALL_THRESHOLD: Duration = Duration::from_millis(500);

/// Records the stalls of this process from a separate thread, which only the machine can delay.
/// That thread may be scheduled while others are not, so all threads are examined.
pub(crate) fn record_own_stalls(log: Arc<EventLog>) {
    std::thread::spawn(move || {
        let mut detector = ThreadStallDetector::default();
        loop {
            let own_stall = sleep_and_detect_stall();
            for (since, to) in own_stall.into_iter().chain(detector.detect(std::process::id())) {
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

/// Records stalls of this process, which runs the proxies, and of the server, which cannot report
/// its own. Processes of the fleet [record their own stalls](record_own_stalls), including pauses
/// by faults, which do not disturb the others. (Other threads of this process may belong to other
/// tests and are not examined.)
pub(crate) fn record_stalls_of_server(
    disturbances: Weak<Mutex<DisturbanceLog>>,
    server_pid: Arc<AtomicU32>,
) {
    std::thread::spawn(move || {
        let mut server_threads = ThreadStallDetector::default();
        loop {
            let own_stall = sleep_and_detect_stall();
            let server_stall = server_threads.detect(server_pid.load(Ordering::Relaxed));
            let Some(disturbances) = disturbances.upgrade() else { return };
            disturbances.lock().stalls.extend(own_stall.into_iter().chain(server_stall));
        }
    });
}
