//! Who starts the processes, makes the faults, and has it checked.

mod seen;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate_history::{Check, Life, Violation};

use parking_lot::Mutex;

use super::{epoch, fault::Fault, fill, rest};
use crate::{
    flat::{self, Kind, Samples},
    gauge::Gauge,
    history::{
        Plan, Process, Verdict,
        clock::{self, MS, ns},
        dice::Dice,
    },
    kept,
    proxy::{Moment, Proxy, Rule, Struck},
    redis::Server,
    stalls,
};

const PROCESSES: usize = 3;
const NAMESPACE: &str = "quota";

/// Without faults at the end: each client is served or refused by then.
const CALM: Duration = Duration::from_secs(4);

/// How soon. A half-open connection costs three calls their deadlines, and a breaker that has opened meanwhile a probe
/// more; the rest is for a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(3);

/// For so long it goes on at most, if nothing has shown yet that charges are put right once.
const MORE: Duration = Duration::from_secs(20);

/// What a soak must have measured.
const SERIES: [(&str, &[Kind]); 3] = [
    ("a process of quotas", flat::PROCESS),
    ("the server of quotas", flat::SERVER),
    ("quotas", flat::STORE),
];

struct Seat {
    life: Life,
    process: Process,
    proxy: Proxy,
}

struct Crew {
    program: PathBuf,
    folder: PathBuf,
    server: Server,
    seats: Vec<Seat>,
    lives: Vec<Life>,
    killed: BTreeSet<Life>,
    samples: Samples,
    /// Calls that put charges right, to be lost.
    settlements: Vec<Struck>,
    /// The [`epoch`] in which it began.
    first: u64,
}

