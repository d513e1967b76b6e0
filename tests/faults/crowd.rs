//! A thousand tasks of three processes on one lock: row 19 of locks.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use lockgate::{
    Store,
    testing::history::{
        Check, Life,
        locks::{Event, History},
    },
};
use lockgate_tests::{
    Server, eventually,
    history::{CROWD, Process, TURNS},
};

use super::PROGRAM;

const PROCESSES: usize = 3;

/// The first one fills what is kept for later.
const ROUNDS: u64 = 5;

/// A process hands over 16 times, and has had it once before.
const COHORT: usize = 17;

/// All have had it in a second or two, where the machine has nothing else to do.
const LONGEST: Duration = Duration::from_secs(60);

/// What a process may have grown by, KiB, from the second round to the last: 320 bytes of each of its acquisitions are
/// more.
const FLAT: u64 = 1536;

/// Longest time in which one who asks stands in the store's line, and holders have been told of it, ns.
const IN_LINE: u64 = 150_000_000;

const ACQUISITIONS: u64 = PROCESSES as u64 * CROWD * TURNS;

struct Crowd {
    server: Server,
    folder: PathBuf,
    processes: Vec<Process>,
}

impl Crowd {
    async fn gather() -> Self {
        let server = Server::start().await;
        let name = format!("lockgate-crowd-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let url = server.url("x");
        let start = |n| {
            let log = log(&folder, n);
            let log = log.to_str().expect("a path in text");
            Process::start(Path::new(PROGRAM), &["crowd", &url, log])
        };
        let processes = (0..PROCESSES).map(start).collect();
        Self { server, folder, processes }
    }

    async fn tell(&mut self, word: &str) {
        for process in &mut self.processes {
            process.tell(word).await;
        }
    }

    async fn says(&mut self, n: usize) -> String {
        let said = tokio::time::timeout(LONGEST, self.processes[n].says()).await;
        said.expect("it comes to an end").expect("it lives")
    }

    /// All take it in turn, once more; how long that took.
    async fn goes(&mut self) -> Duration {
        let began = Instant::now();
        self.tell("go").await;
        for n in 0..PROCESSES {
            assert_eq!(self.says(n).await, "done");
        }
        began.elapsed()
    }

    /// Resident, of each, KiB.
    fn memory(&self) -> Vec<u64> {
        let of = |process: &Process| {
            let statm = format!("/proc/{}/statm", process.pid().expect("it lives"));
            let statm = fs::read_to_string(statm).expect("it can be read");
            let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
            pages.expect("a number") * 4
        };
        self.processes.iter().map(of).collect()
    }

    fn text(&self, n: usize) -> String {
        fs::read_to_string(log(&self.folder, n)).expect("it has written")
    }

    async fn left(&self) -> Vec<String> {
        let mut keys = redis::cmd("KEYS");
        let keys = keys.arg("lg:*").query_async(&mut self.server.connection().await).await;
        let mut keys: Vec<String> = keys.expect("an answer");
        keys.retain(|key| !key.ends_with(":meta") && !key.ends_with("}:f"));
        keys
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn log(folder: &Path, n: usize) -> PathBuf {
    folder.join(format!("{n}.log"))
}

/// A turn: when it was had, by its fence, and of which process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    fence: u64,
    at: u64,
    process: usize,
}

/// What is known of one round.
#[derive(Default)]
struct Round {
    turns: Vec<Turn>,
    /// When the last of them asked for the first time, ns.
    all_ask: u64,
}

impl Round {
    /// How often one process had it between two turns of another that had tasks in line all the while, at most. That is so
    /// from when all have asked until one of the processes has no more.
    fn passed(&mut self) -> usize {
        self.turns.sort_unstable();
        let last = |of| self.turns.iter().rposition(|turn| turn.process == of).unwrap_or(0);
        let all_want = (0..PROCESSES).map(last).min().unwrap_or(0);
        let mut since = [[0; PROCESSES]; PROCESSES];
        let (mut worst, mut judged) = (0, 0);
        for Turn { at, process, .. } in &self.turns[..=all_want] {
            since[*process] = [0; PROCESSES];
            if *at < self.all_ask + IN_LINE {
                continue;
            }
            judged += 1;
            for (_, times) in since.iter_mut().enumerate().filter(|(other, _)| other != process) {
                times[*process] += 1;
                worst = worst.max(times[*process]);
            }
        }
        assert!(judged > self.turns.len() / 4, "{judged} of {} judged", self.turns.len());
        worst
    }
}

/// What all have written down: M1 and M2 of it, and of each round whose turn it was.
fn rounds(crowd: &Crowd) -> Vec<Round> {
    let mut history = History::default();
    let mut rounds: Vec<Round> = (0..ROUNDS).map(|_| Round::default()).collect();
    for process in 0..PROCESSES {
        let text = crowd.text(process);
        history.read(Life { process, number: 0 }, &text);
        for line in text.lines() {
            let Some((at, rest)) = line.split_once(' ') else { continue };
            let at = at.parse().expect("a time");
            let round = |op: u64| usize::try_from(op / (CROWD * TURNS)).expect("a number");
            match rest.split_once(' ').and_then(|(_, event)| event.parse().ok()) {
                Some(Event::Got(op, fence, _)) => {
                    rounds[round(op)].turns.push(Turn { fence, at, process });
                }
                Some(Event::Ask(op, ..)) if op % TURNS == 0 => {
                    let of = &mut rounds[round(op)];
                    of.all_ask = of.all_ask.max(at);
                }
                _ => {}
            }
        }
    }
    let turns: usize = rounds.iter().map(|round| round.turns.len()).sum();
    assert_eq!(turns as u64, ROUNDS * ACQUISITIONS);
    let (_, mut wrong) = history.check();
    // Of a request behind three hundred others of its own process that is no bound: here it is of processes.
    wrong.retain(|wrong| wrong.check != Check::F1);
    assert!(wrong.is_empty(), "{wrong:?}");
    rounds
}

#[tokio::test]
async fn a_thousand_tasks_of_three_processes_wait_in_turn_and_leave_nothing() {
    let mut crowd = Crowd::gather().await;
    let (mut longest, mut memory) = (Duration::ZERO, Vec::new());
    for _ in 0..ROUNDS {
        longest = longest.max(crowd.goes().await);
        memory.push(crowd.memory());
    }
    let calls = crowd.server.script_calls() / ROUNDS;
    println!("figure: calls for {ACQUISITIONS} acquisitions: {calls}");
    println!("figure: longest for {ACQUISITIONS} acquisitions {} ms", longest.as_millis());
    // N2: each hands over to its own, and most turns take no call.
    assert!(calls * 4 < ACQUISITIONS, "{calls} calls");
    let passed = rounds(&crowd).iter_mut().map(Round::passed).max().unwrap_or(0);
    println!("figure: turns of one process between two of another, at most {passed}");
    assert!(passed <= COHORT, "passed by {passed}");
    let (first, last) = (&memory[1], &memory[memory.len() - 1]);
    let grown = first.iter().zip(last).map(|(first, last)| last.saturating_sub(*first)).max();
    let grown = grown.unwrap_or(0);
    println!("figure: a process grown from the second round to the last by {grown} KiB");
    assert!(grown < FLAT, "{memory:?}");
    eventually("nothing to be left", async || crowd.left().await.is_empty()).await;
}

#[tokio::test]
async fn one_who_comes_when_as_many_wait_as_may_is_refused_at_once() {
    let mut crowd = Crowd::gather().await;
    let store = Store::connect(&crowd.server.url("x")).await.expect("the URL is right");
    let held = store.lock("x").acquire().await.expect("it is free");
    crowd.tell("beyond").await;
    let mut longest = 0;
    for n in 0..PROCESSES {
        let said = crowd.says(n).await;
        let refused = said.strip_prefix("refused ").and_then(|micros| micros.parse::<u64>().ok());
        longest = longest.max(refused.unwrap_or_else(|| panic!("{said}")));
    }
    println!("figure: one too many refused after {longest} us");
    // Those who may wait go on doing so, and are served.
    held.release().await;
    for n in 0..PROCESSES {
        assert_eq!(crowd.says(n).await, "served");
    }
    assert!(longest < 50_000, "{longest} us");
    eventually("nothing to be left", async || crowd.left().await.is_empty()).await;
}
