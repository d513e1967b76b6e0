//! Simulated work under a lock: a fixed number of dependent computations. A timer would measure
//! itself (`sleep(5 ms)` takes 6.3 ms), and a loop until a deadline would hide disturbances.

use std::{hint::black_box, time::Duration};

use crate::clock;

/// Runs `count` iterations, each of which depends on the result of the one before.
pub(crate) fn run_iterations(count: u64) -> u64 {
    let mut state = black_box(count | 1);
    for _ in 0..count {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(state)
}

/// Returns the number of iterations that take `length` on this machine when undisturbed.
pub(crate) fn calibrate_iterations(length: Duration) -> u64 {
    const PROBE_ITERATIONS: u64 = 1_000_000;
    let measure_probe = || {
        let start = clock::now();
        run_iterations(PROBE_ITERATIONS);
        clock::now() - start
    };
    let fastest_nanos = (0..20).map(|_| measure_probe()).min().unwrap_or(1).max(1);
    PROBE_ITERATIONS * clock::duration_nanos(length) / fastest_nanos
}
