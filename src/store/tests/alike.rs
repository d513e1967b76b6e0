//! The same moves on the embedded store and on Redis get the same replies.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

use super::{
    both::{Both, SLOW, in_time},
    calls::Reply,
    clients::{Clients, LOCKS},
    moves::{Move, cases, modes, moves},
    redis_only::lasting,
    rig::{Rig, done},
};
use crate::{
    Key,
    store::{
        ChargedWindow,
        backend::{
            AcquireReply, ChargeOutcome, ClaimOutcome, ClaimedRun, Contenders, EndedFilter,
            GrantRefresh, JobHistory, JobId, JobListPage, JobView, LockMode, QuotaSnapshot,
            SettleOutcome, ShardStats,
        },
    },
};

/// What a reply says, the times in it apart. Fences, sequences and stamps are only ever compared with others of
/// the same store, as the model does.
fn apart(reply: Reply) -> (Reply, Vec<Duration>) {
    let zero = Duration::ZERO;
    let (reply, times) = match reply {
        Reply::Acquired(reply) => {
            let (plain, times) = apart_acquired(&reply);
            (Reply::Acquired(plain), times)
        }
        Reply::HandedOn(gave_back, reply) => {
            let (plain, times) = apart_acquired(&reply);
            (Reply::HandedOn(gave_back, plain), times)
        }
        Reply::Claimed(ClaimOutcome::Claimed(run)) => {
            let plain = ClaimedRun { fence: 0, accepted_us: 0, ..run };
            (Reply::Claimed(ClaimOutcome::Claimed(plain)), vec![])
        }
        Reply::Settled(SettleOutcome::Settled(Some(run))) => {
            let plain = ClaimedRun { fence: 0, accepted_us: 0, ..run };
            (Reply::Settled(SettleOutcome::Settled(Some(plain))), vec![])
        }
        Reply::Claimed(ClaimOutcome::Busy(left)) => {
            (Reply::Claimed(ClaimOutcome::Busy(zero)), vec![left])
        }
        Reply::Claimed(ClaimOutcome::NotDue(left)) => {
            (Reply::Claimed(ClaimOutcome::NotDue(zero)), vec![left])
        }
        Reply::Charged(ChargeOutcome { admitted, snapshots: states }) => {
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
            (Reply::Charged(ChargeOutcome { admitted, snapshots: states }), times)
        }
        Reply::Still(Some(still)) => {
            let plain =
                GrantRefresh { fence: 0, contenders: whether(still.contenders), server_us: 0 };
            (Reply::Still(Some(plain)), vec![])
        }
        Reply::Looked(mut due) => {
            let times = due.next.take().into_iter().collect();
            due.names.sort();
            (Reply::Looked(due), times)
        }
        same => (same, vec![]),
    };
    (reply, times)
}

/// Whether there is somebody, without the time.
fn whether(others: Contenders) -> Contenders {
    Contenders { first: others.first.min(1), job: others.job.min(1) }
}

