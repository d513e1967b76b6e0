//! A thousand tasks of three processes on one lock: row 19 of locks.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate_history::{
    ProcessIncarnation,
    locks::{DisturbedInterval, LockCheckStats, LockHistory},
};
use lockgate_tests::{
    Server, eventually,
    fleet::Process,
    history::{CROWD, TURNS},
    patient_store, stalls,
};
use parking_lot::Mutex;

use super::PROGRAM;

const PROCESSES: usize = 3;

/// The first one fills what is kept for later.
const ROUNDS: u64 = 5;

/// After that more of them, until the order of so many waits was judged: those of processes that did not run are not.
const WAITS: usize = 200;
const MOST_ROUNDS: u64 = 25;

/// All have had it in a second or two, where the machine has nothing else to do.
const LONGEST: Duration = Duration::from_secs(60);

/// What a process may have grown by, KiB, from the second round to the last: 320 bytes of each of its acquisitions are
/// more.
const FLAT: u64 = 1536;

const ACQUISITIONS: u64 = PROCESSES as u64 * CROWD * TURNS;

/// Those who wait look late, once a server has stood still, ns.
const AFTERMATH: u64 = 400_000_000;

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
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn log(folder: &Path, n: usize) -> PathBuf {
    folder.join(format!("{n}.log"))
}

/// What all have written down is checked: M1, M2, L1, and F1: who asked later does not pass, but for a cohort. (A process
/// whose tasks asked together, before those of another, has it so often in a row. That is the order they came in.)
fn judged(crowd: &Crowd, troubles: &[DisturbedInterval], rounds: u64) -> LockCheckStats {
    let mut history = LockHistory::default();
    history.disturbances = troubles.to_vec();
    for process in 0..PROCESSES {
        history.add_log(ProcessIncarnation { process, generation: 0 }, &crowd.text(process));
    }
    let (looked, wrong) = history.check();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(looked.hold_count as u64, rounds * ACQUISITIONS);
    looked
}

#[tokio::test]
async fn a_thousand_tasks_of_three_processes_wait_in_turn_and_leave_nothing() {
    let mut crowd = Crowd::gather().await;
    let troubles: Arc<Mutex<Vec<DisturbedInterval>>> = Arc::default();
    let notes = Arc::clone(&troubles);
    let note = move |from, to| notes.lock().push(DisturbedInterval { from, to: to + AFTERMATH });
    let listening = tokio::spawn(stalls::silences(&crowd.server, note));
    let (mut longest, mut memory) = (Duration::ZERO, Vec::new());
    for _ in 0..ROUNDS {
        longest = longest.max(crowd.goes().await);
        memory.push(crowd.memory());
    }
    let calls = crowd.server.script_calls() / ROUNDS;
    println!("figure: calls for {ACQUISITIONS} acquisitions: {calls}");
    println!("figure: longest for {ACQUISITIONS} acquisitions {} ms", longest.as_millis());
    // N2: each hands over to its own, and most turns take no call.
    assert!(calls > 0 && calls * 2 < ACQUISITIONS, "{calls} calls");
    let (mut rounds, mut looked) = (ROUNDS, judged(&crowd, &troubles.lock(), ROUNDS));
    while looked.judged_waits <= WAITS && rounds < MOST_ROUNDS {
        crowd.goes().await;
        rounds += 1;
        looked = judged(&crowd, &troubles.lock(), rounds);
    }
    listening.abort();
    let LockCheckStats { judged_waits: waits, max_overtakes: passed, .. } = looked;
    println!("figure: passed by {passed} who asked later, of one process at most");
    println!("figure: fewest waits whose order was judged {waits}");
    // Those who waited for longer than it takes to stand in line: on a fast machine few do.
    assert!(waits > WAITS, "of {} acquisitions {waits}", rounds * ACQUISITIONS);
    let (first, last) = (&memory[1], &memory[memory.len() - 1]);
    let grown = first.iter().zip(last).map(|(first, last)| last.saturating_sub(*first)).max();
    let grown = grown.unwrap_or(0);
    println!("figure: a process grown from the second round to the last by {grown} KiB");
    assert!(grown < FLAT, "{memory:?}");
    eventually("nothing to be left", async || crowd.server.keys_left("lg:*").await.is_empty())
        .await;
}

#[tokio::test]
async fn one_who_comes_when_as_many_wait_as_may_is_refused_at_once() {
    let mut crowd = Crowd::gather().await;
    let store = patient_store(&crowd.server.url("x")).await;
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
    // Who waits does so for a minute. How long a refusal takes, with a thousand others, is up to the machine: a figure.
    assert!(longest < 10_000_000, "{longest} us");
    eventually("nothing to be left", async || crowd.server.keys_left("lg:*").await.is_empty())
        .await;
}
