//! The same moves on the embedded store and on Redis get the same replies.

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

/// What a reply says, the times in it apart. Fences, sequences and stamps are only ever compared with others of
/// the same store, as the model does.
fn split_times(reply: StoreReply) -> (StoreReply, Vec<Duration>) {
    let zero = Duration::ZERO;
    let (reply, times) = match reply {
        StoreReply::Acquired(reply) => {
            let (plain, times) = split_acquire_times(&reply);
            (StoreReply::Acquired(plain), times)
        }
        StoreReply::ReleasedAndReacquired(gave_back, reply) => {
            let (plain, times) = split_acquire_times(&reply);
            (StoreReply::ReleasedAndReacquired(gave_back, plain), times)
        }
        StoreReply::Claimed(ClaimOutcome::Claimed(run)) => {
            let plain = ClaimedRun { fence: 0, accepted_us: 0, ..run };
            (StoreReply::Claimed(ClaimOutcome::Claimed(plain)), vec![])
        }
        StoreReply::Settled(SettleOutcome::Settled(Some(run))) => {
            let plain = ClaimedRun { fence: 0, accepted_us: 0, ..run };
            (StoreReply::Settled(SettleOutcome::Settled(Some(plain))), vec![])
        }
        StoreReply::Claimed(ClaimOutcome::Busy(left)) => {
            (StoreReply::Claimed(ClaimOutcome::Busy(zero)), vec![left])
        }
        StoreReply::Claimed(ClaimOutcome::NotDue(left)) => {
            (StoreReply::Claimed(ClaimOutcome::NotDue(zero)), vec![left])
        }
        StoreReply::Charged(ChargeOutcome { admitted, snapshots: states }) => {
            let times =
                states.iter().flat_map(|s| [s.reset_after, s.retry_after, s.full_after]).collect();
            let plain = |s: QuotaSnapshot| QuotaSnapshot {
                reset_after: zero,
                retry_after: if s.retry_after == Duration::MAX { s.retry_after } else { zero },
                full_after: zero,
                charged_window: ChargedWindow::default(),
                ..s
            };
            let states = states.into_iter().map(plain).collect();
            (StoreReply::Charged(ChargeOutcome { admitted, snapshots: states }), times)
        }
        StoreReply::GrantRefreshed(Some(still)) => {
            let plain = GrantRefresh {
                fence: 0,
                contenders: contender_presence(still.contenders),
                server_us: 0,
            };
            (StoreReply::GrantRefreshed(Some(plain)), vec![])
        }
        StoreReply::DuePolled(mut due) => {
            let times = due.next_due_in.take().into_iter().collect();
            due.locks.sort();
            (StoreReply::DuePolled(due), times)
        }
        same => (same, vec![]),
    };
    (reply, times)
}

/// Whether there is somebody, without the time.
fn contender_presence(others: Contenders) -> Contenders {
    Contenders { first: others.first.min(1), job: others.job.min(1) }
}

fn split_acquire_times(reply: &AcquireReply) -> (AcquireReply, Vec<Duration>) {
    match *reply {
        AcquireReply::Granted { queue_length: line, contenders: others, .. } => (
            AcquireReply::Granted {
                fence: 0,
                queue_length: line,
                contenders: contender_presence(others),
                server_us: 0,
            },
            vec![],
        ),
        AcquireReply::Busy {
            lease_remaining: left,
            queue_length: line,
            seq,
            has_joined: joined,
        } => {
            let seq = u64::from(seq > 0);
            (
                AcquireReply::Busy {
                    lease_remaining: Duration::ZERO,
                    queue_length: line,
                    seq,
                    has_joined: joined,
                },
                vec![left],
            )
        }
        AcquireReply::AlreadyAccepted => (AcquireReply::AlreadyAccepted, vec![]),
    }
}

