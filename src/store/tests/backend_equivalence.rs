//! The same operations on the embedded store and on Redis get the same replies.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

use super::{
    client_operation::{ClientOperation, operation_sequences, proptest_config, token_modes},
    redis_only::is_permanent_key,
    simulated_clients::{LOCK_COUNT, SimulatedClients},
    store_call::StoreReply,
    store_harness::{StoreHarness, done_settlement},
    store_pair::{MAX_REAL_TIME, StorePair, retry_until_in_time},
};
use crate::{
    Key,
    store::{
        ChargedWindow,
        backend::{
            AcquireReply, ChargeOutcome, ClaimOutcome, ClaimedRun, Contenders, EndedJobFilter,
            GrantRefresh, JobHistory, JobId, JobListPage, JobView, LockMode, QuotaSnapshot,
            SettleOutcome, ShardStats,
        },
    },
};

/// Splits a reply into its content and its times. Fences, sequences and timestamps are dropped:
/// they are comparable only within one store.
fn split_times(reply: StoreReply) -> (StoreReply, Vec<Duration>) {
    let zero = Duration::ZERO;
    let (reply, times) = match reply {
        StoreReply::Acquired(reply) => {
            let (plain, times) = split_acquire_times(&reply);
            (StoreReply::Acquired(plain), times)
        }
        StoreReply::ReleasedAndReacquired(released, reply) => {
            let (plain, times) = split_acquire_times(&reply);
            (StoreReply::ReleasedAndReacquired(released, plain), times)
        }
        StoreReply::Claimed(ClaimOutcome::Claimed(run)) => {
            let ages = run.crashed_run_age.into_iter().collect();
            (StoreReply::Claimed(ClaimOutcome::Claimed(without_times(run))), ages)
        }
        StoreReply::Settled(SettleOutcome::Settled(Some(run))) => {
            (StoreReply::Settled(SettleOutcome::Settled(Some(without_times(run)))), vec![])
        }
        StoreReply::Claimed(ClaimOutcome::Busy(lease_remaining)) => {
            (StoreReply::Claimed(ClaimOutcome::Busy(zero)), vec![lease_remaining])
        }
        StoreReply::Claimed(ClaimOutcome::NotDue(delay)) => {
            (StoreReply::Claimed(ClaimOutcome::NotDue(zero)), vec![delay])
        }
        StoreReply::Charged(ChargeOutcome { admitted, snapshots }) => {
            let times = snapshots
                .iter()
                .flat_map(|s| [s.reset_after, s.retry_after, s.full_after])
                .collect();
            let plain = |s: QuotaSnapshot| QuotaSnapshot {
                reset_after: zero,
                retry_after: if s.retry_after == Duration::MAX { s.retry_after } else { zero },
                full_after: zero,
                charged_window: ChargedWindow::default(),
                ..s
            };
            let snapshots = snapshots.into_iter().map(plain).collect();
            (StoreReply::Charged(ChargeOutcome { admitted, snapshots }), times)
        }
        StoreReply::GrantRefreshed(Some(refresh)) => {
            let plain = GrantRefresh {
                fence: 0,
                contenders: contender_presence(refresh.contenders),
                server_us: 0,
            };
            (StoreReply::GrantRefreshed(Some(plain)), vec![])
        }
        StoreReply::DuePolled(mut due) => {
            let times = due.next_due_in.take().into_iter().collect();
            due.locks.sort();
            (StoreReply::DuePolled(due), times)
        }
        other => (other, vec![]),
    };
    (reply, times)
}

/// Returns a run without its fence and times, and without the offer, which depends on them.
fn without_times(run: ClaimedRun) -> ClaimedRun {
    let (fence, accepted_us, was_not_offered) = (0, 0, false);
    ClaimedRun { fence, accepted_us, was_not_offered, crashed_run_age: None, ..run }
}

/// Returns whether there are contenders, without their sequences.
fn contender_presence(contenders: Contenders) -> Contenders {
    Contenders { first: contenders.first.min(1), job: contenders.job.min(1) }
}

fn split_acquire_times(reply: &AcquireReply) -> (AcquireReply, Vec<Duration>) {
    match *reply {
        AcquireReply::Granted { queue_length, contenders, .. } => (
            AcquireReply::Granted {
                fence: 0,
                queue_length,
                contenders: contender_presence(contenders),
                server_us: 0,
            },
            vec![],
        ),
        AcquireReply::Busy { lease_remaining, queue_length, seq, has_joined } => {
            let seq = u64::from(seq > 0);
            (
                AcquireReply::Busy {
                    lease_remaining: Duration::ZERO,
                    queue_length,
                    seq,
                    has_joined,
                },
                vec![lease_remaining],
            )
        }
        AcquireReply::AlreadyAccepted => (AcquireReply::AlreadyAccepted, vec![]),
    }
}

