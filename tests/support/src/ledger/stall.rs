//! Where a process did not run: the machine had no time for it.

use std::{
    collections::VecDeque,
    fs,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockgate::testing::history::deferred::{History, Trouble};
use parking_lot::Mutex;

use crate::history::clock::{self, ns};

/// How long after a fault its traces are looked for: a lease and the time to notice.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(4);

const TICK: Duration = Duration::from_millis(50);

/// So late is late: far more than a machine with other things to do takes, and less than a lease.
const LATE: Duration = Duration::from_millis(500);

/// Waits for the next tick. If that was late: when the one before it was, and until when that may have traces, ns. For
/// a thread of its own, which nothing but the machine holds up.
pub(crate) fn tick() -> Option<(u64, u64)> {
    let before = clock::now();
    std::thread::sleep(TICK);
    stalled(before, clock::now())
}

fn stalled(before: u64, now: u64) -> Option<(u64, u64)> {
    (now.saturating_sub(before) > ns(TICK + LATE)).then(|| (before, now + ns(AFTERMATH)))
}

/// The proxies of all are in this process, and a server can't say of itself that it did not run. A process of the fleet
/// notes its own stalls ([`Event::Stall`]): whoever was stopped on purpose does so too, and that is no trouble of the
/// others.
///
/// [`Event::Stall`]: lockgate::testing::history::deferred::Event::Stall
pub(crate) fn note(history: Weak<Mutex<History>>, server: Arc<AtomicU32>) {
    std::thread::spawn(move || {
        let mut waits = Waits::default();
        loop {
            let stalled = tick();
            let held_up = waits.of(server.load(Ordering::Relaxed));
            let Some(history) = history.upgrade() else { return };
            for (from, to) in stalled.into_iter().chain(held_up) {
                history.lock().stalls.push(Trouble { life: None, from, to });
            }
        }
    });
}

/// Over this time the waits of a server are added up.
const SPAN: Duration = Duration::from_secs(1);

/// A server that waited for so long in it was no server: calls that it was sent ran into their deadlines.
const HELD_UP: Duration = Duration::from_millis(400);

/// How long the machine lets a server wait that is ready to run. It can't say so itself, as a process of the fleet does,
/// and a fault of the machine is none of the fleet's.
#[derive(Default)]
struct Waits {
    /// Whose they are.
    pid: u32,
    /// When it was looked, and how long it had waited in all by then, ns.
    looks: VecDeque<(u64, u64)>,
}

impl Waits {
    /// Looks once more: when it was held up, and until when that may have traces, ns.
    fn of(&mut self, pid: u32) -> Option<(u64, u64)> {
        self.add(pid, clock::now(), waited(pid)?)
    }

    fn add(&mut self, pid: u32, now: u64, waited: u64) -> Option<(u64, u64)> {
        if pid != self.pid {
            *self = Self { pid, ..Self::default() };
        }
        self.looks.push_back((now, waited));
        while self.looks.front().is_some_and(|(at, _)| now.saturating_sub(*at) > ns(SPAN)) {
            self.looks.pop_front();
        }
        let (since, before) = *self.looks.front()?;
        (waited.saturating_sub(before) >= ns(HELD_UP)).then(|| (since, now + ns(AFTERMATH)))
    }
}

/// How long a process has waited for a processor in all, ns; `None` where the system does not tell.
fn waited(pid: u32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?.split(' ').nth(1)?.parse().ok()
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
    #[test]
    fn a_server_that_waits_for_most_of_a_second_is_held_up() {
        const MS: u64 = clock::MS;
        let mut waits = Waits::default();
        assert_eq!(waits.add(1, 1000 * MS, 7000 * MS), None);
        assert_eq!(waits.add(1, 1900 * MS, 7399 * MS), None);
        assert_eq!(waits.add(1, 1950 * MS, 7400 * MS), Some((1000 * MS, 5950 * MS)));
        assert_eq!(waits.add(1, 2500 * MS, 7600 * MS), None, "what is past is past");
        assert_eq!(waits.add(2, 2550 * MS, 9000 * MS), None, "of another server");
    }

    #[test]
    fn the_system_tells_of_this_process() {
        if cfg!(target_os = "linux") {
            assert!(waited(std::process::id()).is_some());
        }
    }
}
