//! The same moves on both stores: whatever is pushed, ended, cancelled and sent twice, in whatever order, they answer
//! alike, and each task is accounted for.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::{
    StoreHarness,
    polling_worker::{
        PollingWorker, RUN_LEASE, SECOND, TaskRunHandle, dead_outcome, delayed_push_command,
        push_command, retry_outcome, return_outcome, test_queue, unique_push_command,
    },
};
use crate::store::{
    QueueStats, TaskId,
    backend::NodeId,
    tasks::{
        DeadLetterLimits, TaskOutcome, TaskPollCommand, TaskPollOutcome, TaskPushCommand,
        TaskRunLimits,
    },
    tests::client_operation::proptest_config,
};

const WORKER_COUNT: usize = 2;

/// Of dead letters: two of those that are pushed, and a little more.
const DEAD_LETTER_BYTES: u64 = 70;

/// A case that takes longer is not told from one in which time has passed.
const CASE_TIME_LIMIT: Duration = Duration::from_millis(800);

/// A push wakes somebody if the last one that did was 50 ms ago: by this clock that may be so on one of the stores and not
/// yet on the other, which is made its move a little later. What differs sooner differs for another reason.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(45);

/// So many times it is no matter of a moment.
const MAX_DIFFERENCES: u32 = 3;

/// How a case went.
enum ComparisonOutcome {
    Equal,
    /// It took too long.
    TimedOut,
    Differs(String),
}

#[derive(Clone, Debug)]
enum QueueOperation {
    Push(u8),
    /// This worker ends some of its runs, each in its own way, and wants more.
    Poll {
        worker: usize,
        max_runs: usize,
        outcomes: Vec<u8>,
        can_stay_idle: bool,
    },
    /// This worker's last turn once more.
    RepeatPoll(usize),
    Renew(usize),
    AdvanceTime(u32),
    Cancel(usize),
    Redrive(usize),
    RedriveAll,
    PurgeDead,
    SetPaused(bool),
}

fn operation_sequences() -> impl Strategy<Value = Vec<QueueOperation>> {
    let turn = (0..WORKER_COUNT, 0..4usize, vec(0..6u8, 0..4), any::<bool>()).prop_map(
        |(worker, want, ends, listed)| QueueOperation::Poll {
            worker,
            max_runs: want,
            outcomes: ends,
            can_stay_idle: listed,
        },
    );
    let one = prop_oneof![
        6 => (0..6u8).prop_map(QueueOperation::Push),
        8 => turn,
        1 => (0..WORKER_COUNT).prop_map(QueueOperation::RepeatPoll),
        1 => (0..WORKER_COUNT).prop_map(QueueOperation::Renew),
        3 => (1..4u32).prop_map(QueueOperation::AdvanceTime),
        1 => (0..20usize).prop_map(QueueOperation::Cancel),
        1 => (0..20usize).prop_map(QueueOperation::Redrive),
        1 => Just(QueueOperation::RedriveAll),
        1 => Just(QueueOperation::PurgeDead),
        1 => any::<bool>().prop_map(QueueOperation::SetPaused),
    ];
    vec(one, 1..30)
}

/// What both stores have been asked, and what the first one has answered.
struct QueueScenario {
    task_ids: Vec<TaskId>,
    workers: [(NodeId, u64, Option<TaskPollCommand>, Vec<TaskRunHandle>); WORKER_COUNT],
    run_limits: TaskRunLimits,
}

impl QueueScenario {
    fn new(limits: TaskRunLimits) -> Self {
        let turns = std::array::from_fn(|_| (NodeId::new(), 0, None, Vec::new()));
        Self { task_ids: Vec::new(), workers: turns, run_limits: limits }
    }

    fn push_command(&mut self, kind: u8) -> TaskPushCommand {
        let call = match kind {
            0 | 1 => push_command("now"),
            2 => delayed_push_command("later", SECOND * 20),
            3 => unique_push_command("one", "k", None),
            4 => unique_push_command("window", "w", Some(SECOND * 45)),
            _ => TaskPushCommand {
                retry_after_crash: false,
                max_attempts: 1,
                ..push_command("once")
            },
        };
        let call = TaskPushCommand { capacity: (5, 1 << 20), ..call };
        self.task_ids.push(call.id.clone());
        call
    }

    fn poll_command(
        &mut self,
        worker: usize,
        want: usize,
        ends: &[u8],
        listed: bool,
    ) -> TaskPollCommand {
        let limits = self.run_limits;
        let (node, number, last, runs) = &mut self.workers[worker];
        *number += 1;
        let some = runs.len().min(ends.len());
        let ends =
            runs.drain(..some).zip(ends).map(|(run, end)| run.settlement_with(task_outcome(*end)));
        let turn = TaskPollCommand {
            queue: test_queue(),
            node: node.clone(),
            worker: node.as_str().into(),
            poll_number: *number,
            max_runs: want,
            lease: RUN_LEASE,
            limits,
            idle_timeout: SECOND * 8,
            can_stay_idle: listed,
            dead_letter_limits: DeadLetterLimits {
                retention: SECOND * 200,
                max_count: 3,
                max_bytes: DEAD_LETTER_BYTES,
                max_crashes: 2,
            },
            settlements: ends.collect(),
        };
        *last = Some(turn.clone());
        turn
    }
}

