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
    Rig,
    desk::{LEASE, Run, SECOND, Worker, back, dead, later, queue, retry, task, unique},
};
use crate::store::{
    QueueStats, TaskId,
    backend::NodeId,
    tasks::{
        DeadLetterLimits, TaskOutcome, TaskPollCommand, TaskPollOutcome, TaskPushCommand,
        TaskRunLimits,
    },
    tests::moves::cases,
};

const WORKERS: usize = 2;

/// Of dead letters: two of those that are pushed, and a little more.
const BYTES: u64 = 70;

/// A case that takes longer is not told from one in which time has passed.
const SLOW: Duration = Duration::from_millis(800);

/// A push wakes somebody if the last one that did was 50 ms ago: by this clock that may be so on one of the stores and not
/// yet on the other, which is made its move a little later. What differs sooner differs for another reason.
const WOKEN: Duration = Duration::from_millis(45);

/// So many times it is no matter of a moment.
const TIMES: u32 = 3;

/// How a case went.
enum Played {
    Alike,
    /// It took too long.
    Slow,
    Differs(String),
}

#[derive(Clone, Debug)]
enum Move {
    Push(u8),
    /// This worker ends some of its runs, each in its own way, and wants more.
    Turn {
        worker: usize,
        want: usize,
        ends: Vec<u8>,
        listed: bool,
    },
    /// This worker's last turn once more.
    TurnAgain(usize),
    Renew(usize),
    Pass(u32),
    Cancel(usize),
    Redrive(usize),
    RedriveAll,
    PurgeDead,
    Pause(bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let turn = (0..WORKERS, 0..4usize, vec(0..6u8, 0..4), any::<bool>())
        .prop_map(|(worker, want, ends, listed)| Move::Turn { worker, want, ends, listed });
    let one = prop_oneof![
        6 => (0..6u8).prop_map(Move::Push),
        8 => turn,
        1 => (0..WORKERS).prop_map(Move::TurnAgain),
        1 => (0..WORKERS).prop_map(Move::Renew),
        3 => (1..4u32).prop_map(Move::Pass),
        1 => (0..20usize).prop_map(Move::Cancel),
        1 => (0..20usize).prop_map(Move::Redrive),
        1 => Just(Move::RedriveAll),
        1 => Just(Move::PurgeDead),
        1 => any::<bool>().prop_map(Move::Pause),
    ];
    vec(one, 1..30)
}

/// What both stores have been asked, and what the first one has answered.
struct Scene {
    ids: Vec<TaskId>,
    turns: [(NodeId, u64, Option<TaskPollCommand>, Vec<Run>); WORKERS],
    limits: TaskRunLimits,
}

impl Scene {
    fn new(limits: TaskRunLimits) -> Self {
        let turns = std::array::from_fn(|_| (NodeId::new(), 0, None, Vec::new()));
        Self { ids: Vec::new(), turns, limits }
    }

    fn push(&mut self, kind: u8) -> TaskPushCommand {
        let call = match kind {
            0 | 1 => task("now"),
            2 => later("later", SECOND * 20),
            3 => unique("one", "k", None),
            4 => unique("window", "w", Some(SECOND * 45)),
            _ => TaskPushCommand { retry_after_crash: false, max_attempts: 1, ..task("once") },
        };
        let call = TaskPushCommand { capacity: (5, 1 << 20), ..call };
        self.ids.push(call.id.clone());
        call
    }

