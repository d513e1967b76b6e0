//! Figure 5, renewal: what it costs to go on holding 10,000 locks.

use std::time::Duration;

use crate::{
    bench::Bench,
    clock,
    figure::{Figure, Line},
    holder::Plan,
    outcome::Outcome,
    process::Process,
    report,
    sent::Senders,
};

const LOCKS: u32 = 10_000;
const SHARDS: u32 = 64;

/// Short, for a run that ends; renewed at a third of it.
const LEASE: Duration = Duration::from_secs(3);

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title(
        "5. Renewal of 10,000 held locks, commands sent between one third of the lease and the next",
    );
    bench.server.flush()?;
    let port = bench.server.port();
    let locks = usize::try_from(LOCKS)?;
    let mut holder = Process::start("holder", &Plan { port, locks, lease: LEASE })?;
    holder.ready()?;
    let senders = bench.observe(|_| {
        tick(clock::now());
        Ok(())
    })?;
    let rounds = ticks(bench, &senders)?;
    holder.tell("0")?;
    let held: usize = holder.json()?;
    if held < locks {
        let lost = locks - held;
        let fault = format!("lockgate: {lost} of {LOCKS} locks were LOST while they were renewed");
        println!("  {fault}");
        bench.faults.push(fault);
    }
    Ok(vec![Figure {
        id: "5d",
        what: "commands sent per tick to renew 10,000 locks".into(),
        unit: "",
        line: Line::AtMost(f64::from(LOCKS / 100 + SHARDS)),
        rounds,
    }])
}

fn ticks(bench: &mut Bench, senders: &Senders) -> Outcome<Vec<f64>> {
    let mut rounds = Vec::new();
    let mut before = bench.server.counts()?;
    let mut moment = clock::now();
    for _ in 0..bench.pace.rounds {
        moment = tick(moment);
        let after = bench.server.counts()?;
        rounds.push(senders.count(&before, &after).sent);
        before = after;
    }
    Ok(rounds)
}

/// Waits until one tick after this moment.
fn tick(since: u64) -> u64 {
    let next = since + clock::nanos(LEASE / 3);
    clock::sleep_until(next);
    next
}
