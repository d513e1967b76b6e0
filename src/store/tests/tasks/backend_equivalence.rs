//! The same operations on both stores: for any order of pushes, settlements, cancels and repeated
//! calls, the replies are equal and each task is accounted for.

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
use crate::{
    store::{
        QueueStats, TaskId,
        backend::NodeId,
        tasks::{
            DeadLetterLimits, StartedTask, TaskOutcome, TaskPollCommand, TaskPollOutcome,
            TaskPushCommand, TaskRecord, TaskRunLimits,
        },
        tests::client_operation::proptest_config,
    },
    trace::{RecordingPropagator, TraceContext},
};

const WORKER_COUNT: usize = 2;

/// Byte limit of dead letters: two of the pushed tasks without a trace context, and a little more.
const DEAD_LETTER_BYTES: u64 = 70;

/// Time limit of a case. In a slower one, elapsed time could explain a difference.
const CASE_TIME_LIMIT: Duration = Duration::from_millis(800);

/// A push sends no wake-up if the last one was sent less than 50 ms ago. One store may be past that
/// time and the other not yet, because its call comes a little later. An earlier difference has
/// another cause.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(45);

/// Number of differing runs that timing cannot explain.
const MAX_DIFFERENCES: u32 = 3;

/// Outcome of a case.
enum ComparisonOutcome {
    Equal,
    /// The time limit was exceeded.
    TimedOut,
    Differs(String),
}

#[derive(Clone, Debug)]
enum QueueOperation {
    Push(u8),
    /// Settles some of a worker's runs, each with its own outcome, and starts more.
    Poll {
        worker: usize,
        max_runs: usize,
        outcomes: Vec<u8>,
        can_stay_idle: bool,
    },
    /// Repeats the last poll of a worker.
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
    let poll = (0..WORKER_COUNT, 0..4usize, vec(0..7u8, 0..4), any::<bool>()).prop_map(
        |(worker, max_runs, outcomes, can_stay_idle)| QueueOperation::Poll {
            worker,
            max_runs,
            outcomes,
            can_stay_idle,
        },
    );
    let operation = prop_oneof![
        6 => (0..6u8).prop_map(QueueOperation::Push),
        8 => poll,
        1 => (0..WORKER_COUNT).prop_map(QueueOperation::RepeatPoll),
        1 => (0..WORKER_COUNT).prop_map(QueueOperation::Renew),
        3 => (1..4u32).prop_map(QueueOperation::AdvanceTime),
        1 => (0..20usize).prop_map(QueueOperation::Cancel),
        1 => (0..20usize).prop_map(QueueOperation::Redrive),
        1 => Just(QueueOperation::RedriveAll),
        1 => Just(QueueOperation::PurgeDead),
        1 => any::<bool>().prop_map(QueueOperation::SetPaused),
    ];
    vec(operation, 1..30)
}

fn trace_of(run: &StartedTask) -> Option<TraceContext> {
    TaskRecord::decode(&run.record).expect("the record is valid").trace
}

/// Calls to both stores, and the replies of the first.
struct QueueScenario {
    task_ids: Vec<TaskId>,
    workers: [(NodeId, u64, Option<TaskPollCommand>, Vec<TaskRunHandle>); WORKER_COUNT],
    run_limits: TaskRunLimits,
}

impl QueueScenario {
    fn new(run_limits: TaskRunLimits) -> Self {
        let workers = std::array::from_fn(|_| (NodeId::new(), 0, None, Vec::new()));
        Self { task_ids: Vec::new(), workers, run_limits }
    }