fn apart_acquired(reply: &AcquireReply) -> (AcquireReply, Vec<Duration>) {
    match *reply {
        AcquireReply::Granted { queue_length: line, contenders: others, .. } => (
            AcquireReply::Granted {
                fence: 0,
                queue_length: line,
                contenders: whether(others),
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

fn near(a: &[Duration], b: &[Duration]) -> bool {
    let near = |(a, b): (&Duration, &Duration)| a.abs_diff(*b) <= SLOW;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// What is left behind, as far as a client can see it.
#[derive(Debug, PartialEq)]
struct Seen {
    heads: Vec<Option<JobId>>,
    due: Vec<Vec<Key>>,
    jobs: Vec<Option<JobView>>,
    dead: Vec<Vec<JobId>>,
    tally: Vec<ShardStats>,
}

/// What a call tells of an end, but for when that was.
fn untimed(end: &str) -> String {
    let words = end.splitn(5, ' ').enumerate().filter(|(at, _)| *at != 2);
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// When things happened apart: of a run are left its number and its outcome.
fn plain_job(job: JobView) -> JobView {
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
        webhook_event: job.history.webhook_event.as_deref().map(untimed),
        ..job.history
    };
    JobView { history: past, ..job }
}

/// Besides, when something comes due. The calls go out together: real time is short here.
async fn see(rig: &Rig, clients: &Clients) -> (Seen, Vec<Duration>) {
    let keys = clients.keys.each_ref();
    // A look changes what is there.
    let due = join_all(keys.map(|key| rig.due(key.shard(), 10))).await;
    let heads = keys.map(|key| rig.heads(std::slice::from_ref(key)));
    let jobs = clients.jobs.iter().rev().take(4).map(|id| rig.backend().job_view(id.clone()));
    let dead = keys.map(|key| rig.list(key.shard(), EndedFilter::Dead, 0, 3));
    let tally = keys.map(|key| rig.tally(key.shard()));
    let (heads, jobs) = join(join_all(heads), join_all(jobs)).await;
    let (dead, tally) = join(join_all(dead), join_all(tally)).await;
    let next = due.iter().filter_map(|due| due.next).collect();
    let mut names: Vec<_> = due.into_iter().map(|due| due.names).collect();
    // Those of the same moment have no order.
    names.iter_mut().for_each(|names| names.sort());
    let jobs = jobs.into_iter().map(|job| job.unwrap().map(plain_job)).collect();
    let ids = |listed: JobListPage| listed.jobs.into_iter().map(|(id, _)| id).collect();
    let dead = dead.into_iter().map(ids).collect();
    (Seen { heads: heads.concat(), due: names, jobs, dead, tally }, next)
}

/// Makes the moves on both; of `made` how many there was something for. `None` if it took too long. After which of them
/// the stores are looked at is told by `looks`.
async fn play(
    both: &mut Both,
    made: &[Move],
    end: &[Move],
    looks: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut played = 0;
    for (at, next) in made.iter().chain(end).enumerate() {
        let Some((call, replies)) = both.step(next).await else {
            continue;
        };
        let mut seen = None;
        if looks(at) {
            let memory = see(&both.memory, &both.clients).await;
            seen = Some((memory, see(&both.redis, &both.clients).await));
        }
        if both.is_late() {
            return None;
        }
        let context = || format!("move {at}, {call:?}");
        are_alike(replies, context);
        if let Some(((seen, next), (other_seen, other_next))) = seen {
            assert_eq!(seen, other_seen, "after {}", context());
            assert!(near(&next, &other_next), "{next:?} {other_next:?}, due after {}", context());
        }
        played += usize::from(at < made.len());
    }
    let left = both.redis.server().names().await;
    let left: Vec<_> = left.iter().filter(|name| !lasting(name)).collect();
    assert!(left.is_empty(), "{left:?} is left behind");
    Some(played)
}

/// Both say the same.
#[track_caller]
pub(super) fn are_alike([one, other]: [Reply; 2], context: impl Fn() -> String) {
    let ((plain, times), (other, other_times)) = (apart(one), apart(other));
    assert_eq!(plain, other, "{}", context());
    assert!(near(&times, &other_times), "{times:?} {other_times:?}, {}", context());
}

/// Nobody waits any more; a worker ends all jobs; then what they leave ends.
fn end() -> Vec<Move> {
    let mut end = vec![Move::Pause(false), Move::Pass(100)];
    for lock in 0..LOCKS {
        for _ in 0..4 {
            end.extend([Move::Claim(lock, 5), Move::Settle(0, done(), None)]);
        }
    }
    end.push(Move::Pass(100_000));
    end
}

/// As long as this no machine has so much else to do that a way is never gone in time.
const PATIENCE: Duration = Duration::from_secs(120);

/// So long a story is tried before another one is told instead, and so many may come to nothing.
const STORY: Duration = Duration::from_secs(10);
const UNTOLD: u32 = 30;

/// A case that is made in none of so many runs is tried with fewer moves, where it may be.
const FEW: usize = 5;

/// Until it was made in time; how many of the moves there was something for. `shorter`: of how many it is made after some
/// runs that were too slow. `None` if none was in time for so long.
async fn play_until(
    one_shard: bool,
    modes: &[LockMode],
    made: &[Move],
    patience: Duration,
    looks: impl Fn(usize) -> bool,
    shorter: impl Fn(usize) -> usize,
) -> Option<usize> {
    let (began, mut most) = (Instant::now(), made.len());
    while began.elapsed() < patience {
        let (told, mut played) = (&made[..most], None);
        let run = async |both: &mut Both| {
            played = play(both, told, &end(), &looks).await;
            played.is_some()
        };
        in_time(FEW, one_shard, modes, run).await;
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
pub(super) async fn play_whole(one_shard: bool, modes: &[LockMode], made: &[Move], known: usize) {
    let looks = |at: usize| at >= known;
    let played = play_until(one_shard, modes, made, PATIENCE, looks, |most| most).await;
    let played = played.unwrap_or_else(|| {
        panic!("not once within {SLOW:?} in {PATIENCE:?}: this machine has too much else to do")
    });
    assert_eq!(played, made.len(), "not all of them were made: {made:#?}");
}

/// Where the machine has other things to do, a shorter story is told: of this case alone, the next one may have its time.
async fn play_in_time(
    one_shard: bool,
    modes: &[LockMode],
    made: &[Move],
) -> Result<(), TestCaseError> {
    let shorter = |most: usize| (most * 3 / 4).max(most.min(12));
    let told = play_until(one_shard, modes, made, STORY, |_| true, shorter).await;
    // Nothing is wrong with the case: there is nothing to be shrunk, nor to be kept.
    let untold = || TestCaseError::reject("this machine has too much else to do");
    told.map(drop).ok_or_else(untold)
}

#[test]
fn both_stores_answer_alike() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(Rig::redis());
    let (source_file, max_global_rejects) = (Some(file!()), UNTOLD);
    let mut runner = TestRunner::new(Config { source_file, max_global_rejects, ..cases(96) });
    runner
        .run(&(any::<bool>(), modes(), moves(30)), |(one_shard, modes, made)| {
            runtime.block_on(play_in_time(one_shard, &modes, &made))
        })
        .unwrap();
}
