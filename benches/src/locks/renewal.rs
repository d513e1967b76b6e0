//! Figure 5, renewal: the cost of holding 10,000 locks.

use std::time::Duration;

use crate::{
    bench_figure::{BenchFigure, FigureTarget},
    bench_process::BenchProcess,
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    clock,
    command_origins::CommandOrigins,
    lock_holder::HolderPlan,
    report,
};

const LOCK_COUNT: u32 = 10_000;
const SHARD_COUNT: u32 = 64;

/// Lease of the locks, renewed after a third of it. Short, to keep the benchmark short.
const LEASE: Duration = Duration::from_secs(3);

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title(
        "5. Renewal of 10,000 held locks, commands sent per tick (a third of the lease)",
    );
    bench.server.flush()?;
    let port = bench.server.port();
    let locks = usize::try_from(LOCK_COUNT)?;
    let mut holder =
        BenchProcess::start("holder", &HolderPlan { redis_port: port, locks, lease: LEASE })?;
    holder.wait_until_ready()?;
    let origins = bench.observe_origins(|_| {
        wait_for_tick(clock::now());
        Ok(())
    })?;
    let round_values = measure_ticks(bench, &origins)?;
    holder.write_line("0")?;
    let held: usize = holder.read_json()?;
    if held < locks {
        let lost = locks - held;
        let failure = format!("lockgate: {lost} of {LOCK_COUNT} locks were LOST during renewal");
        println!("  {failure}");
        bench.failures.push(failure);
    }
    Ok(vec![BenchFigure {
        id: "5d",
        description: "commands sent per tick to renew 10,000 locks".into(),
        unit: "",
        target: FigureTarget::AtMost(f64::from(LOCK_COUNT / 100 + SHARD_COUNT)),
        round_values,
    }])
}

fn measure_ticks(bench: &mut BenchRunner, origins: &CommandOrigins) -> BenchResult<Vec<f64>> {
    let mut commands_per_tick = Vec::new();
    let mut before = bench.server.read_counters()?;
    let mut tick = clock::now();
    for _ in 0..bench.settings.rounds {
        tick = wait_for_tick(tick);
        let after = bench.server.read_counters()?;
        commands_per_tick.push(origins.count_between(&before, &after).sent);
        before = after;
    }
    Ok(commands_per_tick)
}

/// Waits until one tick after `previous` and returns that time.
fn wait_for_tick(previous: u64) -> u64 {
    let next = previous + clock::duration_nanos(LEASE / 3);
    clock::sleep_until(next);
    next
}
