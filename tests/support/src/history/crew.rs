//! The processes of a history, their servers, and what can be done to them.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate_history::{
    Life,
    locks::{History, Trouble},
    rest::Rest,
};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;

use super::{
    clock,
    conduct::Plan,
    dice::Dice,
    process::Process,
    register::{Outcome, Registers},
    turn::{LEASE, REGISTERS},
    worker::Job,
};
use crate::{
    flat::{self, Kind, Samples},
    gauge::Gauge,
    kept::{self, left_at_rest},
    proxy::Proxy,
    redis::Server,
};

const PROCESSES: usize = 4;
pub(super) const NAMESPACE: &str = "faults";

/// How long somebody may wait after the faults, beside the lease of a holder that died: a few dead places of an
/// accept window each, and a machine that has other things to do. Below the longest wait of a worker: who is
/// refused at its end was not served.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a soak must have measured.
pub(super) const SERIES: [(&str, &[Kind]); 3] = [
    ("a process of locks", flat::PROCESS),
    ("the server of locks", flat::SERVER),
    ("locks", flat::STORE),
];

pub(super) struct Seat {
    life: Life,
    process: Process,
    proxy: Option<Proxy>,
}

/// The processes, and what is done to them.
pub(super) struct Crew {
    plan: Plan,
    pub(super) folder: PathBuf,
    pub(super) locks: Server,
    registers: Server,
    pub(super) seats: Vec<Seat>,
    lives: Vec<Life>,
    pub(super) troubles: Arc<Mutex<Vec<Trouble>>>,
    pub(super) history: History,
    pub(super) samples: Samples,
    rested: Instant,
}

impl Crew {
    pub(super) async fn hire(plan: &Plan, dice: &mut Dice) -> Self {
        let name = format!("lockgate-faults-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let registers = Server::start().await;
        let locks = match plan.soak {
            Some(_) => Server::with_log("always").await,
            None => Server::start().await,
        };
        let (began, patience) = (clock::now(), clock::ns(LEASE + PATIENCE));
        let mut history = History::default();
        (history.began, history.patience) = (began, patience);
        let (seats, lives, troubles) = (Vec::new(), Vec::new(), Arc::default());
        let plan = plan.clone();
        let (samples, rested) = (Samples::new(), Instant::now());
        let mut crew = Self {
            plan,
            folder,
            locks,
            registers,
            seats,
            lives,
            troubles,
            history,
            samples,
            rested,
        };
        for process in 0..PROCESSES {
            let seat = crew.start(Life { process, number: 0 }, dice.roll()).await;
            crew.seats.push(seat);
        }
        crew
    }

    fn log(&self, life: Life) -> PathBuf {
        self.folder.join(format!("{}-{}.log", life.process, life.number))
    }

    async fn start(&mut self, life: Life, seed: u64) -> Seat {
        let proxy = match self.plan.soak {
            Some(_) => Some(Proxy::to(&self.locks, NAMESPACE).await),
            None => None,
        };
        let straight = || self.locks.url(NAMESPACE);
        let locks = proxy.as_ref().map_or_else(straight, Proxy::url);
        let registers = self.registers.url("");
        let registers = registers.split('?').next().unwrap_or_default().to_owned();
        let job = Job { locks, registers, log: self.log(life), seed };
        let mut words = vec!["worker".to_owned()];
        words.extend(job.words());
        self.lives.push(life);
        Seat { life, process: Process::start(&self.plan.program, &words), proxy }
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
        self.seats[who] = self.start(next, seed).await;
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

    /// Ended at once, and back after this time with all that it has answered.
    pub(super) async fn restart(&mut self, after: Duration) {
        self.locks.kill();
        tokio::time::sleep(after).await;
        self.locks.restart().await;
    }

    pub(super) fn soaks(&self) -> bool {
        self.plan.soak.is_some()
    }

    pub(super) fn proxy(&self, who: usize) -> Option<&Proxy> {
        self.seats[who].proxy.as_ref()
    }

    /// If it is time for it: all end what they have begun, and are measured.
    pub(super) async fn rest(&mut self) {
        if self.plan.soak.is_none_or(|every| self.rested.elapsed() < every) {
            return;
        }
        for seat in &mut self.seats {
            seat.process.tell("rest").await;
        }
        self.samples.rest();
        // The others are replaced, and are young whenever they are looked at.
        let oldest = Gauge::ask(&mut self.seats[0].process).await;
        self.samples.gauge("a process of locks", oldest);
        self.samples.gauge("the server of locks", Gauge::of(self.locks.pid()));
        self.samples.add("locks", Kind::Keys, self.left().await);
        let for_ever = kept::for_ever(&mut self.connection().await, NAMESPACE).await;
        self.samples.add("locks", Kind::Kept, for_ever);
        for seat in &mut self.seats {
            seat.process.tell("go").await;
        }
        self.rested = Instant::now();
    }

    pub(super) fn trouble(&self, from: u64, to: u64) {
        self.troubles.lock().push(Trouble { from, to });
    }

    /// Calls of scripts, since the beginning.
    pub(super) fn calls(&self) -> u64 {
        self.locks.script_calls()
    }

    pub(super) async fn connection(&self) -> MultiplexedConnection {
        self.locks.connection().await
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

    /// Keys that are not to be there at rest. Whoever was killed a moment ago has until its leases end.
    async fn left(&self) -> u64 {
        let mut connection = self.connection().await;
        left_at_rest(async || {
            let keys = kept::kept(&mut connection, NAMESPACE).await;
            Rest { keys, only_locks: true, ..Rest::default() }
        })
        .await
    }

    pub(super) async fn says(&mut self, who: u64) -> Option<String> {
        self.seats[usize::try_from(who).unwrap_or(0)].process.says().await
    }

    pub(super) async fn stop(&mut self) {
        for seat in &mut self.seats {
            if let Some(proxy) = &seat.proxy {
                proxy.forget_rules();
            }
            seat.process.tell("stop").await;
        }
    }

    /// Reads what all have written.
    pub(super) fn read(&mut self) {
        for life in self.lives.clone() {
            // One that was killed before it began has written nothing.
            let text = fs::read_to_string(self.log(life)).unwrap_or_default();
            self.history.read(life, &text);
        }
        self.history.troubles.append(&mut self.troubles.lock());
    }

    pub(super) async fn outcomes(&self) -> Vec<Outcome> {
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
