//! Who starts the processes, makes the faults, and has it checked.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::{
    Store,
    queue::{Queue, TaskId, TaskState},
};
use lockgate_history::{
    Check, Life, Violation,
    deferred::{Accepted, History, Run, Seen, Terms, Trouble},
};
use parking_lot::Mutex;

use super::{
    Line, MOST, QUEUE,
    fault::{Fault, rule},
};
use crate::{
    history::{
        Plan, Process, Verdict,
        clock::{self, ns},
        dice::Dice,
        process::kill_now,
    },
    ledger::stall::{self, AFTERMATH},
    proxy::Proxy,
    redis::Server,
    wait::within,
};

const PROCESSES: usize = 3;
const NAMESPACE: &str = "tasks";

/// Until all have ended once nothing is done to them any more: leases of the dead, pauses before the next attempt, and a
/// machine that has other things to do.
const ALL: Duration = Duration::from_secs(60);

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
    history: Arc<Mutex<History>>,
}

impl Crew {
    async fn hire(plan: &Plan, dice: &mut Dice) -> Self {
        let name = format!("lockgate-tasks-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let server = Server::with_log("always").await;
        let history = Arc::<Mutex<History>>::default();
        stall::note(Arc::downgrade(&history), server.pids());
        let (seats, lives, program) = (Vec::new(), Vec::new(), plan.program.clone());
        let mut crew = Self { program, folder, server, seats, lives, history };
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
        let words = ["tasks".to_owned(), proxy.url(), log, seed.to_string()];
        self.lives.push(life);
        Seat { life, process: Process::start(&self.program, &words), proxy }
    }

    /// SIGKILL, from wherever it is called.
    fn killer(&self, who: usize) -> impl Fn() + Send + Sync + 'static {
        let (life, pid) = (self.seats[who].life, self.seats[who].process.pid());
        let history = Arc::clone(&self.history);
        move || {
            if let Some(pid) = pid {
                // Before it dies: what it was sure of then may not be so any more a moment later.
                history.lock().killed.entry(life).or_insert_with(clock::now);
                kill_now(pid);
            }
        }
    }

    async fn replace(&mut self, who: usize, seed: u64) {
        self.killer(who)();
        self.seats[who].process.kill().await;
        let life = self.seats[who].life;
        let next = Life { number: life.number + 1, ..life };
        self.seats[who] = self.start(next, seed).await;
    }

    /// From now on, for so long and what comes of it, something is done to this process, or to all.
    fn trouble(&self, who: Option<usize>, time: Duration) {
        let life = who.map(|who| self.seats[who].life);
        let (from, to) = (clock::now(), clock::now() + ns(time + AFTERMATH));
        self.history.lock().troubles.push(Trouble { life, from, to });
    }

    async fn command(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = self.server.connection().await;
        // Who has all cut off is cut off too.
        let _ = command.query_async::<redis::Value>(&mut connection).await;
    }

    async fn one(&mut self, fault: Fault, dice: &mut Dice) {
        let who = usize::try_from(dice.below(PROCESSES as u64)).unwrap_or(0);
        let (time, rule, next) = (dice.ms(50, 2300), rule(dice), dice.roll());
        let proxy = self.seats[who].proxy.clone();
        match fault {
            Fault::Kill => self.replace(who, next).await,
            Fault::KillAtCall => {
                let mut struck = proxy.strike(rule.act(self.killer(who)));
                let _ = tokio::time::timeout(Duration::from_secs(1), struck.happened()).await;
                proxy.forget_rules();
                if struck.has_happened() {
                    self.replace(who, next).await;
                }
            }
            Fault::Stop => {
                self.trouble(Some(who), time);
                self.seats[who].process.pause();
                tokio::time::sleep(time).await;
                self.seats[who].process.resume();
            }
            Fault::LoseReply => drop(proxy.strike(rule)),
            Fault::Deafen => {
                proxy.lose_messages(true);
                tokio::time::sleep(time).await;
                proxy.lose_messages(false);
            }
            Fault::Cut => {
                self.trouble(None, Duration::ZERO);
                self.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
            }
            Fault::ForgetScripts => self.command(&["SCRIPT", "FLUSH"]).await,
            Fault::Freeze => {
                self.trouble(None, time / 5);
                self.server.pause();
                tokio::time::sleep(time / 5).await;
                self.server.resume();
            }
            Fault::Restart => {
                self.trouble(None, time / 5);
                self.server.kill();
                tokio::time::sleep(time / 5).await;
                self.server.restart().await;
            }
            Fault::Stall => {
                self.trouble(Some(who), time);
                proxy.stall(true);
                tokio::time::sleep(time).await;
                proxy.stall(false);
            }
        }
    }