fn are_times_close(a: &[Duration], b: &[Duration]) -> bool {
    let near = |(a, b): (&Duration, &Duration)| a.abs_diff(*b) <= MAX_REAL_TIME;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// What is left behind, as far as a client can see it.
#[derive(Debug, PartialEq)]
struct VisibleState {
    heads: Vec<Option<JobId>>,
    due_locks: Vec<Vec<Key>>,
    jobs: Vec<Option<JobView>>,
    dead_letters: Vec<Vec<JobId>>,
    shard_stats: Vec<ShardStats>,
}

/// What a call tells of an end, but for when that was.
fn webhook_event_without_time(end: &str) -> String {
    let words = end.splitn(5, ' ').enumerate().filter(|(at, _)| *at != 2);
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// When things happened apart: of a run are left its number and its outcome.
fn job_without_times(job: JobView) -> JobView {
    let plain = |run: &String| {
        let mut words = run.splitn(4, ' ');
        let number = words.next().unwrap_or_default().to_owned();
        number + " " + words.nth(2).unwrap_or_default()
    };
    let past = JobHistory {
        accepted_us: 0,
        started_us: job.history.started_us.min(1),
        ended_us: job.history.ended_us.min(1),
        due_in: job.history.due_in.map(|_| Duration::ZERO),
        recent_runs: job.history.recent_runs.iter().map(plain).collect(),
        webhook_event: job.history.webhook_event.as_deref().map(webhook_event_without_time),
        ..job.history
    };
    JobView { history: past, ..job }
}

/// Besides, when something comes due. The calls go out together: real time is short here.
async fn read_visible_state(
    rig: &StoreHarness,
    clients: &SimulatedClients,
) -> (VisibleState, Vec<Duration>) {
    let keys = clients.keys.each_ref();
    // A look changes what is there.
    let due = join_all(keys.map(|key| rig.poll_due(key.shard(), 10))).await;
    let heads = keys.map(|key| rig.heads(std::slice::from_ref(key)));
    let jobs = clients.jobs.iter().rev().take(4).map(|id| rig.backend().job_view(id.clone()));
    let dead = keys.map(|key| rig.list_ended(key.shard(), EndedJobFilter::Dead, 0, 3));
    let tally = keys.map(|key| rig.shard_stats(key.shard()));
    let (heads, jobs) = join(join_all(heads), join_all(jobs)).await;
    let (dead, tally) = join(join_all(dead), join_all(tally)).await;
    let next = due.iter().filter_map(|due| due.next_due_in).collect();
    let mut names: Vec<_> = due.into_iter().map(|due| due.locks).collect();
    // Those of the same moment have no order.
    names.iter_mut().for_each(|names| names.sort());
    let jobs = jobs.into_iter().map(|job| job.unwrap().map(job_without_times)).collect();
    let ids = |listed: JobListPage| listed.jobs.into_iter().map(|(id, _)| id).collect();
    let dead = dead.into_iter().map(ids).collect();
    (
        VisibleState {
            heads: heads.concat(),
            due_locks: names,
            jobs,
            dead_letters: dead,
            shard_stats: tally,
        },
        next,
    )
}

/// Makes the moves on both; of `made` how many there was something for. `None` if it took too long. After which of them
/// the stores are looked at is told by `looks`.
async fn run_on_pair(
    both: &mut StorePair,
    made: &[ClientOperation],
    end: &[ClientOperation],
    looks: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut played = 0;
    for (at, next) in made.iter().chain(end).enumerate() {
        let Some((call, replies)) = both.apply(next).await else {
            continue;
        };
        let mut seen = None;
        if looks(at) {
            let memory = read_visible_state(&both.memory, &both.clients).await;
            seen = Some((memory, read_visible_state(&both.redis, &both.clients).await));
        }
        if both.is_too_slow() {
            return None;
        }
        let context = || format!("move {at}, {call:?}");
        assert_same_replies(replies, context);
        if let Some(((seen, next), (other_seen, other_next))) = seen {
            assert_eq!(seen, other_seen, "after {}", context());
            assert!(
                are_times_close(&next, &other_next),
                "{next:?} {other_next:?}, due after {}",
                context()
            );
        }
        played += usize::from(at < made.len());
    }
    let left = both.redis.server().key_names().await;
    let left: Vec<_> = left.iter().filter(|name| !is_permanent_key(name)).collect();
    assert!(left.is_empty(), "{left:?} is left behind");
    Some(played)
}

/// Both say the same.
#[track_caller]
pub(super) fn assert_same_replies([one, other]: [StoreReply; 2], context: impl Fn() -> String) {
    let ((plain, times), (other, other_times)) = (split_times(one), split_times(other));
    assert_eq!(plain, other, "{}", context());
    assert!(are_times_close(&times, &other_times), "{times:?} {other_times:?}, {}", context());
}

/// Nobody waits any more; a worker ends all jobs; then what they leave ends.
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

/// As long as this no machine has so much else to do that a way is never gone in time.
const FULL_RUN_LIMIT: Duration = Duration::from_secs(120);

/// So long a story is tried before another one is told instead, and so many may come to nothing.
const CASE_TIME_LIMIT: Duration = Duration::from_secs(10);
const MAX_REJECTED_CASES: u32 = 30;

/// A case that is made in none of so many runs is tried with fewer moves, where it may be.
const RUNS_BEFORE_SHORTENING: usize = 5;

/// Until it was made in time; how many of the moves there was something for. `shorter`: of how many it is made after some
/// runs that were too slow. `None` if none was in time for so long.
async fn run_until_in_time(
    one_shard: bool,
    modes: &[LockMode],
    made: &[ClientOperation],
    patience: Duration,
    looks: impl Fn(usize) -> bool,
    shorter: impl Fn(usize) -> usize,
) -> Option<usize> {
    let (began, mut most) = (Instant::now(), made.len());
    while began.elapsed() < patience {
        let (told, mut played) = (&made[..most], None);
        let run = async |both: &mut StorePair| {
            played = run_on_pair(both, told, &final_operations(), &looks).await;
            played.is_some()
        };
        retry_until_in_time(RUNS_BEFORE_SHORTENING, one_shard, modes, run).await;
        if played.is_some() {
            return played;
        }
        most = shorter(most);
        println!("figure: fewest moves that are made in time {most}");
    }
    None
}

/// All of them, however often that takes too long. After the first ones, which are `known`, the replies alone are compared.
/// Whoever looks while all comes to an end is also the one who finds what is due.
pub(super) async fn run_all_operations(
    one_shard: bool,
    modes: &[LockMode],
    made: &[ClientOperation],
    known: usize,
) {
    let looks = |at: usize| at >= known;
    let played =
        run_until_in_time(one_shard, modes, made, FULL_RUN_LIMIT, looks, |most| most).await;
    let played = played.unwrap_or_else(|| {
        panic!("not once within {MAX_REAL_TIME:?} in {FULL_RUN_LIMIT:?}: this machine has too much else to do")
    });
    assert_eq!(played, made.len(), "not all of them were made: {made:#?}");
}

/// Where the machine has other things to do, a shorter story is told: of this case alone, the next one may have its time.
async fn run_case_or_reject(
    one_shard: bool,
    modes: &[LockMode],
    made: &[ClientOperation],
) -> Result<(), TestCaseError> {
    let shorter = |most: usize| (most * 3 / 4).max(most.min(12));
    let told = run_until_in_time(one_shard, modes, made, CASE_TIME_LIMIT, |_| true, shorter).await;
    // Nothing is wrong with the case: there is nothing to be shrunk, nor to be kept.
    let untold = || TestCaseError::reject("this machine has too much else to do");
    told.map(drop).ok_or_else(untold)
}

#[test]
fn memory_and_redis_give_same_replies() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    let (source_file, max_global_rejects) = (Some(file!()), MAX_REJECTED_CASES);
    let mut runner =
        TestRunner::new(Config { source_file, max_global_rejects, ..proptest_config(96) });
    runner
        .run(
            &(any::<bool>(), token_modes(), operation_sequences(30)),
            |(one_shard, token_modes, made)| {
                runtime.block_on(run_case_or_reject(one_shard, &token_modes, &made))
            },
        )
        .unwrap();
}
