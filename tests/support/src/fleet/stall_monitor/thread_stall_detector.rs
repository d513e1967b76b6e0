//! `ThreadStallDetector`: scheduling data of the threads of a process, which show how long each has
//! waited for a processor, and whether it waits for a disk.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    path::Path,
    time::Duration,
};

use super::LEASE_GRACE_PERIOD;
use crate::fleet::clock::{self, duration_ns};

/// Over this time the waits for a processor are added up.
const CPU_WAIT_WINDOW: Duration = Duration::from_secs(1);

/// Who waited for so long was not there: calls that it was sent, or made, ran into their deadlines.
const WAIT_THRESHOLD: Duration = Duration::from_millis(400);

/// How long the machine lets the threads of a process wait that are ready to run, or for a disk. It can't say so itself
/// while it does not run, and a fault of the machine is none of the fleet's.
#[derive(Default)]
pub(super) struct ThreadStallDetector {
    /// Whose they are.
    pid: u32,
    threads: HashMap<String, ThreadHistory>,
}

impl ThreadStallDetector {
    /// Looks once more: since when it is held up, if it is, and until when that may have traces, ns.
    pub(super) fn detect(&mut self, pid: u32) -> Option<(u64, u64)> {
        self.observe(pid, clock::now_ns(), sample_threads(pid))
    }

    fn observe(
        &mut self,
        pid: u32,
        now: u64,
        seen: HashMap<String, ThreadSample>,
    ) -> Option<(u64, u64)> {
        if pid != self.pid {
            *self = Self { pid, ..Self::default() };
        }
        self.threads.retain(|thread, _| seen.contains_key(thread));
        let look =
            |(thread, seen)| self.threads.entry(thread).or_default().stalled_since(now, seen);
        let since = seen.into_iter().filter_map(look).min()?;
        Some((since, now + duration_ns(LEASE_GRACE_PERIOD)))
    }
}

/// What is known of a thread.
#[derive(Default)]
struct ThreadHistory {
    /// When it was looked, and how long it had waited for a processor in all by then, ns.
    cpu_waits: VecDeque<(u64, u64)>,
    /// Since when it waits for a disk, and how often it had begun to wait for anything by then.
    disk_wait: Option<(u64, u64)>,
}

/// What is seen of a thread.
#[derive(Debug, Clone, Copy)]
struct ThreadSample {
    /// How long it has waited for a processor in all, ns.
    cpu_wait_ns: u64,
    /// It waits for a disk; how often it has begun to wait for anything.
    disk_wait_count: Option<u64>,
}

impl ThreadHistory {
    fn stalled_since(&mut self, now: u64, seen: ThreadSample) -> Option<u64> {
        let ThreadSample { cpu_wait_ns: waited, disk_wait_count: blocked } = seen;
        self.cpu_waits.push_back((now, waited));
        while self
            .cpu_waits
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > duration_ns(CPU_WAIT_WINDOW))
        {
            self.cpu_waits.pop_front();
        }
        // Many short waits are none that hold anybody up: it must be the same one.
        self.disk_wait = blocked.map(|wait| match self.disk_wait {
            Some((since, known)) if known == wait => (since, wait),
            _ => (now, wait),
        });
        let disk = self.disk_wait.map(|(since, _)| since);
        let disk = disk.filter(|since| now.saturating_sub(*since) >= duration_ns(WAIT_THRESHOLD));
        let (since, before) = *self.cpu_waits.front()?;
        let waits = waited.saturating_sub(before) >= duration_ns(WAIT_THRESHOLD);
        waits.then_some(since).into_iter().chain(disk).min()
    }
}

/// All threads of a process; none where the system does not tell.
fn sample_threads(pid: u32) -> HashMap<String, ThreadSample> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, sample_thread(&entry.path())?))
        })
        .collect()
}

fn sample_thread(thread: &Path) -> Option<ThreadSample> {
    let read = |name: &str| fs::read_to_string(thread.join(name)).ok();
    let waited = read("schedstat")?.split(' ').nth(1)?.parse().ok()?;
    Some(ThreadSample { cpu_wait_ns: waited, disk_wait_count: parse_disk_wait(&read("status")?) })
}

/// From what the system tells of a thread: how often it has begun to wait, if it waits for a disk now.
fn parse_disk_wait(status: &str) -> Option<u64> {
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

    const NS_PER_MS: u64 = clock::NS_PER_MS;

    fn single_thread(waited: u64, blocked: Option<u64>) -> HashMap<String, ThreadSample> {
        [(
            "7".to_owned(),
            ThreadSample { cpu_wait_ns: waited * NS_PER_MS, disk_wait_count: blocked },
        )]
        .into()
    }

    #[test]
    fn thread_waiting_most_of_a_second_is_a_stall() {
        let mut held = ThreadStallDetector::default();
        let mut add =
            |pid, now: u64, waited| held.observe(pid, now * NS_PER_MS, single_thread(waited, None));
        assert_eq!(add(1, 1000, 7000), None);
        assert_eq!(add(1, 1900, 7399), None);
        assert_eq!(add(1, 1950, 7400), Some((1000 * NS_PER_MS, 5950 * NS_PER_MS)));
        assert_eq!(add(1, 2500, 7600), None, "what is past is past");
        assert_eq!(add(2, 2550, 9000), None, "of another process");
    }

    #[test]
    fn one_waiting_thread_is_a_stall_but_waits_do_not_add_up() {
        let mut held = ThreadStallDetector::default();
        let mut add = |now: u64, a: u64, b: u64| {
            let each = [("a", a), ("b", b)].map(|(name, waited)| {
                (
                    name.to_owned(),
                    ThreadSample { cpu_wait_ns: waited * NS_PER_MS, disk_wait_count: None },
                )
            });
            held.observe(1, now * NS_PER_MS, each.into())
        };
        assert_eq!(add(1000, 0, 0), None);
        assert_eq!(add(1500, 300, 300), None);
        assert_eq!(add(1900, 300, 450), Some((1000 * NS_PER_MS, 5900 * NS_PER_MS)));
    }

    #[test]
    fn long_disk_wait_is_a_stall_but_many_short_ones_are_not() {
        let mut held = ThreadStallDetector::default();
        let mut add =
            |now: u64, blocked| held.observe(1, now * NS_PER_MS, single_thread(0, blocked));
        for n in 0..20 {
            assert_eq!(add(1000 + 50 * n, Some(n)), None);
        }
        assert_eq!(add(2000, Some(30)), None);
        assert_eq!(add(2399, Some(30)), None);
        assert_eq!(add(2400, Some(30)), Some((2000 * NS_PER_MS, 6400 * NS_PER_MS)));
        assert_eq!(add(2450, None), None);
        assert_eq!(add(2500, Some(30)), None, "it has run since");
    }
}
