//! Whether the two cores are ours. Somebody else's build in the background makes nonsense of every figure,
//! and does not show in any of them.

use std::thread;

use rustix::time::{ClockId, clock_gettime};

use crate::{clock, stats::float, work};

/// For as long as this, on each core.
const PROBE: u64 = 200_000_000;

/// Below this the figures are not to be trusted.
const ENOUGH: f64 = 0.95;

/// Says so if others use the cores too, and answers whether they don't.
pub(crate) fn check() -> bool {
    let ours = share();
    let quiet = ours >= ENOUGH;
    if !quiet {
        println!(
            "  DISTURBED: of two cores this got only {:.0} %; other processes run. Not to be judged by.",
            ours * 100.0
        );
    }
    quiet
}

/// Which part of two cores two busy threads get.
fn share() -> f64 {
    let threads: Vec<_> = (0..2).map(|_| thread::spawn(busy)).collect();
    let shares: Vec<f64> = threads.into_iter().filter_map(|one| one.join().ok()).collect();
    shares.iter().copied().fold(1.0, f64::min)
}

/// Computes for a while; the part of it in which the thread ran.
fn busy() -> f64 {
    let (begun, used) = (clock::now(), cpu_time());
    while clock::now() < begun + PROBE {
        work::turns(10_000);
    }
    float(cpu_time() - used) / float(clock::now() - begun)
}

/// Nanoseconds this thread has run.
fn cpu_time() -> u64 {
    clock::whole(clock_gettime(ClockId::ThreadCPUTime))
}
