//! Test for other processes on the two cores. They distort every figure, and no figure shows it.

use std::thread;

use rustix::time::{ClockId, clock_gettime};

use crate::{clock, simulated_work, stats::to_f64};

/// Length of the test on each core.
const PROBE_NANOS: u64 = 200_000_000;

/// Share of a core below which the figures are not valid.
const MIN_CPU_SHARE: f64 = 0.95;

/// Returns true if no other process uses the cores, and prints a warning otherwise.
pub(crate) fn check_undisturbed() -> bool {
    let share = smallest_cpu_share();
    let is_undisturbed = share >= MIN_CPU_SHARE;
    if !is_undisturbed {
        println!(
            "  DISTURBED: other processes left only {:.0} % of a core; the figures are not valid.",
            share * 100.0
        );
    }
    is_undisturbed
}

/// Returns the smaller of the core shares that two busy threads get.
fn smallest_cpu_share() -> f64 {
    let threads: Vec<_> = (0..2).map(|_| thread::spawn(measure_cpu_share)).collect();
    let shares: Vec<f64> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
    shares.iter().copied().fold(1.0, f64::min)
}

/// Keeps this thread busy and returns the share of that time in which it ran.
fn measure_cpu_share() -> f64 {
    let (start, cpu_start) = (clock::now(), thread_cpu_nanos());
    while clock::now() < start + PROBE_NANOS {
        simulated_work::run_iterations(10_000);
    }
    to_f64(thread_cpu_nanos() - cpu_start) / to_f64(clock::now() - start)
}

/// Returns the CPU time of this thread, in nanoseconds.
fn thread_cpu_nanos() -> u64 {
    clock::timespec_nanos(clock_gettime(ClockId::ThreadCPUTime))
}