    fn turn(&mut self, worker: usize, want: usize, ends: &[u8], listed: bool) -> TaskPollCommand {
        let limits = self.limits;
        let (node, number, last, runs) = &mut self.turns[worker];
        *number += 1;
        let some = runs.len().min(ends.len());
        let ends = runs.drain(..some).zip(ends).map(|(run, end)| run.ended(verdict(*end)));
        let turn = TaskPollCommand {
            queue: queue(),
            node: node.clone(),
            worker: node.as_str().into(),
            poll_number: *number,
            max_runs: want,
            lease: LEASE,
            limits,
            idle_timeout: SECOND * 8,
            can_stay_idle: listed,
            dead_letter_limits: DeadLetterLimits {
                retention: SECOND * 200,
                max_count: 3,
                max_bytes: BYTES,
                max_crashes: 2,
            },
            settlements: ends.collect(),
        };
        *last = Some(turn.clone());
        turn
    }
}

fn verdict(end: u8) -> TaskOutcome {
    match end {
        0..=2 => TaskOutcome::Done,
        3 => retry(SECOND * 20),
        4 => dead("hopeless"),
        _ => back(),
    }
}

/// What is told, but for times that the server's own clock has a part in.
type Told = (String, Option<Duration>);

async fn turned(rig: &Rig, turn: TaskPollCommand) -> (TaskPollOutcome, Told) {
    let answer = rig.backend().poll_tasks(turn).await.unwrap();
    let runs: Vec<_> = answer.started.iter().map(|run| (&run.id, run.attempt)).collect();
    let told = format!("{:?} {runs:?} {}", answer.settled, answer.is_listed_idle);
    let wait = answer.next_poll_in;
    (answer, (told, wait))
}

/// Makes a move on one of them; `scene` was moved already.
async fn on(rig: &Rig, scene: &Scene, made: &Made) -> (Option<TaskPollOutcome>, Told) {
    let backend = rig.backend();
    let id = |at: usize| scene.ids.get(at).cloned().unwrap_or_else(|| scene.ids[0].clone());
    let told = match made {
        Made::Push(call) => format!("{:?}", backend.push_task(call.clone()).await),
        Made::Turn(_, turn) => {
            let (answer, told) = turned(rig, turn.clone()).await;
            return (Some(answer), told);
        }
        Made::Other(Move::Renew(worker)) => {
            let runs = scene.turns[*worker].3.iter().map(|run| run.token.clone()).collect();
            format!("{:?}", backend.renew_runs(queue(), runs, LEASE).await)
        }
        Made::Other(Move::Pass(times)) => {
            rig.advance(SECOND * 7 * *times).await;
            String::new()
        }
        Made::Other(Move::Cancel(at)) => {
            format!("{:?}", backend.cancel_task(queue(), id(*at)).await)
        }
        Made::Other(Move::Redrive(at)) => {
            format!("{:?}", backend.redrive_dead_letter(queue(), id(*at)).await)
        }
        Made::Other(Move::RedriveAll) => {
            format!(
                "{:?}",
                backend.redrive_dead_letters(queue(), 2, SECOND * 10, SECOND * 10).await
            )
        }
        Made::Other(Move::PurgeDead) => {
            format!("{:?}", backend.purge_dead_letters(queue()).await)
        }
        Made::Other(Move::Pause(pause)) => {
            format!("{:?}", backend.set_tasks_paused(queue(), *pause).await)
        }
        Made::Other(_) => String::new(),
    };
    (None, (told, None))
}

/// A move, as it is asked of both.
enum Made {
    Push(TaskPushCommand),
    Turn(usize, TaskPollCommand),
    Other(Move),
}

fn made(scene: &mut Scene, wanted: &Move) -> Option<Made> {
    Some(match wanted {
        Move::Push(kind) => Made::Push(scene.push(*kind)),
        Move::Turn { worker, want, ends, listed } => {
            Made::Turn(*worker, scene.turn(*worker, *want, ends, *listed))
        }
        Move::TurnAgain(worker) => Made::Turn(*worker, scene.turns[*worker].2.clone()?),
        Move::Cancel(_) | Move::Redrive(_) if scene.ids.is_empty() => return None,
        Move::Renew(worker) if scene.turns[*worker].3.is_empty() => return None,
        other => Made::Other(other.clone()),
    })
}

/// Each task's place and history, as far as the clock has no part in it.
async fn seen(rig: &Rig, scene: &Scene) -> (BTreeMap<TaskId, String>, QueueStats) {
    let mut places = BTreeMap::new();
    for id in &scene.ids {
        if let Some(view) = rig.task(id).await {
            let past: Vec<_> = view.history.failures.iter().map(|p| (p.fault, &p.reason)).collect();
            let (attempts, crashes) = (view.history.attempts, view.history.crashes);
            let told =
                format!("{:?} {} {attempts} {crashes} {past:?}", view.state, view.payload_bytes);
            places.insert(id.clone(), told);
        }
    }
    (places, rig.numbers().await)
}

/// Each task that was accepted is somewhere, or is counted as gone.
fn accounted(stats: &QueueStats) {
    let there = stats.waiting + stats.running + stats.dead_letters;
    assert_eq!(stats.pushed, there + stats.done + stats.cancelled + stats.trimmed, "{stats:?}");
    if stats.waiting + stats.running == 0 {
        assert_eq!(stats.bytes, 0);
    }
}

fn near(one: Option<Duration>, other: Option<Duration>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) < SECOND,
        (one, other) => one == other,
    }
}