impl Crew {
    async fn hire(plan: &Plan, dice: &mut Dice) -> Self {
        let name = format!("lockgate-quota-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let (server, program) = (Server::with_log("always").await, plan.program.clone());
        let mut crew = Self {
            program,
            folder,
            server,
            seats: Vec::new(),
            lives: Vec::new(),
            killed: BTreeSet::new(),
            samples: Samples::new(),
            settlements: Vec::new(),
            first: epoch(),
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
        let proxy = Proxy::to(&self.server, NAMESPACE).await;
        let log = self.log(life).display().to_string();
        let words = ["limiter".to_owned(), proxy.url(), log, seed.to_string()];
        self.lives.push(life);
        Seat { life, process: Process::start(&self.program, &words), proxy }
    }

    async fn one(&mut self, fault: Fault, dice: &mut Dice) {
        let who = usize::try_from(dice.below(PROCESSES as u64)).unwrap_or(0);
        let time = dice.ms(50, 1500);
        let Seat { life, process, proxy } = &mut self.seats[who];
        match fault {
            // The first one grows old.
            Fault::Kill if who == 0 => {}
            Fault::Kill => {
                self.killed.insert(*life);
                process.kill().await;
                let next = Life { number: life.number + 1, ..*life };
                self.seats[who] = self.start(next, dice.roll()).await;
            }
            Fault::Stop => {
                process.pause();
                tokio::time::sleep(time).await;
                process.resume();
            }
            Fault::CutCalls => self.command(&["CLIENT", "KILL", "TYPE", "normal"]).await,
            Fault::ForgetScripts => self.command(&["SCRIPT", "FLUSH"]).await,
            Fault::Freeze => {
                self.server.pause();
                tokio::time::sleep(time / 4).await;
                self.server.resume();
            }
            Fault::Restart => {
                self.server.kill();
                tokio::time::sleep(time).await;
                self.server.restart().await;
            }
            Fault::Stall => {
                proxy.stall(true);
                tokio::time::sleep(time).await;
                proxy.stall(false);
            }
            Fault::HalfOpen => proxy.half_open(),
            Fault::Delay => {
                proxy.delay(time / 20);
                tokio::time::sleep(time).await;
                proxy.delay(Duration::ZERO);
            }
            Fault::LoseReply => {
                let _struck = proxy.strike(Rule::new("charges", Moment::After));
            }
        }
    }

    /// What puts a charge right is lost on its way there, or, mostly, its reply on the way back.
    fn lose_a_settlement(&mut self, dice: &mut Dice) {
        let who = usize::try_from(dice.below(PROCESSES as u64)).unwrap_or(0);
        let moment = if dice.percent(75) { Moment::After } else { Moment::Before };
        let rule = Rule::new("settle_charge", moment);
        self.settlements.push(self.seats[who].proxy.strike(rule));
    }

    /// Makes faults and is calm after that, and again if nothing has shown yet that charges are put right once; what was
    /// done, and since when it is calm.
    async fn storm(&mut self, plan: &Plan, dice: &mut Dice) -> (String, u64) {
        let started = Instant::now();
        let (mut done, mut until) = (Vec::new(), started + plan.time.saturating_sub(CALM));
        loop {
            done.push(self.faults(plan, until, dice).await);
            let calm = clock::now();
            tokio::time::sleep(CALM).await;
            if self.shows() || started.elapsed() > plan.time + MORE {
                return (done.join("; again: "), calm);
            }
            until = Instant::now() + CALM;
        }
    }

    /// Makes faults until it is time to be calm; what was done, counted.
    async fn faults(&mut self, plan: &Plan, until: Instant, dice: &mut Dice) -> String {
        let mut done: BTreeMap<String, usize> = BTreeMap::new();
        let mut rested = Instant::now();
        while Instant::now() < until {
            let mut own = Dice::new(dice.roll());
            let fault = Fault::draw(&mut own);
            *done.entry(format!("{fault:?}")).or_default() += 1;
            // Whatever else is done.
            self.lose_a_settlement(&mut own);
            self.one(fault, &mut own).await;
            tokio::time::sleep(own.ms(50, 600)).await;
            if plan.soak.is_some_and(|every| rested.elapsed() > every) {
                self.rest().await;
                rested = Instant::now();
            }
        }
        for seat in &self.seats {
            seat.proxy.forget_rules();
        }
        let done: Vec<_> = done.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
        done.join(", ")
    }

    async fn command(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = self.server.connection().await;
        // Who has all cut off is cut off too.
        let _ = command.query_async::<redis::Value>(&mut connection).await;
    }

    async fn rest(&mut self) {
        let samples = &mut self.samples;
        samples.rest();
        for seat in &mut self.seats {
            seat.process.tell("rest").await;
        }
        let oldest = Gauge::ask(&mut self.seats[0].process).await;
        samples.gauge("a process of quotas", oldest);
        samples.gauge("the server of quotas", Gauge::of(self.server.pid()));
        let mut connection = self.server.connection().await;
        // Counters end with their windows; those whose windows are long are as many as epochs in one.
        let keys = kept::kept(&mut connection, NAMESPACE).await.len() as u64;
        samples.add("quotas", Kind::Keys, keys);
        samples.add("quotas", Kind::Kept, kept::for_ever(&mut connection, NAMESPACE).await);
        for seat in &mut self.seats {
            seat.process.tell("go").await;
        }
    }

    /// What is left when all have come to rest: every counter has an end, and nobody says anything any more.
    async fn left(&mut self) -> Vec<Violation> {
        let mut wrong = Vec::new();
        for (who, seat) in self.seats.iter_mut().enumerate() {
            seat.process.tell("stop").await;
            let said = tokio::time::timeout(Duration::from_secs(15), seat.process.says()).await;
            if !matches!(&said, Ok(Some(said)) if said == "quiet true") {
                let told = format!("process {who} does not come to rest: {said:?}");
                wrong.push(Violation { check: Check::L1, told });
            }
        }
        if wrong.is_empty() {
            wrong = rest::left(&self.server, NAMESPACE, PROCESSES as u64).await;
        }
        wrong
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
    let stalls: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let notes = Arc::clone(&stalls);
    let ticking = tokio::spawn(stalls::watch(move |from, to| notes.lock().push((from, to))));
    let notes = Arc::clone(&stalls);
    let note = move |from, to| notes.lock().push((from, to));
    let listening = tokio::spawn(stalls::silences(&crew.server, note));
    let filled = match plan.soak {
        Some(_) => Some(fill::full(&mut crew.seats[0].process).await),
        None => None,
    };
    let (done, calm) = crew.storm(plan, &mut dice).await;
    // Nobody may ask the server anything when all have come to rest.
    listening.abort();
    let mut wrong = crew.left().await;
    ticking.abort();
    let mut history = crew.history();
    (history.calm, history.patience) = (calm, ns(PATIENCE));
    history.stalls.append(&mut stalls.lock());
    let (looked, found) = history.check();
    wrong.extend(found);
    let expected = if plan.soak.is_some() { &SERIES[..] } else { &[] };
    let (flat, grown) = crew.samples.compare(expected);
    wrong.extend(grown.into_iter().map(|told| Violation { check: Check::N1, told }));
    if looked.entered == 0 {
        let told = "nobody was ever let in".to_owned();
        wrong.push(Violation { check: Check::L1, told });
    }
    if looked.spent == 0 {
        let told = "no quota was ever spent, so that nothing shows that it holds".to_owned();
        wrong.push(Violation { check: Check::RL1, told });
    }
    let lost = crew.lost();
    if lost == 0 || looked.exact == 0 {
        let told =
            format!("{lost} settlements were lost, and {} looks show something", looked.exact);
        wrong.push(Violation { check: Check::RL2, told });
    }
    let took = started.elapsed();
    let mut told = vec![
        format!("seed {}, {took:.0?}; faults: {done}", plan.seed),
        format!("{looked:?}, {lost} settlements lost"),
        format!("figure: let in beyond a quota {}", looked.over),
        format!("figure: longest without an answer after the faults {} ms", looked.longest / MS),
    ];
    told.extend(filled);
    told.extend(flat);
    drop(crew.seats);
    let logs = (!wrong.is_empty()).then(|| crew.folder.clone());
    if logs.is_none() {
        let _ = fs::remove_dir_all(&crew.folder);
    }
    Verdict { told, wrong, logs }
}
