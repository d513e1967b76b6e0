//! Who starts it all, makes the faults, and has the checks made.

use std::{
    fmt, fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate_history::{
    Check, Violation,
    locks::{History, Looked, Trouble},
};

use super::{
    clock::{self, MS},
    crew::{Crew, SERIES},
    dice::Dice,
    faults,
    register::Outcome,
    rest,
};
use crate::stalls;

/// Without faults at the end: those who wait are served, and order is judged.
const CALM: Duration = Duration::from_millis(2000);

/// So many holds of all there are at least, on a machine that has other things to do.
const HOLDS: usize = 100;

/// In runs so long that there were some times without faults there are waits that nothing has touched; in a shorter one,
/// where the machine touches all, there may be none. The crowd (`tests/faults/crowd.rs`) goes on until there are.
const LONG: Duration = Duration::from_secs(40);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program whose `worker` mode is [`work`](super::work).
    pub program: PathBuf,
    /// How long, in all.
    pub time: Duration,
    /// Of all choices.
    pub seed: u64,
    /// All that can be done: each process behind a proxy, a server that is ended and comes back with its log. And
    /// every so often all rest, and what they have taken of the machine is compared.
    pub soak: Option<Duration>,
}

/// What came of it.
#[derive(Debug)]
pub struct Verdict {
    /// What was done and seen.
    pub told: Vec<String>,
    /// What is wrong; empty if all is well.
    pub wrong: Vec<Violation>,
    /// Where the logs are, if something is wrong.
    pub logs: Option<PathBuf>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.told {
            writeln!(f, "{line}")?;
        }
        for wrong in &self.wrong {
            writeln!(f, "{wrong}")?;
        }
        match &self.logs {
            Some(logs) => writeln!(f, "the logs are in {}", logs.display()),
            None => writeln!(f, "all checks passed"),
        }
    }
}

/// Runs it, and has it checked.
///
/// # Panics
///
/// If a server or a process can't be started.
pub async fn conduct(plan: &Plan) -> Verdict {
    let (started, mut dice) = (Instant::now(), Dice::new(plan.seed));
    let mut crew = Crew::hire(plan, &mut dice).await;
    // Where this process did not run, the others may not have run either, nor the server, which may also stand still alone.
    let note = || {
        let troubles = Arc::clone(&crew.troubles);
        move |from, to| troubles.lock().push(Trouble { from, to: to + 400 * MS })
    };
    let ticking = tokio::spawn(stalls::watch(note()));
    let listening = tokio::spawn(stalls::silences(&crew.locks, note()));
    let time = plan.time.saturating_sub(CALM);
    let done = faults::make(&mut crew, time, &mut dice).await;
    crew.history.calm = clock::now();
    tokio::time::sleep(CALM).await;
    // Nobody may ask the server anything when all have come to rest.
    listening.abort();
    crew.stop().await;
    let mut wrong = rest::nothing_is_left(&mut crew).await;
    ticking.abort();
    crew.read();
    let (cost, too_much) = rest::cost(&crew, crew.history.grants());
    let registers = crew.outcomes().await;
    let expected = if plan.soak.is_some() { &SERIES[..] } else { &[] };
    let (flat, grown) = crew.samples.compare(expected);
    wrong.extend(grown.into_iter().map(|told| Violation { check: Check::N1, told }));
    crew.history.registers = registers.iter().map(|outcome| outcome.fenced.clone()).collect();
    let (looked, found) = crew.history.check();
    wrong.extend(too_much.into_iter().chain(found));
    wrong.extend(too_little(&crew.history, &looked, plan.time));
    let mut told = vec![
        format!("seed {}, {:.0?}; faults: {done}", plan.seed, started.elapsed()),
        format!("{cost}, {} killed", crew.history.killed.len()),
        format!("figure: fewest holds {}", looked.holds),
        format!("figure: fewest waits judged {}", looked.waits),
        format!("passed by {} of one process at most", looked.passed),
        format!("figure: longest wait after the faults {} ms", looked.longest / MS),
        format!("figure: violations {}", wrong.len()),
    ];
    for Outcome { fenced, plain: (written, value) } in &registers {
        let lost = written - value.min(written);
        let (lock, fenced) = (&fenced.lock, fenced.writes.len());
        told.push(format!("{lock}: fenced {fenced} writes; unfenced {written}, {lost} lost"));
    }
    told.extend(flat);
    drop(crew.seats);
    let logs = (!wrong.is_empty()).then(|| crew.folder.clone());
    if logs.is_none() {
        let _ = fs::remove_dir_all(&crew.folder);
    }
    Verdict { told, wrong, logs }
}

/// Where hardly anything was held, nobody was killed, or no wait was judged, nothing wrong was to be found.
fn too_little(history: &History, looked: &Looked, time: Duration) -> Option<Violation> {
    let killed = history.killed.len();
    let Looked { holds, waits, .. } = *looked;
    (holds < HOLDS || killed == 0 || (time >= LONG && waits == 0)).then(|| {
        let told = format!("{holds} holds, {killed} killed, {waits} waits judged: too little");
        Violation { check: Check::L1, told }
    })
}
