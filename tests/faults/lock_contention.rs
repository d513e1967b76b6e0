//! A thousand tasks of three processes that contend for one lock: row 19 of locks.

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
    RedisServer, connect_with_long_timeout, eventually,
    fleet::ChildProcess,
    history::{ACQUIRES_PER_CONTENDER, CONTENDER_COUNT},
    stalls,
};
use parking_lot::Mutex;

use super::FAULTS_BINARY;

const PROCESS_COUNT: usize = 3;

/// The first one fills what is kept for later.
const MIN_ROUNDS: u64 = 5;

/// After that more of them, until the order of so many waits was judged: those of processes that did not run are not.
const MIN_JUDGED_WAITS: usize = 200;
const MAX_ROUNDS: u64 = 25;

/// All have had it in a second or two, where the machine has nothing else to do.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// What a process may have grown by, KiB, from the second round to the last: 320 bytes of each of its acquisitions are
/// more.
const MAX_MEMORY_GROWTH_KIB: u64 = 1536;

const ACQUIRES_PER_ROUND: u64 = PROCESS_COUNT as u64 * CONTENDER_COUNT * ACQUIRES_PER_CONTENDER;

/// Those who wait look late, once a server has stood still, ns.
const STALL_RECOVERY_NS: u64 = 400_000_000;

struct ContenderFleet {
    server: RedisServer,
    log_folder: PathBuf,
    processes: Vec<ChildProcess>,
}

impl ContenderFleet {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let name = format!("lockgate-crowd-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the logs");
        let url = server.url("x");
        let start = |n| {
            let log = log_path(&folder, n);
            let log = log.to_str().expect("a path in text");
            ChildProcess::start(Path::new(FAULTS_BINARY), &["crowd", &url, log])
        };
        let processes = (0..PROCESS_COUNT).map(start).collect();
        Self { server, log_folder: folder, processes }
    }

    async fn send_line_to_all(&mut self, word: &str) {
        for process in &mut self.processes {
            process.send_line(word).await;
        }
    }

    async fn next_line(&mut self, n: usize) -> String {
        let said = tokio::time::timeout(ROUND_TIMEOUT, self.processes[n].next_line()).await;
        said.expect("it comes to an end").expect("it lives")
    }

    /// All take it in turn, once more; how long that took.
    async fn run_round(&mut self) -> Duration {
        let began = Instant::now();
        self.send_line_to_all("go").await;
        for n in 0..PROCESS_COUNT {
            assert_eq!(self.next_line(n).await, "done");
        }
        began.elapsed()
    }

    /// Resident, of each, KiB.
    fn resident_kib(&self) -> Vec<u64> {
        let of = |process: &ChildProcess| {
            let statm = format!("/proc/{}/statm", process.pid().expect("it lives"));
            let statm = fs::read_to_string(statm).expect("it can be read");
            let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
            pages.expect("a number") * 4
        };
        self.processes.iter().map(of).collect()
    }

    fn read_log(&self, n: usize) -> String {
        fs::read_to_string(log_path(&self.log_folder, n)).expect("it has written")
    }
}

impl Drop for ContenderFleet {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.log_folder);
    }
}

fn log_path(folder: &Path, n: usize) -> PathBuf {
    folder.join(format!("{n}.log"))
}

/// What all have written down is checked: M1, M2, L1, and F1: who asked later does not pass, but for a cohort. (A process
/// whose tasks asked together, before those of another, has it so often in a row. That is the order they came in.)
fn check_history(
    crowd: &ContenderFleet,
    troubles: &[DisturbedInterval],
    rounds: u64,
) -> LockCheckStats {
    let mut history = LockHistory::default();
    history.disturbances = troubles.to_vec();
    for process in 0..PROCESS_COUNT {
        history.add_log(ProcessIncarnation { process, generation: 0 }, &crowd.read_log(process));
    }
    let (looked, wrong) = history.check();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(looked.hold_count as u64, rounds * ACQUIRES_PER_ROUND);
    looked
}

#[tokio::test]
async fn thousand_waiters_are_served_in_order_without_leaks() {
    let mut crowd = ContenderFleet::start().await;
    let troubles: Arc<Mutex<Vec<DisturbedInterval>>> = Arc::default();
    let notes = Arc::clone(&troubles);
    let note =
        move |from, to| notes.lock().push(DisturbedInterval { from, to: to + STALL_RECOVERY_NS });
    let listening = tokio::spawn(stalls::report_server_stalls(&crowd.server, note));
    let (mut longest, mut memory) = (Duration::ZERO, Vec::new());
    for _ in 0..MIN_ROUNDS {
        longest = longest.max(crowd.run_round().await);
        memory.push(crowd.resident_kib());
    }
    let calls = crowd.server.script_calls() / MIN_ROUNDS;
    println!("figure: calls for {ACQUIRES_PER_ROUND} acquisitions: {calls}");
    println!("figure: longest for {ACQUIRES_PER_ROUND} acquisitions {} ms", longest.as_millis());
    // N2: each hands over to its own, and most turns take no call.
    assert!(calls > 0 && calls * 2 < ACQUIRES_PER_ROUND, "{calls} calls");
    let (mut rounds, mut looked) =
        (MIN_ROUNDS, check_history(&crowd, &troubles.lock(), MIN_ROUNDS));
    while looked.checked_waits <= MIN_JUDGED_WAITS && rounds < MAX_ROUNDS {
        crowd.run_round().await;
        rounds += 1;
        looked = check_history(&crowd, &troubles.lock(), rounds);
    }
    listening.abort();
    let LockCheckStats { checked_waits: waits, max_overtakes: passed, .. } = looked;
    println!("figure: passed by {passed} who asked later, of one process at most");
    println!("figure: fewest waits whose order was judged {waits}");
    // Those who waited for longer than it takes to stand in line: on a fast machine few do.
    assert!(waits > MIN_JUDGED_WAITS, "of {} acquisitions {waits}", rounds * ACQUIRES_PER_ROUND);
    let (first, last) = (&memory[1], &memory[memory.len() - 1]);
    let grown = first.iter().zip(last).map(|(first, last)| last.saturating_sub(*first)).max();
    let grown = grown.unwrap_or(0);
    println!("figure: a process grown from the second round to the last by {grown} KiB");
    assert!(grown < MAX_MEMORY_GROWTH_KIB, "{memory:?}");
    eventually("nothing to be left", async || {
        crowd.server.leftover_lock_keys("lg:*").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn acquire_beyond_max_waiters_is_refused_at_once() {
    let mut crowd = ContenderFleet::start().await;
    let store = connect_with_long_timeout(&crowd.server.url("x")).await;
    let held = store.lock("x").acquire().await.expect("it is free");
    crowd.send_line_to_all("beyond").await;
    let mut longest = 0;
    for n in 0..PROCESS_COUNT {
        let said = crowd.next_line(n).await;
        let refused = said.strip_prefix("refused ").and_then(|micros| micros.parse::<u64>().ok());
        longest = longest.max(refused.unwrap_or_else(|| panic!("{said}")));
    }
    println!("figure: one too many refused after {longest} us");
    // Those who may wait go on doing so, and are served.
    held.release().await;
    for n in 0..PROCESS_COUNT {
        assert_eq!(crowd.next_line(n).await, "served");
    }
    // Who waits does so for a minute. How long a refusal takes, with a thousand others, is up to the machine: a figure.
    assert!(longest < 10_000_000, "{longest} us");
    eventually("nothing to be left", async || {
        crowd.server.leftover_lock_keys("lg:*").await.is_empty()
    })
    .await;
}