fn task_outcome(end: u8) -> TaskOutcome {
    match end {
        0..=2 => TaskOutcome::Done,
        3 => retry_outcome(SECOND * 20),
        4 => dead_outcome("hopeless"),
        _ => return_outcome(),
    }
}

/// What is told, but for times that the server's own clock has a part in.
type ComparableReply = (String, Option<Duration>);

async fn poll_with_reply(
    rig: &StoreHarness,
    turn: TaskPollCommand,
) -> (TaskPollOutcome, ComparableReply) {
    let answer = rig.backend().poll_tasks(turn).await.unwrap();
    let runs: Vec<_> = answer.started.iter().map(|run| (&run.id, run.attempt)).collect();
    let told = format!("{:?} {runs:?} {}", answer.settled, answer.is_listed_idle);
    let wait = answer.next_poll_in;
    (answer, (told, wait))
}

/// Makes a move on one of them; `scene` was moved already.
async fn apply_operation(
    rig: &StoreHarness,
    scene: &QueueScenario,
    made: &ResolvedOperation,
) -> (Option<TaskPollOutcome>, ComparableReply) {
    let backend = rig.backend();
    let id =
        |at: usize| scene.task_ids.get(at).cloned().unwrap_or_else(|| scene.task_ids[0].clone());
    let told = match made {
        ResolvedOperation::Push(call) => format!("{:?}", backend.push_task(call.clone()).await),
        ResolvedOperation::Poll(_, turn) => {
            let (answer, told) = poll_with_reply(rig, turn.clone()).await;
            return (Some(answer), told);
        }
        ResolvedOperation::Other(QueueOperation::Renew(worker)) => {
            let runs = scene.workers[*worker].3.iter().map(|run| run.token.clone()).collect();
            format!("{:?}", backend.renew_runs(test_queue(), runs, RUN_LEASE).await)
        }
        ResolvedOperation::Other(QueueOperation::AdvanceTime(times)) => {
            rig.advance(SECOND * 7 * *times).await;
            String::new()
        }
        ResolvedOperation::Other(QueueOperation::Cancel(at)) => {
            format!("{:?}", backend.cancel_task(test_queue(), id(*at)).await)
        }
        ResolvedOperation::Other(QueueOperation::Redrive(at)) => {
            format!("{:?}", backend.redrive_dead_letter(test_queue(), id(*at)).await)
        }
        ResolvedOperation::Other(QueueOperation::RedriveAll) => {
            format!(
                "{:?}",
                backend.redrive_dead_letters(test_queue(), 2, SECOND * 10, SECOND * 10).await
            )
        }
        ResolvedOperation::Other(QueueOperation::PurgeDead) => {
            format!("{:?}", backend.purge_dead_letters(test_queue()).await)
        }
        ResolvedOperation::Other(QueueOperation::SetPaused(pause)) => {
            format!("{:?}", backend.set_tasks_paused(test_queue(), *pause).await)
        }
        ResolvedOperation::Other(_) => String::new(),
    };
    (None, (told, None))
}

/// A move, as it is asked of both.
enum ResolvedOperation {
    Push(TaskPushCommand),
    Poll(usize, TaskPollCommand),
    Other(QueueOperation),
}

fn resolve_operation(
    scene: &mut QueueScenario,
    wanted: &QueueOperation,
) -> Option<ResolvedOperation> {
    Some(match wanted {
        QueueOperation::Push(kind) => ResolvedOperation::Push(scene.push_command(*kind)),
        QueueOperation::Poll { worker, max_runs: want, outcomes: ends, can_stay_idle: listed } => {
            ResolvedOperation::Poll(*worker, scene.poll_command(*worker, *want, ends, *listed))
        }
        QueueOperation::RepeatPoll(worker) => {
            ResolvedOperation::Poll(*worker, scene.workers[*worker].2.clone()?)
        }
        QueueOperation::Cancel(_) | QueueOperation::Redrive(_) if scene.task_ids.is_empty() => {
            return None;
        }
        QueueOperation::Renew(worker) if scene.workers[*worker].3.is_empty() => return None,
        other => ResolvedOperation::Other(other.clone()),
    })
}

