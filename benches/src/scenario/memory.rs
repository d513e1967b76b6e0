//! What a held lock and a waiter cost in memory, in the process and in Redis, and whether load leaves
//! anything behind. Reported beside the numbered figures: there is no line to reach.

use std::{env, process::Command};

use crate::{
    bench::Bench, figure::short, outcome::Outcome, process::Process, report, stats::float,
};

const LOCKS: u32 = 10_000;
const WAITERS: u32 = 1_000;

/// What the process does, one after the other.
const STEPS: [&str; 6] = [
    "after a first round of everything",
    "10,000 locks held",
    "given back",
    "1,000 tasks wait for one lock",
    "all had their turn",
    "after 2 s of load",
];

/// Differences below this are the buffers of connections.
const NOISE: f64 = 64.0 * 1024.0;

/// Bytes in the process and in Redis.
struct Used {
    process: f64,
    redis: f64,
}

pub(super) fn run(bench: &mut Bench) -> Outcome<()> {
    report::title("Memory: bytes allocated by the process, used_memory of Redis");
    bench.server.flush()?;
    let program = env::current_exe()?.with_file_name("lockgate-benches-memory");
    let mut command = Command::new(program);
    command.args([u32::from(bench.server.port()), LOCKS, WAITERS].map(|number| number.to_string()));
    let mut process = Process::spawn(command)?;
    let mut rows = vec![["", "process, KiB", "Redis, KiB"].map(str::to_owned).to_vec()];
    let mut used = Vec::new();
    for step in STEPS {
        let allocated = float(process.json()?);
        let redis = float(bench.server.used_memory()?);
        rows.push(vec![step.to_owned(), short(allocated / 1024.0), short(redis / 1024.0)]);
        used.push(Used { process: allocated, redis });
        process.tell("")?;
    }
    report::table(&rows);
    if let [start, held, freed, waiting, _, loaded] = used.as_slice() {
        let (locks, waiters) = (f64::from(LOCKS), f64::from(WAITERS));
        each("held lock", held, start, locks);
        each("waiter (its task included)", waiting, freed, waiters);
        left("the process", loaded.process - start.process);
        left("Redis", loaded.redis - start.redis);
    }
    Ok(())
}

fn each(what: &str, with: &Used, without: &Used, count: f64) {
    let process = short((with.process - without.process) / count);
    let redis = short((with.redis - without.redis) / count);
    println!("  per {what}: {process} B in the process, {redis} B in Redis");
}

fn left(place: &str, bytes: f64) {
    let verdict = if bytes < NOISE { "flat" } else { "NOT FLAT" };
    println!("  left by all of it in {place}: {} KiB, {verdict}", short(bytes / 1024.0));
}