    fn push_command(&mut self, kind: u8) -> TaskPushCommand {
        let call = match kind {
            0 => push_command("now"),
            1 => TaskPushCommand {
                trace: Some(RecordingPropagator::context()),
                ..push_command("now")
            },
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
        max_runs: usize,
        outcomes: &[u8],
        can_stay_idle: bool,
    ) -> TaskPollCommand {
        let limits = self.run_limits;
        let (node, number, last, runs) = &mut self.workers[worker];
        *number += 1;
        let count = runs.len().min(outcomes.len());
        let settlements = runs
            .drain(..count)
            .zip(outcomes)
            .map(|(run, code)| run.settlement_with(task_outcome(*code)));
        let command = TaskPollCommand {
            queue: test_queue(),
            node: node.clone(),
            worker: node.as_str().into(),
            poll_number: *number,
            max_runs,
            lease: RUN_LEASE,
            limits,
            idle_timeout: SECOND * 8,
            can_stay_idle,
            dead_letter_limits: DeadLetterLimits {
                retention: SECOND * 200,
                max_count: 3,
                max_bytes: DEAD_LETTER_BYTES,
                max_crashes: 2,
            },
            settlements: settlements.collect(),
        };
        *last = Some(command.clone());
        command
    }
}

fn task_outcome(code: u8) -> TaskOutcome {
    match code {
        0..=2 => TaskOutcome::Done,
        3 => retry_outcome(SECOND * 20),
        4 => dead_outcome("hopeless"),
        6 => TaskOutcome::Cancelled,
        _ => return_outcome(),
    }
}

/// Reply without the times that depend on the server's clock.
type ComparableReply = (String, Option<Duration>);

async fn poll_with_reply(
    rig: &StoreHarness,
    command: TaskPollCommand,
) -> (TaskPollOutcome, ComparableReply) {
    let outcome = rig.backend().poll_tasks(command).await.unwrap();
    let runs: Vec<_> =
        outcome.started.iter().map(|run| (&run.id, run.attempt, trace_of(run))).collect();
    let text = format!("{:?} {runs:?} {}", outcome.settled, outcome.is_listed_idle);
    let wait = outcome.next_poll_in;
    (outcome, (text, wait))
}

/// Applies an operation to one store; `scenario` already includes it.
async fn apply_operation(
    rig: &StoreHarness,
    scenario: &QueueScenario,
    operation: &ResolvedOperation,
) -> (Option<TaskPollOutcome>, ComparableReply) {
    let backend = rig.backend();
    let id = |index: usize| {
        scenario.task_ids.get(index).cloned().unwrap_or_else(|| scenario.task_ids[0].clone())
    };
    let reply = match operation {
        ResolvedOperation::Push(call) => format!("{:?}", backend.push_task(call.clone()).await),
        ResolvedOperation::Poll(_, command) => {
            let (outcome, reply) = poll_with_reply(rig, command.clone()).await;
            return (Some(outcome), reply);
        }
        ResolvedOperation::Other(QueueOperation::Renew(worker)) => {
            let runs = scenario.workers[*worker].3.iter().map(|run| run.token.clone()).collect();
            format!("{:?}", backend.renew_runs(test_queue(), runs, RUN_LEASE).await)
        }
        ResolvedOperation::Other(QueueOperation::AdvanceTime(repetitions)) => {
            rig.advance(SECOND * 7 * *repetitions).await;
            String::new()
        }
        ResolvedOperation::Other(QueueOperation::Cancel(index)) => {
            format!("{:?}", backend.cancel_task(test_queue(), id(*index)).await)
        }
        ResolvedOperation::Other(QueueOperation::Redrive(index)) => {
            format!("{:?}", backend.redrive_dead_letter(test_queue(), id(*index)).await)
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
    (None, (reply, None))
}

/// An operation with all arguments resolved, for both stores.
enum ResolvedOperation {
    Push(TaskPushCommand),
    Poll(usize, TaskPollCommand),
    Other(QueueOperation),
}

fn resolve_operation(
    scenario: &mut QueueScenario,
    operation: &QueueOperation,
) -> Option<ResolvedOperation> {
    Some(match operation {
        QueueOperation::Push(kind) => ResolvedOperation::Push(scenario.push_command(*kind)),
        QueueOperation::Poll { worker, max_runs, outcomes, can_stay_idle } => {
            ResolvedOperation::Poll(
                *worker,
                scenario.poll_command(*worker, *max_runs, outcomes, *can_stay_idle),
            )
        }
        QueueOperation::RepeatPoll(worker) => {
            ResolvedOperation::Poll(*worker, scenario.workers[*worker].2.clone()?)
        }
        QueueOperation::Cancel(_) | QueueOperation::Redrive(_) if scenario.task_ids.is_empty() => {
            return None;
        }
        QueueOperation::Renew(worker) if scenario.workers[*worker].3.is_empty() => return None,
        other => ResolvedOperation::Other(other.clone()),
    })
}

/// Returns the state and history of each task, without times, and the statistics.
async fn visible_tasks(
    rig: &StoreHarness,
    scenario: &QueueScenario,
) -> (BTreeMap<TaskId, String>, QueueStats) {
    let mut descriptions = BTreeMap::new();
    for id in &scenario.task_ids {
        if let Some(view) = rig.task_view(id).await {
            let failures: Vec<_> =
                view.history.failures.iter().map(|p| (p.fault, &p.reason)).collect();
            let (attempts, crashes) = (view.history.attempts, view.history.crashes);
            let description = format!(
                "{:?} {} {attempts} {crashes} {failures:?}",
                view.state, view.payload_bytes
            );
            descriptions.insert(id.clone(), description);
        }
    }
    (descriptions, rig.queue_stats().await)
}

/// Asserts that each accepted task exists or is counted as ended.
fn assert_tasks_accounted(stats: &QueueStats) {
    let present = stats.waiting + stats.running + stats.dead_letters;
    assert_eq!(stats.pushed, present + stats.done + stats.cancelled + stats.trimmed, "{stats:?}");
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

async fn compare_stores(limits: TaskRunLimits, operations: &[QueueOperation]) -> ComparisonOutcome {
    let (memory, redis) = (StoreHarness::memory(), StoreHarness::redis().await);
    redis.ping().await;
    let (mut scenario, started) = (QueueScenario::new(limits), Instant::now());
    let mut last_at = started;
    let differs = |what: String| {
        assert!(started.elapsed() >= WAKEUP_INTERVAL, "{what}");
        ComparisonOutcome::Differs(what)
    };
    for (index, operation) in operations.iter().enumerate() {
        let is_renewal = matches!(operation, QueueOperation::Renew(_));
        let Some(resolved) = resolve_operation(&mut scenario, operation) else { continue };
        // No two operations have the same time, as on the server. The clocks advance together, so
        // the 50 ms between wake-ups end alike.
        let elapsed = last_at.elapsed().max(Duration::from_millis(1));
        last_at = Instant::now();
        memory.advance(elapsed).await;
        let (outcome, (reply, wait)) = apply_operation(&memory, &scenario, &resolved).await;
        let (_, (other, other_wait)) = apply_operation(&redis, &scenario, &resolved).await;
        if started.elapsed() > CASE_TIME_LIMIT {
            return ComparisonOutcome::TimedOut;
        }
        if reply != other || !are_waits_close(wait, other_wait) {
            let stores = format!("{reply} {wait:?}, and on the server {other} {other_wait:?}");
            return differs(format!("move {index}, {operation:?}: {stores}"));
        }
        if let (Some(outcome), ResolvedOperation::Poll(worker, command)) = (outcome, &resolved) {
            let decoder = PollingWorker::new(&memory);
            let (.., runs) = &mut scenario.workers[*worker];
            let owner = format!("{}.{}", command.worker, command.poll_number).into();
            for started in outcome.started {
                let mut run = decoder.decode_run(started, 0);
                run.token.owner = std::sync::Arc::clone(&owner);
                if runs.iter().all(|other_run| other_run.token != run.token) {
                    runs.push(run);
                }
            }
        }
        let (tasks, stats) = visible_tasks(&memory, &scenario).await;
        let (other, other_stats) = visible_tasks(&redis, &scenario).await;
        if (&tasks, &stats) != (&other, &other_stats) {
            let stores =
                format!("{tasks:?} {stats:?}, and on the server {other:?} {other_stats:?}");
            return differs(format!("after move {index}, {operation:?}: {stores}"));
        }
        if !is_renewal {
            assert_tasks_accounted(&stats);
        }
    }
    ComparisonOutcome::Equal
}

#[test]
fn memory_and_redis_queues_reply_equally() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server running between two cases.
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
        .run(&cases, |(limits, operations)| {
            let mut differences = 0;
            for _ in 0..20 {
                match runtime.block_on(compare_stores(limits, &operations)) {
                    ComparisonOutcome::Equal => return Ok(()),
                    ComparisonOutcome::TimedOut => {}
                    ComparisonOutcome::Differs(description) => {
                        differences += 1;
                        assert!(differences < MAX_DIFFERENCES, "{description}");
                    }
                }
            }
            panic!(
                "{} moves take longer than {CASE_TIME_LIMIT:?} on this machine",
                operations.len()
            );
        })
        .unwrap();
}
