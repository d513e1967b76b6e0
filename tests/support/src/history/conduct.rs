//! Who starts it all, makes the faults, and has the checks made.

use std::{
    fmt, fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::testing::history::{
    Life, Violation,
    locks::{History, Trouble},
    rest::Kept,
};
use parking_lot::Mutex;

use super::{
    clock::{self, MS},
    dice::Dice,
    faults,
    process::Process,
    register::{Outcome, Registers},
    rest,
    turn::{LEASE, REGISTERS},
    worker::Job,
};
use crate::{kept::kept, redis::Server};

const PROCESSES: usize = 4;
const NAMESPACE: &str = "faults";

/// Without faults at the end: those who wait are served, and order is judged.
const CALM: Duration = Duration::from_millis(2000);

/// How long somebody may wait after the faults, beside the lease of a holder that died: a few dead places of an
/// accept window each, and a machine that has other things to do. Below the longest wait of a worker: who is
/// refused at its end was not served.
const PATIENCE: Duration = Duration::from_secs(5);

/// A gap after which the server, or this process, counts as not having run.
const STALL: u64 = 50 * MS;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program whose `worker` mode is [`work`](super::work).
    pub program: PathBuf,
    /// How long, in all.
    pub time: Duration,
    /// Of all choices.
    pub seed: u64,
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

struct Seat {
    life: Life,
    process: Process,
}

/// The processes, and what is done to them.
pub(super) struct Crew {
    plan: Plan,
    folder: PathBuf,
    locks: Server,
    registers: Server,
    seats: Vec<Seat>,
    lives: Vec<Life>,
    troubles: Arc<Mutex<Vec<Trouble>>>,
    history: History,
}

impl Crew {
    async fn hire(plan: &Plan, dice: &mut Dice) -> Self {
        let name = format!("lockgate-faults-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let (locks, registers) = (Server::start().await, Server::start().await);
        let (began, patience) = (clock::now(), clock::ns(LEASE + PATIENCE));
        let mut history = History::default();
        (history.began, history.patience) = (began, patience);
        let (seats, lives, troubles) = (Vec::new(), Vec::new(), Arc::default());
        let plan = plan.clone();
        let mut crew = Self { plan, folder, locks, registers, seats, lives, troubles, history };
        for process in 0..PROCESSES {
            let seat = crew.start(Life { process, number: 0 }, dice.roll());
            crew.seats.push(seat);
        }
        crew
    }

    fn log(&self, life: Life) -> PathBuf {
        self.folder.join(format!("{}-{}.log", life.process, life.number))
    }

    fn start(&mut self, life: Life, seed: u64) -> Seat {
        let (locks, registers) = (self.locks.url(NAMESPACE), self.registers.url(""));
        let registers = registers.split('?').next().unwrap_or_default().to_owned();
        let job = Job { locks, registers, log: self.log(life), seed };
        let mut words = vec!["worker".to_owned()];
        words.extend(job.words());
        self.lives.push(life);
        Seat { life, process: Process::start(&self.plan.program, &words) }
    }

    pub(super) fn size(&self) -> u64 {
        u64::try_from(self.seats.len()).unwrap_or(0)
    }

    pub(super) async fn replace(&mut self, who: usize, seed: u64) {
        let life = self.seats[who].life;
        // Before it dies: what it was sure of then may not be so any more a moment later.
        self.history.killed.insert(life, clock::now());
        self.seats[who].process.kill().await;
        let next = Life { number: life.number + 1, ..life };
        self.seats[who] = self.start(next, seed);
    }

    pub(super) fn pause(&self, who: usize) {
        self.seats[who].process.pause();
    }

    pub(super) fn resume(&self, who: usize) {
        self.seats[who].process.resume();
    }

    pub(super) async fn freeze(&self, time: Duration) {
        self.locks.pause();
        tokio::time::sleep(time).await;
        self.locks.resume();
    }

    pub(super) fn trouble(&self, from: u64, to: u64) {
        self.troubles.lock().push(Trouble { from, to });
    }

    pub(super) async fn command(&self, words: &[&str]) {
        let _: redis::Value = self.ask(words).await;
    }

    pub(super) async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = self.locks.connection().await;
        command.query_async(&mut connection).await.expect("the server answers")
    }

    pub(super) async fn keys(&self) -> Vec<Kept> {
        kept(&mut self.locks.connection().await, NAMESPACE).await
    }

    pub(super) async fn says(&mut self, who: u64) -> Option<String> {
        self.seats[usize::try_from(who).unwrap_or(0)].process.says().await
    }

    async fn stop(&mut self) {
        for seat in &mut self.seats {
            seat.process.tell("stop").await;
        }
    }

    /// Reads what all have written.
    fn read(&mut self) {
        for life in self.lives.clone() {
            // One that was killed before it began has written nothing.
            let text = fs::read_to_string(self.log(life)).unwrap_or_default();
            self.history.read(life, &text);
        }
        self.history.troubles.append(&mut self.troubles.lock());
    }

    async fn outcomes(&self) -> Vec<Outcome> {
        let url = self.registers.url("");
        let url = url.split('?').next().unwrap_or_default();
        let registers = Registers::open(url).await.expect("the registers are there");
        let mut outcomes = Vec::new();
        for lock in REGISTERS {
            outcomes.push(registers.outcome(lock).await.expect("the registers are there"));
        }
        outcomes
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
    let ticking = tokio::spawn(tick(Arc::clone(&crew.troubles)));
    let time = plan.time.saturating_sub(CALM);
    let done = faults::make(&mut crew, time, &mut dice).await;
    crew.history.calm = clock::now();
    tokio::time::sleep(CALM).await;
    crew.stop().await;
    let mut wrong = rest::nothing_is_left(&mut crew).await;
    ticking.abort();
    crew.read();
    let (cost, too_much) = rest::cost(&crew, crew.history.grants()).await;
    let registers = crew.outcomes().await;
    crew.history.registers = registers.iter().map(|outcome| outcome.fenced.clone()).collect();
    let (looked, found) = crew.history.check();
    wrong.extend(too_much.into_iter().chain(found));
    let mut told = vec![
        format!("seed {}, {:.0?}; faults: {done}", plan.seed, started.elapsed()),
        format!("{cost}, {} holds", looked.holds),
        format!(
            "{} waits judged, passed by {} of one process at most",
            looked.waits, looked.passed
        ),
        format!("longest wait after the faults {} ms", looked.longest / MS),
    ];
    for Outcome { fenced, plain: (written, value) } in &registers {
        let lost = written - value.min(written);
        let (lock, fenced) = (&fenced.lock, fenced.writes.len());
        told.push(format!("{lock}: fenced {fenced} writes; unfenced {written}, {lost} lost"));
    }
    drop(crew.seats);
    let logs = (!wrong.is_empty()).then(|| crew.folder.clone());
    if logs.is_none() {
        let _ = fs::remove_dir_all(&crew.folder);
    }
    Verdict { told, wrong, logs }
}

/// Where this process did not run, the others may not have run either, nor the server.
async fn tick(troubles: Arc<Mutex<Vec<Trouble>>>) {
    loop {
        let from = clock::now();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = clock::now();
        if now - from > STALL {
            troubles.lock().push(Trouble { from, to: now + 400 * MS });
        }
    }
}