    /// Makes faults for so long; what was done, counted.
    async fn faults(&mut self, time: Duration, dice: &mut Dice) -> String {
        let (started, mut done) = (Instant::now(), BTreeMap::<String, usize>::new());
        while started.elapsed() < time {
            let mut own = Dice::new(dice.roll());
            let fault = Fault::draw(&mut own);
            *done.entry(format!("{fault:?}")).or_default() += 1;
            self.one(fault, &mut own).await;
            tokio::time::sleep(own.ms(50, 400)).await;
        }
        for seat in &self.seats {
            seat.proxy.forget_rules();
        }
        let done: Vec<_> = done.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
        done.join(", ")
    }

    /// All push no more, and run what there is until there is nothing.
    async fn comes_to_rest(&mut self, queue: &Queue<()>) -> Vec<Violation> {
        for seat in &mut self.seats {
            seat.process.tell("stop").await;
            let said = within("the pushing to end", seat.process.says()).await;
            assert_eq!(said.as_deref(), Some("quiet"), "it lives");
        }
        let until = tokio::time::Instant::now() + ALL;
        loop {
            let stats = queue.stats().await.expect("the store is there");
            if stats.waiting + stats.running == 0 {
                let wrong = (stats.lost > 0 || stats.done + stats.dead != stats.pushed)
                    .then(|| violation(Check::D1, format!("tasks are unaccounted for: {stats:?}")));
                return wrong.into_iter().collect();
            }
            if tokio::time::Instant::now() > until {
                return vec![violation(Check::L1, format!("they do not end: {stats:?}"))];
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What all have written.
    fn read(&self) -> History {
        let mut history = std::mem::take(&mut *self.history.lock());
        let mut tasks = BTreeMap::<String, (u64, bool, Option<(String, u64)>)>::new();
        for life in &self.lives {
            // One that was killed before it began has written nothing.
            let text = fs::read_to_string(self.log(*life)).unwrap_or_default();
            history.read(*life, &text);
            for (at, line) in text.lines().filter_map(Line::read) {
                match line {
                    Line::Push(name, once) => drop(tasks.insert(name, (at, once, None))),
                    Line::Pushed(name, id) => {
                        tasks.entry(name).and_modify(|task| task.2 = Some((id, at)));
                    }
                }
            }
        }
        for (resource, (sent, once, pushed)) in tasks {
            let terms = if once { Terms::ONCE } else { Terms::again(MOST) };
            match pushed {
                Some((id, told)) => {
                    let task = Accepted { id, resource, sent, told, terms, sure: true };
                    history.accepted.push(task);
                }
                None => *history.unanswered.entry(resource).or_default() += 1,
            }
        }
        history
    }
}

fn violation(check: Check, told: String) -> Violation {
    Violation { check, told }
}

/// A dead letter is known; of one that is done the store keeps nothing, so that its runs have to say it.
async fn look_up(history: &mut History, queue: &Queue<()>) {
    for accepted in &history.accepted {
        let id = TaskId::parse(&accepted.id).expect("an id");
        let info = queue.get(&id).await.expect("the store is there");
        let state = match info.map(|info| info.state) {
            None => "done",
            Some(TaskState::Dead) => "dead",
            Some(_) => "waiting",
        };
        let of = |run: &&Run| run.job.as_deref() == Some(&*accepted.id);
        let last = history.runs.iter().filter(of).max_by_key(|run| run.from);
        let end = last.and_then(|run| run.end.as_ref());
        let response = end.map(|end| (end.status, end.body.clone()));
        let seen = Seen { state: state.to_owned(), reason: String::new(), response };
        history.seen.entry(accepted.id.clone()).or_default().push(seen);
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
    let done = crew.faults(plan.time, &mut dice).await;
    let calm = Instant::now();
    let builder = Store::builder(&crew.server.url(NAMESPACE)).deadline(Duration::from_secs(10));
    let store = builder.connect().await.expect("the URL is right");
    let queue: Queue<()> = store.queue(QUEUE);
    let mut wrong = crew.comes_to_rest(&queue).await;
    let ended = calm.elapsed();
    let report = store.check().run().await.expect("the store is there");
    wrong.extend(report.faults().map(|fault| violation(Check::N1, fault.to_string())));
    let mut history = crew.read();
    look_up(&mut history, &queue).await;
    let (looked, mut found) = history.check();
    // At least once: who stood still for longer than its lease may run beside the next one.
    found.retain(|found| matches!(found.check, Check::D1 | Check::D3));
    wrong.extend(found);
    if looked.accepted == 0 || looked.runs == 0 {
        wrong.push(violation(Check::L1, "nothing was ever run".to_owned()));
    }
    let told = vec![
        format!("seed {}, {:.0?}; faults: {done}", plan.seed, started.elapsed()),
        format!("{looked:?}; pushed without an answer {}", history.unanswered.len()),
        format!("figure: fewest tasks pushed {}", looked.accepted),
        format!("figure: all tasks ended after the faults {} ms", ended.as_millis()),
        format!("figure: violations {}", wrong.len()),
    ];
    drop(crew.seats);
    let logs = (!wrong.is_empty()).then(|| crew.folder.clone());
    if logs.is_none() {
        let _ = fs::remove_dir_all(&crew.folder);
    }
    Verdict { told, wrong, logs }
}