fn are_times_close(a: &[Duration], b: &[Duration]) -> bool {
    let near = |(a, b): (&Duration, &Duration)| a.abs_diff(*b) <= MAX_REAL_TIME;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// State after the operations, as far as a client can see it.
#[derive(Debug, PartialEq)]
struct VisibleState {
    heads: Vec<Option<JobId>>,
    due_locks: Vec<Vec<Key>>,
    jobs: Vec<Option<JobView>>,
    dead_letters: Vec<Vec<JobId>>,
    shard_stats: Vec<ShardStats>,
}

/// Removes the time from a webhook event.
fn webhook_event_without_time(event: &str) -> String {
    let parts = event.splitn(5, ' ').enumerate().filter(|(index, _)| *index != 2);
    parts.map(|(_, part)| part).collect::<Vec<_>>().join(" ")
}

/// Removes the times from a job view. Of each run, only the number and the outcome remain.
fn job_without_times(job: JobView) -> JobView {
    let run_without_times = |run: &String| {
        let mut parts = run.splitn(4, ' ');
        let number = parts.next().unwrap_or_default().to_owned();
        number + " " + parts.nth(2).unwrap_or_default()
    };
    let history = JobHistory {
        accepted_us: 0,
        started_us: job.history.started_us.min(1),
        ended_us: job.history.ended_us.min(1),
        due_in: job.history.due_in.map(|_| Duration::ZERO),
        recent_runs: job.history.recent_runs.iter().map(run_without_times).collect(),
        webhook_event: job.history.webhook_event.as_deref().map(webhook_event_without_time),
        ..job.history
    };
    JobView { history, ..job }
}

/// Returns the visible state and the times until the next due locks. The calls run concurrently,
/// because real time is limited.
async fn read_visible_state(
    rig: &StoreHarness,
    clients: &SimulatedClients,
) -> (VisibleState, Vec<Duration>) {
    let keys = clients.keys.each_ref();
    // A poll changes the state, so it comes first.
    let due = join_all(keys.map(|key| rig.poll_due(key.shard(), 10))).await;
    let heads = keys.map(|key| rig.heads(std::slice::from_ref(key)));
    let jobs = clients.jobs.iter().rev().take(4).map(|id| rig.backend().job_view(id.clone()));
    let dead_letters = keys.map(|key| rig.list_ended(key.shard(), EndedJobFilter::Dead, 0, 3));
    let shard_stats = keys.map(|key| rig.shard_stats(key.shard()));
    let (heads, jobs) = join(join_all(heads), join_all(jobs)).await;
    let (dead_letters, shard_stats) = join(join_all(dead_letters), join_all(shard_stats)).await;
    let due_times = due.iter().filter_map(|due| due.next_due_in).collect();
    let mut due_locks: Vec<_> = due.into_iter().map(|due| due.locks).collect();
    // Locks that are due at the same time have no order.
    due_locks.iter_mut().for_each(|locks| locks.sort());
    let jobs = jobs.into_iter().map(|job| job.unwrap().map(job_without_times)).collect();
    let ids = |listed: JobListPage| listed.jobs.into_iter().map(|(id, _)| id).collect();
    let dead_letters = dead_letters.into_iter().map(ids).collect();
    (VisibleState { heads: heads.concat(), due_locks, jobs, dead_letters, shard_stats }, due_times)
}

/// Runs the operations on both stores, then the final ones. Compares the visible states after the
/// operations that `is_compared` selects. Returns the number of `operations` that had a target, or
/// `None` if the run took too long.
async fn run_on_pair(
    stores: &mut StorePair,
    operations: &[ClientOperation],
    end: &[ClientOperation],
    is_compared: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut applied_count = 0;
    for (index, operation) in operations.iter().chain(end).enumerate() {
        let Some((call, replies)) = stores.apply(operation).await else {
            continue;
        };
        let mut states = None;
        if is_compared(index) {
            let memory = read_visible_state(&stores.memory, &stores.clients).await;
            states = Some((memory, read_visible_state(&stores.redis, &stores.clients).await));
        }
        if stores.is_too_slow() {
            return None;
        }
        let context = || format!("move {index}, {call:?}");
        assert_same_replies(replies, context);
        if let Some(((state, due_times), (other_state, other_due_times))) = states {
            assert_eq!(state, other_state, "after {}", context());
            assert!(
                are_times_close(&due_times, &other_due_times),
                "{due_times:?} {other_due_times:?}, due after {}",
                context()
            );
        }
        applied_count += usize::from(index < operations.len());
    }
    let leftover = stores.redis.server().key_names().await;
    let leftover: Vec<_> = leftover.iter().filter(|name| !is_permanent_key(name)).collect();
    assert!(leftover.is_empty(), "{leftover:?} is left behind");
    Some(applied_count)
}

/// Asserts that both replies are equal, apart from times.
#[track_caller]
pub(super) fn assert_same_replies([one, other]: [StoreReply; 2], context: impl Fn() -> String) {
    let ((plain, times), (other, other_times)) = (split_times(one), split_times(other));
    assert_eq!(plain, other, "{}", context());
    assert!(are_times_close(&times, &other_times), "{times:?} {other_times:?}, {}", context());
}

/// Final operations: waits end, a worker ends all jobs, and their records expire.
fn final_operations() -> Vec<ClientOperation> {
    let mut end = vec![ClientOperation::SetPaused(false), ClientOperation::AdvanceTime(100)];
    for lock in 0..LOCK_COUNT {
        for _ in 0..4 {
            end.extend([
                ClientOperation::ClaimHead(lock, 5),
                ClientOperation::Settle(0, done_settlement(), None),
            ]);
        }
    }
    end.push(ClientOperation::AdvanceTime(100_000));
    end
}

/// Time limit for one path. A machine that exceeds it is too busy.
const FULL_RUN_LIMIT: Duration = Duration::from_secs(120);

/// Time limit for one random case, and the number of cases that may be rejected for it.
const CASE_TIME_LIMIT: Duration = Duration::from_secs(10);
const MAX_REJECTED_CASES: u32 = 30;

/// Number of slow runs after which a case is shortened, if it may be.
const RUNS_BEFORE_SHORTENING: usize = 5;

/// Repeats a case until it runs in time. Returns the number of operations that had a target, or
/// `None` if no run was in time within `time_limit`. `shorten` returns the length of the next runs
/// after too many slow ones.
async fn run_until_in_time(
    one_shard: bool,
    modes: &[LockMode],
    operations: &[ClientOperation],
    time_limit: Duration,
    is_compared: impl Fn(usize) -> bool,
    shorten: impl Fn(usize) -> usize,
) -> Option<usize> {
    let (started_at, mut length) = (Instant::now(), operations.len());
    while started_at.elapsed() < time_limit {
        let (prefix, mut applied_count) = (&operations[..length], None);
        let run = async |stores: &mut StorePair| {
            applied_count = run_on_pair(stores, prefix, &final_operations(), &is_compared).await;
            applied_count.is_some()
        };
        retry_until_in_time(RUNS_BEFORE_SHORTENING, one_shard, modes, run).await;
        if applied_count.is_some() {
            return applied_count;
        }
        length = shorten(length);
        println!("figure: fewest moves that are made in time {length}");
    }
    None
}

/// Runs all operations, however many runs are too slow. After the first `known_count` operations
/// only the replies are compared. The polls that compare the states also find what is due.
pub(super) async fn run_all_operations(
    one_shard: bool,
    modes: &[LockMode],
    operations: &[ClientOperation],
    known_count: usize,
) {
    let is_compared = |index: usize| index >= known_count;
    let applied_count =
        run_until_in_time(one_shard, modes, operations, FULL_RUN_LIMIT, is_compared, |length| {
            length
        })
        .await;
    let applied_count = applied_count.unwrap_or_else(|| {
        panic!("not once within {MAX_REAL_TIME:?} in {FULL_RUN_LIMIT:?}: this machine has too much else to do")
    });
    assert_eq!(applied_count, operations.len(), "not all of them were made: {operations:#?}");
}

/// Runs a random case. On a busy machine the case is shortened or rejected; the next one may be in
/// time.
async fn run_case_or_reject(
    one_shard: bool,
    modes: &[LockMode],
    operations: &[ClientOperation],
) -> Result<(), TestCaseError> {
    let shorten = |length: usize| (length * 3 / 4).max(length.min(12));
    let applied_count =
        run_until_in_time(one_shard, modes, operations, CASE_TIME_LIMIT, |_| true, shorten).await;
    // A reject, because the case did not fail: it is neither shrunk nor saved.
    let reject = || TestCaseError::reject("this machine has too much else to do");
    applied_count.map(drop).ok_or_else(reject)
}

#[test]
fn memory_and_redis_give_same_replies() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server running between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    let (source_file, max_global_rejects) = (Some(file!()), MAX_REJECTED_CASES);
    let mut runner =
        TestRunner::new(Config { source_file, max_global_rejects, ..proptest_config(96) });
    runner
        .run(
            &(any::<bool>(), token_modes(), operation_sequences(30)),
            |(one_shard, token_modes, operations)| {
                runtime.block_on(run_case_or_reject(one_shard, &token_modes, &operations))
            },
        )
        .unwrap();
}
