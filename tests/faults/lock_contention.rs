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

/// The first round fills caches and pools.
const MIN_ROUNDS: u64 = 5;

/// Further rounds follow until this many waits were checked. Waits during a stall are not checked.
const MIN_JUDGED_WAITS: usize = 200;
const MAX_ROUNDS: u64 = 25;

/// A round takes one or two seconds on an idle machine.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest growth of a process from the second to the last round, KiB. A leak of 320 bytes per
/// acquisition would exceed it.
const MAX_MEMORY_GROWTH_KIB: u64 = 1536;

const ACQUIRES_PER_ROUND: u64 = PROCESS_COUNT as u64 * CONTENDER_COUNT * ACQUIRES_PER_CONTENDER;

/// Waiters poll later after a stall of the server, ns.
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

    async fn send_line_to_all(&mut self, command: &str) {
        for process in &mut self.processes {
            process.send_line(command).await;
        }
    }

    async fn next_line(&mut self, n: usize) -> String {
        let line = tokio::time::timeout(ROUND_TIMEOUT, self.processes[n].next_line()).await;
        line.expect("it comes to an end").expect("it lives")
    }

    /// Runs one round, in which each contender acquires the lock, and returns its duration.
    async fn run_round(&mut self) -> Duration {
        let started = Instant::now();
        self.send_line_to_all("go").await;
        for n in 0..PROCESS_COUNT {
            assert_eq!(self.next_line(n).await, "done");
        }
        started.elapsed()
    }

    /// Resident memory of each process, KiB.
    fn resident_kib(&self) -> Vec<u64> {
        let resident = |process: &ChildProcess| {
            let statm = format!("/proc/{}/statm", process.pid().expect("it lives"));
            let statm = fs::read_to_string(statm).expect("it can be read");
            let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
            pages.expect("a number") * 4
        };
        self.processes.iter().map(resident).collect()
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

/// Checks the logs of all processes: M1, M2, L1 and F1 (a later request overtakes only within a
/// batch of handovers). Tasks of one process that arrived together, before those of another, are
/// served together: that is the order of arrival.
fn check_history(
    fleet: &ContenderFleet,
    disturbances: &[DisturbedInterval],
    rounds: u64,
) -> LockCheckStats {
    let mut history = LockHistory::default();
    history.disturbances = disturbances.to_vec();
    for process in 0..PROCESS_COUNT {
        history.add_log(ProcessIncarnation { process, generation: 0 }, &fleet.read_log(process));
    }
    let (stats, violations) = history.check();
    assert!(violations.is_empty(), "{violations:?}");
    assert_eq!(stats.hold_count as u64, rounds * ACQUIRES_PER_ROUND);
    stats
}

#[tokio::test]
async fn thousand_waiters_are_served_in_order_without_leaks() {
    let mut fleet = ContenderFleet::start().await;
    let disturbances: Arc<Mutex<Vec<DisturbedInterval>>> = Arc::default();
    let recorded = Arc::clone(&disturbances);
    let record = move |from, to| {
        recorded.lock().push(DisturbedInterval { from, to: to + STALL_RECOVERY_NS });
    };
    let monitor = tokio::spawn(stalls::report_server_stalls(&fleet.server, record));
    let (mut longest_round, mut resident) = (Duration::ZERO, Vec::new());
    for _ in 0..MIN_ROUNDS {
        longest_round = longest_round.max(fleet.run_round().await);
        resident.push(fleet.resident_kib());
    }
    let calls = fleet.server.script_calls() / MIN_ROUNDS;
    println!("figure: calls for {ACQUIRES_PER_ROUND} acquisitions: {calls}");
    println!(
        "figure: longest for {ACQUIRES_PER_ROUND} acquisitions {} ms",
        longest_round.as_millis()
    );
    // N2: each process hands over locally, and most acquisitions make no call.
    assert!(calls > 0 && calls * 2 < ACQUIRES_PER_ROUND, "{calls} calls");
    let (mut rounds, mut stats) =
        (MIN_ROUNDS, check_history(&fleet, &disturbances.lock(), MIN_ROUNDS));
    while stats.checked_waits <= MIN_JUDGED_WAITS && rounds < MAX_ROUNDS {
        fleet.run_round().await;
        rounds += 1;
        stats = check_history(&fleet, &disturbances.lock(), rounds);
    }
    monitor.abort();
    let LockCheckStats { checked_waits, max_overtakes, .. } = stats;
    println!("figure: overtaken by {max_overtakes} later acquires of one process at most");
    println!("figure: fewest waits checked for order {checked_waits}");
    // Only waits that are longer than the enqueue count; on a fast machine they are few.
    assert!(
        checked_waits > MIN_JUDGED_WAITS,
        "of {} acquisitions {checked_waits}",
        rounds * ACQUIRES_PER_ROUND
    );
    let (first, last) = (&resident[1], &resident[resident.len() - 1]);
    let growth = first.iter().zip(last).map(|(first, last)| last.saturating_sub(*first)).max();
    let growth = growth.unwrap_or(0);
    println!("figure: growth of a process from the second round to the last {growth} KiB");
    assert!(growth < MAX_MEMORY_GROWTH_KIB, "{resident:?}");
    eventually("nothing to be left", async || {
        fleet.server.leftover_lock_keys("lg:*").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn acquire_beyond_max_waiters_is_refused_at_once() {
    let mut fleet = ContenderFleet::start().await;
    let store = connect_with_long_timeout(&fleet.server.url("x")).await;
    let held = store.lock("x").acquire().await.expect("it is free");
    fleet.send_line_to_all("beyond").await;
    let mut longest_refusal = 0;
    for n in 0..PROCESS_COUNT {
        let line = fleet.next_line(n).await;
        let refused = line.strip_prefix("refused ").and_then(|micros| micros.parse::<u64>().ok());
        longest_refusal = longest_refusal.max(refused.unwrap_or_else(|| panic!("{line}")));
    }
    println!("figure: one too many refused after {longest_refusal} us");
    // The admitted waiters still wait and are served.
    held.release().await;
    for n in 0..PROCESS_COUNT {
        assert_eq!(fleet.next_line(n).await, "served");
    }
    // A waiter waits for a minute. The delay of a refusal beside a thousand waiters depends on the
    // machine, so it is only printed.
    assert!(longest_refusal < 10_000_000, "{longest_refusal} us");
    eventually("nothing to be left", async || {
        fleet.server.leftover_lock_keys("lg:*").await.is_empty()
    })
    .await;
}
