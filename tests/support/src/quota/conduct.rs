//! Who starts the processes, makes the faults, and has it checked.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use lockgate::testing::history::{Check, Life, Violation, quota::History};

use super::policies;
use crate::{
    gauge::{Gauge, Samples},
    history::{Plan, Process, Verdict, dice::Dice},
    kept::kept,
    proxy::{Moment, Proxy, Rule},
    redis::Server,
};

const PROCESSES: usize = 3;
const NAMESPACE: &str = "quota";

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Stop,
    CutCalls,
    ForgetScripts,
    Freeze,
    Restart,
    Stall,
    HalfOpen,
    Delay,
    LoseReply,
}

impl Fault {
    const ALL: [Self; 10] = [
        Self::Kill,
        Self::Stop,
        Self::CutCalls,
        Self::ForgetScripts,
        Self::Freeze,
        Self::Restart,
        Self::Stall,
        Self::HalfOpen,
        Self::Delay,
        Self::LoseReply,
    ];

    fn draw(dice: &mut Dice) -> Self {
        Self::ALL[usize::try_from(dice.below(10)).unwrap_or(0)]
    }
}

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
}

impl Crew {
    async fn hire(plan: &Plan, dice: &mut Dice) -> Self {
        let name = format!("lockgate-quota-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let (server, program) = (Server::with_log("always").await, plan.program.clone());
        let mut crew = Self { program, folder, server, seats: Vec::new(), lives: Vec::new() };
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

    async fn command(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = self.server.connection().await;
        // Who has all cut off is cut off too.
        let _ = command.query_async::<redis::Value>(&mut connection).await;
    }

    async fn rest(&mut self, samples: &mut Samples) {
        for seat in &mut self.seats {
            seat.process.tell("rest").await;
        }
        let mut gauges = BTreeMap::new();
        let oldest = Gauge::ask(&mut self.seats[0].process).await;
        gauges.insert("a process of quotas".to_owned(), oldest);
        gauges.insert("the server of quotas".to_owned(), Gauge::of(self.server.pid()));
        let keys = kept(&mut self.server.connection().await, NAMESPACE).await;
        samples.add(gauges, keys.len() as u64);
        for seat in &mut self.seats {
            seat.process.tell("go").await;
        }
    }

    /// Every counter has an end.
    async fn left(&mut self) -> Vec<Violation> {
        let mut wrong = Vec::new();
        for (who, seat) in self.seats.iter_mut().enumerate() {
            seat.proxy.forget_rules();
            seat.process.tell("stop").await;
            let said = tokio::time::timeout(Duration::from_secs(15), seat.process.says()).await;
            if !matches!(&said, Ok(Some(said)) if said == "quiet true") {
                let told = format!("process {who} does not come to rest: {said:?}");
                wrong.push(Violation { check: Check::L1, told });
            }
        }
        let keys = kept(&mut self.server.connection().await, NAMESPACE).await;
        let rest = lockgate::testing::history::rest::Rest { keys, ..Default::default() };
        wrong.extend(rest.check());
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
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    let (mut samples, mut rested) = (Samples::default(), Instant::now());
    while started.elapsed() < plan.time {
        let mut own = Dice::new(dice.roll());
        let fault = Fault::draw(&mut own);
        *done.entry(format!("{fault:?}")).or_default() += 1;
        crew.one(fault, &mut own).await;
        tokio::time::sleep(own.ms(50, 600)).await;
        if plan.soak.is_some_and(|every| rested.elapsed() > every) {
            crew.rest(&mut samples).await;
            rested = Instant::now();
        }
    }
    let mut wrong = crew.left().await;
    let mut history = History::default();
    for life in &crew.lives {
        // One that was killed before it began has written nothing.
        history.read(*life, &fs::read_to_string(crew.log(*life)).unwrap_or_default());
    }
    history.limits =
        policies().into_iter().map(|(key, _, limit)| (key.to_owned(), limit)).collect();
    let (looked, found) = history.check();
    wrong.extend(found);
    let (flat, grown) = samples.compare();
    wrong.extend(grown.into_iter().map(|told| Violation { check: Check::N1, told }));
    if looked.entered == 0 {
        let told = "nobody was ever let in".to_owned();
        wrong.push(Violation { check: Check::L1, told });
    }
    let done: Vec<_> = done.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let took = started.elapsed();
    let mut told = vec![
        format!("seed {}, {took:.0?}; faults: {}", plan.seed, done.join(", ")),
        format!("{looked:?}"),
        format!("figure: let in beyond a quota {}", looked.over),
    ];
    told.extend(flat);
    drop(crew.seats);
    let logs = (!wrong.is_empty()).then(|| crew.folder.clone());
    if logs.is_none() {
        let _ = fs::remove_dir_all(&crew.folder);
    }
    Verdict { told, wrong, logs }
}
