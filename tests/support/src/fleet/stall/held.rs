//! What the system says of the threads of a process: how long each has waited for a processor, and whether it waits for a
//! disk.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    path::Path,
    time::Duration,
};

use super::AFTERMATH;
use crate::fleet::clock::{self, ns};

/// Over this time the waits for a processor are added up.
const SPAN: Duration = Duration::from_secs(1);

/// Who waited for so long was not there: calls that it was sent, or made, ran into their deadlines.
const HELD_UP: Duration = Duration::from_millis(400);

/// How long the machine lets the threads of a process wait that are ready to run, or for a disk. It can't say so itself
/// while it does not run, and a fault of the machine is none of the fleet's.
#[derive(Default)]
pub(super) struct HeldUp {
    /// Whose they are.
    pid: u32,
    threads: HashMap<String, Thread>,
}

impl HeldUp {
    /// Looks once more: since when it is held up, if it is, and until when that may have traces, ns.
    pub(super) fn of(&mut self, pid: u32) -> Option<(u64, u64)> {
        self.add(pid, clock::now(), threads(pid))
    }

    fn add(&mut self, pid: u32, now: u64, seen: HashMap<String, Seen>) -> Option<(u64, u64)> {
        if pid != self.pid {
            *self = Self { pid, ..Self::default() };
        }
        self.threads.retain(|thread, _| seen.contains_key(thread));
        let look = |(thread, seen)| self.threads.entry(thread).or_default().held_up(now, seen);
        let since = seen.into_iter().filter_map(look).min()?;
        Some((since, now + ns(AFTERMATH)))
    }
}

/// What is known of a thread.
#[derive(Default)]
struct Thread {
    /// When it was looked, and how long it had waited for a processor in all by then, ns.
    looks: VecDeque<(u64, u64)>,
    /// Since when it waits for a disk, and how often it had begun to wait for anything by then.
    blocked: Option<(u64, u64)>,
}

/// What is seen of a thread.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// How long it has waited for a processor in all, ns.
    waited: u64,
    /// It waits for a disk; how often it has begun to wait for anything.
    blocked: Option<u64>,
}

impl Thread {
    fn held_up(&mut self, now: u64, seen: Seen) -> Option<u64> {
        let Seen { waited, blocked } = seen;
        self.looks.push_back((now, waited));
        while self.looks.front().is_some_and(|(at, _)| now.saturating_sub(*at) > ns(SPAN)) {
            self.looks.pop_front();
        }
        // Many short waits are none that hold anybody up: it must be the same one.
        self.blocked = blocked.map(|wait| match self.blocked {
            Some((since, known)) if known == wait => (since, wait),
            _ => (now, wait),
        });
        let disk = self.blocked.map(|(since, _)| since);
        let disk = disk.filter(|since| now.saturating_sub(*since) >= ns(HELD_UP));
        let (since, before) = *self.looks.front()?;
        let waits = waited.saturating_sub(before) >= ns(HELD_UP);
        waits.then_some(since).into_iter().chain(disk).min()
    }
}

/// All threads of a process; none where the system does not tell.
fn threads(pid: u32) -> HashMap<String, Seen> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, look(&entry.path())?))
        })
        .collect()
}

fn look(thread: &Path) -> Option<Seen> {
    let read = |name: &str| fs::read_to_string(thread.join(name)).ok();
    let waited = read("schedstat")?.split(' ').nth(1)?.parse().ok()?;
    Some(Seen { waited, blocked: blocked(&read("status")?) })
}

/// From what the system tells of a thread: how often it has begun to wait, if it waits for a disk now.
fn blocked(status: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let on_disk = field("State:")?.starts_with('D');
    on_disk.then(|| field("voluntary_ctxt_switches:")?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = clock::MS;

    fn one(waited: u64, blocked: Option<u64>) -> HashMap<String, Seen> {
        [("7".to_owned(), Seen { waited: waited * MS, blocked })].into()
    }

    #[test]
    fn who_waits_for_most_of_a_second_is_held_up() {
        let mut held = HeldUp::default();
        let mut add = |pid, now: u64, waited| held.add(pid, now * MS, one(waited, None));
        assert_eq!(add(1, 1000, 7000), None);
        assert_eq!(add(1, 1900, 7399), None);
        assert_eq!(add(1, 1950, 7400), Some((1000 * MS, 5950 * MS)));
        assert_eq!(add(1, 2500, 7600), None, "what is past is past");
        assert_eq!(add(2, 2550, 9000), None, "of another process");
    }

    #[test]
    fn one_thread_that_waits_is_enough_and_two_do_not_add_up() {
        let mut held = HeldUp::default();
        let mut add = |now: u64, a: u64, b: u64| {
            let each = [("a", a), ("b", b)].map(|(name, waited)| {
                (name.to_owned(), Seen { waited: waited * MS, blocked: None })
            });
            held.add(1, now * MS, each.into())
        };
        assert_eq!(add(1000, 0, 0), None);
        assert_eq!(add(1500, 300, 300), None);
        assert_eq!(add(1900, 300, 450), Some((1000 * MS, 5900 * MS)));
    }

    #[test]
    fn one_long_wait_for_a_disk_holds_up_and_many_short_ones_do_not() {
        let mut held = HeldUp::default();
        let mut add = |now: u64, blocked| held.add(1, now * MS, one(0, blocked));
        for n in 0..20 {
            assert_eq!(add(1000 + 50 * n, Some(n)), None);
        }
        assert_eq!(add(2000, Some(30)), None);
        assert_eq!(add(2399, Some(30)), None);
        assert_eq!(add(2400, Some(30)), Some((2000 * MS, 6400 * MS)));
        assert_eq!(add(2450, None), None);
        assert_eq!(add(2500, Some(30)), None, "it has run since");
    }
}
