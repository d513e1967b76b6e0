//! Pinning of all processes to two cores. The targets are for two cores, however many the machine
//! has.

use crate::bench_result::BenchResult;

const CORE_COUNT: usize = 2;

/// Pins this process, and thereby its later children, to the first two cores that it may use.
/// Returns the number of cores in use.
#[cfg(target_os = "linux")]
pub(crate) fn pin_to_two_cores() -> BenchResult<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let allowed_cores = sched_getaffinity(None)?;
    let mut chosen_cores = CpuSet::new();
    let usable_cores = (0..CpuSet::MAX_CPU).filter(|core| allowed_cores.is_set(*core));
    usable_cores.take(CORE_COUNT).for_each(|core| chosen_cores.set(core));
    sched_setaffinity(None, &chosen_cores)?;
    Ok(usize::try_from(chosen_cores.count())?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin_to_two_cores() -> BenchResult<usize> {
    Ok(std::thread::available_parallelism()?.get())
}