/// Each task's place and history, as far as the clock has no part in it.
async fn visible_tasks(
    rig: &StoreHarness,
    scene: &QueueScenario,
) -> (BTreeMap<TaskId, String>, QueueStats) {
    let mut places = BTreeMap::new();
    for id in &scene.task_ids {
        if let Some(view) = rig.task_view(id).await {
            let past: Vec<_> = view.history.failures.iter().map(|p| (p.fault, &p.reason)).collect();
            let (attempts, crashes) = (view.history.attempts, view.history.crashes);
            let told =
                format!("{:?} {} {attempts} {crashes} {past:?}", view.state, view.payload_bytes);
            places.insert(id.clone(), told);
        }
    }
    (places, rig.queue_stats().await)
}

/// Each task that was accepted is somewhere, or is counted as gone.
fn assert_tasks_accounted(stats: &QueueStats) {
    let there = stats.waiting + stats.running + stats.dead_letters;
    assert_eq!(stats.pushed, there + stats.done + stats.cancelled + stats.trimmed, "{stats:?}");
    if stats.waiting + stats.running == 0 {
        assert_eq!(stats.bytes, 0);
    }
}

fn are_waits_close(one: Option<Duration>, other: Option<Duration>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) < SECOND,
        (one, other) => one == other,
    }
}

async fn compare_stores(limits: TaskRunLimits, wanted: &[QueueOperation]) -> ComparisonOutcome {
    let (memory, redis) = (StoreHarness::memory(), StoreHarness::redis().await);
    redis.ping().await;
    let (mut scene, started) = (QueueScenario::new(limits), Instant::now());
    let mut before = started;
    let differs = |what: String| {
        assert!(started.elapsed() >= WAKEUP_INTERVAL, "{what}");
        ComparisonOutcome::Differs(what)
    };
    for (at, wanted) in wanted.iter().enumerate() {
        let renews = matches!(wanted, QueueOperation::Renew(_));
        let Some(made) = resolve_operation(&mut scene, wanted) else { continue };
        // No two moves at the same time: on the server they are not. And as much later as there: of what was told
        // 50 ms ago nobody is told again.
        let passed = before.elapsed().max(Duration::from_millis(1));
        before = Instant::now();
        memory.advance(passed).await;
        let (answer, (told, wait)) = apply_operation(&memory, &scene, &made).await;
        let (_, (other, other_wait)) = apply_operation(&redis, &scene, &made).await;
        if started.elapsed() > CASE_TIME_LIMIT {
            return ComparisonOutcome::TimedOut;
        }
        if told != other || !are_waits_close(wait, other_wait) {
            let stores = format!("{told} {wait:?}, and on the server {other} {other_wait:?}");
            return differs(format!("move {at}, {wanted:?}: {stores}"));
        }
        if let (Some(answer), ResolvedOperation::Poll(worker, turn)) = (answer, &made) {
            let desk = PollingWorker::new(&memory);
            let (.., runs) = &mut scene.workers[*worker];
            let by = format!("{}.{}", turn.worker, turn.poll_number).into();
            for started in answer.started {
                let mut run = desk.decode_run(started, 0);
                run.token.owner = std::sync::Arc::clone(&by);
                if runs.iter().all(|known| known.token != run.token) {
                    runs.push(run);
                }
            }
        }
        let (there, stats) = visible_tasks(&memory, &scene).await;
        let (other, other_stats) = visible_tasks(&redis, &scene).await;
        if (&there, &stats) != (&other, &other_stats) {
            let stores =
                format!("{there:?} {stats:?}, and on the server {other:?} {other_stats:?}");
            return differs(format!("after move {at}, {wanted:?}: {stores}"));
        }
        if !renews {
            assert_tasks_accounted(&stats);
        }
    }
    ComparisonOutcome::Equal
}

#[test]
fn memory_and_redis_queues_reply_equally() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    let limits = prop_oneof![
        3 => Just(TaskRunLimits::default()),
        1 => Just(TaskRunLimits { max_running: 2, ..TaskRunLimits::default() }),
        1 => Just(TaskRunLimits { start_interval_us: 5_000_000, start_burst: 2, ..TaskRunLimits::default() }),
    ];
    let config = Config { source_file: Some(file!()), ..proptest_config(96) };
    let mut runner = TestRunner::new(config);
    let cases = (limits, operation_sequences());
    runner
        .run(&cases, |(limits, wanted)| {
            let mut differed = 0;
            for _ in 0..20 {
                match runtime.block_on(compare_stores(limits, &wanted)) {
                    ComparisonOutcome::Equal => return Ok(()),
                    ComparisonOutcome::TimedOut => {}
                    ComparisonOutcome::Differs(what) => {
                        differed += 1;
                        assert!(differed < MAX_DIFFERENCES, "{what}");
                    }
                }
            }
            panic!("{} moves take longer than {CASE_TIME_LIMIT:?} on this machine", wanted.len());
        })
        .unwrap();
}
