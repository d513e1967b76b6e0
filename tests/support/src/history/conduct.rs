//! The domain of locks: its faults, its checks and its figures.

use std::time::Duration;

use super::turn::{LEASE, REGISTERS};
use crate::{
    checker::{
        Guarantee, Violation,
        idle_snapshot::check_command_cost,
        locks::{DisturbedInterval, LockCheckStats, LockHistory},
    },
    fleet::{
        Closing, Domain,
        Fault::{self, *},
        Fleet, Plan, Rules, Verdict,
        clock::{self, MS, ns},
        dice::Dice,
        register::{Outcome, Registers},
    },
    redis::Server,
};

const PROCESSES: usize = 4;

/// How long a request may wait after the faults, beside the lease of a holder that died: a few dead places of an
/// accept window each, and a machine that has other things to do. Below the longest wait of a worker: a request that is
/// refused at the end of its wait was not served.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many holds of all there are at least, on a machine that has other things to do.
const HOLDS: usize = 100;

/// In runs so long that there were some times without faults there are waits that nothing has touched; in a shorter one,
/// where the machine touches all, there may be none. The crowd (`tests/faults/crowd.rs`) goes on until there are.
const LONG: Duration = Duration::from_secs(40);

/// Calls per acquisition: one that takes the lock and one that releases it, and as many again for requests that wait,
/// are refused or give up.
const CEILING: u64 = 4;

/// The domain of locks.
#[derive(Debug)]
pub struct Locks {
    /// A server of their own: no fault of the locks' server is one of theirs.
    registers: Server,
    began: u64,
}

impl Domain for Locks {
    const NAME: &'static str = "locks";
    const MODE: &'static str = "worker";
    const RULES: Rules = Rules {
        faults: &[
            (Kill, 6),
            (Stop, 7),
            (CutMessages, 3),
            (CutCalls, 2),
            (ForgetScripts, 1),
            (Freeze, 1),
        ],
        soak: &[(Restart, 2), (Stall, 3), (HalfOpen, 3), (Delay, 2), (Cut, 2), (LoseReply, 4)],
        scripts: &["acquire", "release", "renew", "lock_batch"],
        lease: LEASE,
        pause: (60, 320),
        // Order is judged in the times without faults.
        turns: Some((Duration::from_millis(3200), Duration::from_millis(2800))),
        rests_in_calm: true,
        // Requests that wait are served, and order is judged.
        last: Duration::from_millis(2000),
        overlaps: true,
        straight: true,
        gaps: true,
        old: &["a process of locks"],
        server: "the server of locks",
        store: "locks",
        // A place whose waiter has just left is released after the shutdown, which did not wait for it, and looked for
        // until its lease is over: all calls are made within three seconds.
        closing: Closing { only_locks: true, tries: 4, ..Closing::COMMON },
        ..Rules::COMMON
    };

    async fn open(_server: &Server) -> Self {
        Self { registers: Server::start().await, began: clock::now() }
    }

    async fn begin(fleet: &mut Fleet<Self>, _dice: &mut Dice) {
        for _ in 0..PROCESSES {
            fleet.start(fleet.domain.registers.url("")).await;
        }
    }

    /// How long order and speed are not judged.
    fn aftermath(fault: Fault) -> Option<Duration> {
        Some(match fault {
            Kill => 2 * LEASE,
            CutMessages | CutCalls | ForgetScripts => Duration::from_millis(800),
            // Three calls in a row have to time out until a half-open connection is replaced.
            Restart | Stall | HalfOpen => 2 * LEASE + Duration::from_secs(1),
            _ => LEASE + Duration::from_millis(500),
        })
    }

    async fn judge(fleet: &mut Fleet<Self>, plan: &Plan, calm: u64) -> Verdict {
        let mut wrong = fleet.come_to_rest().await;
        let registers = Registers::open(&fleet.domain.registers.url("")).await;
        let registers = registers.expect("the registers are there").outcomes(REGISTERS).await;
        let mut history = history(fleet, calm);
        history.registers = registers.iter().map(|outcome| outcome.fenced.clone()).collect();
        let killed = history.killed_at.len();
        let (calls, grants) = (fleet.server.script_calls(), history.grant_count() as u64);
        let (looked, found) = history.check();
        wrong.extend(check_command_cost(calls, grants, CEILING).into_iter().chain(found));
        wrong.extend(too_little(killed, &looked, plan.time));
        let mut told = vec![
            format!("{calls} calls for {grants} acquisitions, {killed} killed"),
            format!("figure: fewest holds {}", looked.hold_count),
            format!("figure: fewest waits judged {}", looked.judged_waits),
            format!("passed by {} of one process at most", looked.max_overtakes),
            format!("figure: longest wait after the faults {} ms", looked.longest_wait / MS),
        ];
        for Outcome { fenced, plain: (written, value) } in &registers {
            let lost = written - value.min(written);
            let (lock, fenced) = (&fenced.lock, fenced.writes.len());
            told.push(format!("{lock}: fenced {fenced} writes; unfenced {written}, {lost} lost"));
        }
        Verdict { told, wrong, logs: None }
    }
}

fn history(fleet: &Fleet<Locks>, calm: u64) -> LockHistory {
    let mut history = LockHistory::default();
    (history.started_at, history.last_fault_end) = (fleet.domain.began, calm);
    history.max_wait = ns(LEASE + PATIENCE);
    fleet.read(|life, text| history.add_log(life, text));
    let notes = fleet.take_notes();
    history.killed_at = notes.killed;
    let troubles = notes.troubles.iter().map(|trouble| (trouble.from, trouble.to));
    let stalls = notes.stalls.iter().map(|(from, to)| (*from, to + 400 * MS));
    history.disturbances =
        troubles.chain(stalls).map(|(from, to)| DisturbedInterval { from, to }).collect();
    history
}

/// Where hardly a lock was held, no process was killed, or no wait was judged, no violation was to be found.
fn too_little(killed: usize, looked: &LockCheckStats, time: Duration) -> Option<Violation> {
    let LockCheckStats { hold_count: holds, judged_waits: waits, .. } = *looked;
    (holds < HOLDS || killed == 0 || (time >= LONG && waits == 0)).then(|| {
        let told = format!("{holds} holds, {killed} killed, {waits} waits judged: too little");
        Violation { guarantee: Guarantee::L1, description: told }
    })
}
