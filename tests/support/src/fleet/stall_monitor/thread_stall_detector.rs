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

/// Window over which waits for a processor are summed.
const CPU_WAIT_WINDOW: Duration = Duration::from_secs(1);

/// A process with a longer wait counts as stalled: its calls, and calls to it, time out.
const WAIT_THRESHOLD: Duration = Duration::from_millis(400);

/// Detects threads that the machine kept waiting for a processor or a disk. A stalled process
/// cannot report itself, and stalls are not faults of the fleet.
#[derive(Default)]
pub(super) struct ThreadStallDetector {
    /// Process of the threads.
    pid: u32,
    threads: HashMap<String, ThreadHistory>,
}

impl ThreadStallDetector {
    /// Samples the threads. Returns the start of a stall and the end of its effects, ns.
    pub(super) fn detect(&mut self, pid: u32) -> Option<(u64, u64)> {
        self.observe(pid, clock::now_ns(), sample_threads(pid))
    }

    fn observe(
        &mut self,
        pid: u32,
        now: u64,
        samples: HashMap<String, ThreadSample>,
    ) -> Option<(u64, u64)> {
        if pid != self.pid {
            *self = Self { pid, ..Self::default() };
        }
        self.threads.retain(|thread, _| samples.contains_key(thread));
        let stall_start =
            |(thread, sample)| self.threads.entry(thread).or_default().stalled_since(now, sample);
        let since = samples.into_iter().filter_map(stall_start).min()?;
        Some((since, now + duration_ns(LEASE_GRACE_PERIOD)))
    }
}

/// Samples of one thread.
#[derive(Default)]
struct ThreadHistory {
    /// Sampling times, and total waits for a processor until then, ns.
    cpu_waits: VecDeque<(u64, u64)>,
    /// Start of a disk wait, and the number of voluntary context switches at that time.
    disk_wait: Option<(u64, u64)>,
}

/// Sample of a thread.
#[derive(Debug, Clone, Copy)]
struct ThreadSample {
    /// Total wait for a processor, ns.
    cpu_wait_ns: u64,
    /// Number of voluntary context switches, if the thread waits for a disk.
    disk_wait_count: Option<u64>,
}

impl ThreadHistory {
    fn stalled_since(&mut self, now: u64, sample: ThreadSample) -> Option<u64> {
        let ThreadSample { cpu_wait_ns, disk_wait_count } = sample;
        self.cpu_waits.push_back((now, cpu_wait_ns));
        while self
            .cpu_waits
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > duration_ns(CPU_WAIT_WINDOW))
        {
            self.cpu_waits.pop_front();
        }
        // Many short waits are no stall: the count shows whether it is the same wait.
        self.disk_wait = disk_wait_count.map(|count| match self.disk_wait {
            Some((since, last_count)) if last_count == count => (since, count),
            _ => (now, count),
        });
        let disk_stall = self.disk_wait.map(|(since, _)| since);
        let disk_stall =
            disk_stall.filter(|since| now.saturating_sub(*since) >= duration_ns(WAIT_THRESHOLD));
        let (since, initial_wait) = *self.cpu_waits.front()?;
        let is_cpu_stalled =
            cpu_wait_ns.saturating_sub(initial_wait) >= duration_ns(WAIT_THRESHOLD);
        is_cpu_stalled.then_some(since).into_iter().chain(disk_stall).min()
    }
}

/// Samples all threads of a process; none if the system does not provide the data.
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
    let cpu_wait_ns = read("schedstat")?.split(' ').nth(1)?.parse().ok()?;
    Some(ThreadSample { cpu_wait_ns, disk_wait_count: parse_disk_wait(&read("status")?) })
}

/// Returns the number of voluntary context switches if the thread waits for a disk.
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

    fn single_thread(
        cpu_wait_ms: u64,
        disk_wait_count: Option<u64>,
    ) -> HashMap<String, ThreadSample> {
        [("7".to_owned(), ThreadSample { cpu_wait_ns: cpu_wait_ms * NS_PER_MS, disk_wait_count })]
            .into()
    }

    #[test]
    fn thread_waiting_most_of_a_second_is_a_stall() {
        let mut detector = ThreadStallDetector::default();
        let mut observe_at = |pid, now: u64, cpu_wait_ms| {
            detector.observe(pid, now * NS_PER_MS, single_thread(cpu_wait_ms, None))
        };
        assert_eq!(observe_at(1, 1000, 7000), None);
        assert_eq!(observe_at(1, 1900, 7399), None);
        assert_eq!(observe_at(1, 1950, 7400), Some((1000 * NS_PER_MS, 5950 * NS_PER_MS)));
        assert_eq!(observe_at(1, 2500, 7600), None, "an ended stall is not reported again");
        assert_eq!(observe_at(2, 2550, 9000), None, "of another process");
    }

    #[test]
    fn one_waiting_thread_is_a_stall_but_waits_do_not_add_up() {
        let mut detector = ThreadStallDetector::default();
        let mut observe_at = |now: u64, a: u64, b: u64| {
            let samples = [("a", a), ("b", b)].map(|(name, cpu_wait_ms)| {
                (
                    name.to_owned(),
                    ThreadSample { cpu_wait_ns: cpu_wait_ms * NS_PER_MS, disk_wait_count: None },
                )
            });
            detector.observe(1, now * NS_PER_MS, samples.into())
        };
        assert_eq!(observe_at(1000, 0, 0), None);
        assert_eq!(observe_at(1500, 300, 300), None);
        assert_eq!(observe_at(1900, 300, 450), Some((1000 * NS_PER_MS, 5900 * NS_PER_MS)));
    }

    #[test]
    fn long_disk_wait_is_a_stall_but_many_short_ones_are_not() {
        let mut detector = ThreadStallDetector::default();
        let mut observe_at = |now: u64, disk_wait_count| {
            detector.observe(1, now * NS_PER_MS, single_thread(0, disk_wait_count))
        };
        for n in 0..20 {
            assert_eq!(observe_at(1000 + 50 * n, Some(n)), None);
        }
        assert_eq!(observe_at(2000, Some(30)), None);
        assert_eq!(observe_at(2399, Some(30)), None);
        assert_eq!(observe_at(2400, Some(30)), Some((2000 * NS_PER_MS, 6400 * NS_PER_MS)));
        assert_eq!(observe_at(2450, None), None);
        assert_eq!(observe_at(2500, Some(30)), None, "it has run since");
    }
}
