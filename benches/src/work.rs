//! The work inside a lock: a chain of computations, so many turns of it. A timer would measure the timer
//! (`sleep(5 ms)` takes 6.3 ms), and a loop until a deadline would hide what the machine did meanwhile.

use std::{hint::black_box, time::Duration};

use crate::clock;

/// Each turn needs the result of the one before.
pub(crate) fn turns(count: u64) -> u64 {
    let mut state = black_box(count | 1);
    for _ in 0..count {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(state)
}

/// How many turns take so long on this machine, when nothing disturbs them.
pub(crate) fn calibrated(length: Duration) -> u64 {
    const PROBE: u64 = 1_000_000;
    let probe = || {
        let begun = clock::now();
        turns(PROBE);
        clock::now() - begun
    };
    let undisturbed = (0..20).map(|_| probe()).min().unwrap_or(1).max(1);
    PROBE * clock::nanos(length) / undisturbed
}
