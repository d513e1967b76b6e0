//! Memory of a held lock and of a waiter, in the process and in Redis, and whether memory grows
//! under load. Reported beside the numbered figures, without a target.

use std::{env, process::Command};

use crate::{
    bench_figure::format_number, bench_process::BenchProcess, bench_result::BenchResult,
    bench_runner::BenchRunner, report, stats::to_f64,
};

const LOCK_COUNT: u32 = 10_000;
const WAITER_COUNT: u32 = 1_000;

/// Steps of the measured process, in order.
const STEPS: [&str; 6] = [
    "after the warm-up",
    "10,000 locks held",
    "all locks released",
    "1,000 tasks wait for one lock",
    "all waiters served",
    "after 2 s of load",
];

/// Smaller differences are buffers of connections.
const NOISE_BYTES: f64 = 64.0 * 1024.0;

/// Allocated bytes of the process, and `used_memory` of Redis.
struct MemoryUse {
    process_bytes: f64,
    redis_bytes: f64,
}

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<()> {
    report::print_title("Memory: bytes allocated by the process, used_memory of Redis");
    bench.server.flush()?;
    let program = env::current_exe()?.with_file_name("lockgate-benches-memory");
    let mut command = Command::new(program);
    command.args(
        [u32::from(bench.server.port()), LOCK_COUNT, WAITER_COUNT].map(|number| number.to_string()),
    );
    let mut process = BenchProcess::spawn(command)?;
    let mut rows = vec![["", "process, KiB", "Redis, KiB"].map(str::to_owned).to_vec()];
    let mut memory_uses = Vec::new();
    for step in STEPS {
        let allocated = to_f64(process.read_json()?);
        let redis = to_f64(bench.server.used_memory()?);
        rows.push(vec![
            step.to_owned(),
            format_number(allocated / 1024.0),
            format_number(redis / 1024.0),
        ]);
        memory_uses.push(MemoryUse { process_bytes: allocated, redis_bytes: redis });
        process.write_line("")?;
    }
    report::print_table(&rows);
    if let [start, held, freed, waiting, _, loaded] = memory_uses.as_slice() {
        let (locks, waiters) = (f64::from(LOCK_COUNT), f64::from(WAITER_COUNT));
        print_bytes_each("held lock", held, start, locks);
        print_bytes_each("waiter (its task included)", waiting, freed, waiters);
        print_growth("the process", loaded.process_bytes - start.process_bytes);
        print_growth("Redis", loaded.redis_bytes - start.redis_bytes);
    }
    Ok(())
}

fn print_bytes_each(item: &str, with: &MemoryUse, without: &MemoryUse, count: f64) {
    let process = format_number((with.process_bytes - without.process_bytes) / count);
    let redis = format_number((with.redis_bytes - without.redis_bytes) / count);
    println!("  per {item}: {process} B in the process, {redis} B in Redis");
}

fn print_growth(owner: &str, bytes: f64) {
    let verdict = if bytes < NOISE_BYTES { "flat" } else { "NOT FLAT" };
    println!(
        "  growth of {owner} after all steps: {} KiB, {verdict}",
        format_number(bytes / 1024.0)
    );
}