async fn play(limits: TaskRunLimits, wanted: &[Move]) -> Played {
    let (memory, redis) = (Rig::memory(), Rig::redis().await);
    redis.ping().await;
    let (mut scene, started) = (Scene::new(limits), Instant::now());
    let mut before = started;
    let differs = |what: String| {
        assert!(started.elapsed() >= WOKEN, "{what}");
        Played::Differs(what)
    };
    for (at, wanted) in wanted.iter().enumerate() {
        let renews = matches!(wanted, Move::Renew(_));
        let Some(made) = made(&mut scene, wanted) else { continue };
        // No two moves at the same time: on the server they are not. And as much later as there: of what was told
        // 50 ms ago nobody is told again.
        let passed = before.elapsed().max(Duration::from_millis(1));
        before = Instant::now();
        memory.advance(passed).await;
        let (answer, (told, wait)) = on(&memory, &scene, &made).await;
        let (_, (other, other_wait)) = on(&redis, &scene, &made).await;
        if started.elapsed() > SLOW {
            return Played::Slow;
        }
        if told != other || !near(wait, other_wait) {
            let stores = format!("{told} {wait:?}, and on the server {other} {other_wait:?}");
            return differs(format!("move {at}, {wanted:?}: {stores}"));
        }
        if let (Some(answer), Made::Turn(worker, turn)) = (answer, &made) {
            let desk = Worker::new(&memory);
            let (.., runs) = &mut scene.turns[*worker];
            let by = format!("{}.{}", turn.worker, turn.poll_number).into();
            for started in answer.started {
                let mut run = desk.run(started, 0);
                run.token.owner = std::sync::Arc::clone(&by);
                if runs.iter().all(|known| known.token != run.token) {
                    runs.push(run);
                }
            }
        }
        let (there, stats) = seen(&memory, &scene).await;
        let (other, other_stats) = seen(&redis, &scene).await;
        if (&there, &stats) != (&other, &other_stats) {
            let stores =
                format!("{there:?} {stats:?}, and on the server {other:?} {other_stats:?}");
            return differs(format!("after move {at}, {wanted:?}: {stores}"));
        }
        if !renews {
            accounted(&stats);
        }
    }
    Played::Alike
}

#[test]
fn both_stores_answer_alike() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(Rig::redis());
    let limits = prop_oneof![
        3 => Just(TaskRunLimits::default()),
        1 => Just(TaskRunLimits { max_running: 2, ..TaskRunLimits::default() }),
        1 => Just(TaskRunLimits { start_interval_us: 5_000_000, start_burst: 2, ..TaskRunLimits::default() }),
    ];
    let config = Config { source_file: Some(file!()), ..cases(96) };
    let mut runner = TestRunner::new(config);
    let cases = (limits, moves());
    runner
        .run(&cases, |(limits, wanted)| {
            let mut differed = 0;
            for _ in 0..20 {
                match runtime.block_on(play(limits, &wanted)) {
                    Played::Alike => return Ok(()),
                    Played::Slow => {}
                    Played::Differs(what) => {
                        differed += 1;
                        assert!(differed < TIMES, "{what}");
                    }
                }
            }
            panic!("{} moves take longer than {SLOW:?} on this machine", wanted.len());
        })
        .unwrap();
}
