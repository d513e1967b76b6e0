//! Two cores for the whole run, whatever the machine has: the lines to reach are for two.

use crate::outcome::Outcome;

const CORES: usize = 2;

/// Keeps this process, and all that it will start, on the first two of the cores it may use. Says how many
/// there are then.
#[cfg(target_os = "linux")]
pub(crate) fn keep_to_two() -> Outcome<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let allowed = sched_getaffinity(None)?;
    let mut chosen = CpuSet::new();
    let usable = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    usable.take(CORES).for_each(|core| chosen.set(core));
    sched_setaffinity(None, &chosen)?;
    Ok(usize::try_from(chosen.count())?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn keep_to_two() -> Outcome<usize> {
    Ok(std::thread::available_parallelism()?.get())
}
