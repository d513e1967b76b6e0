//! Steps of deferred requests: what goes in, and what comes out.
//!
//! A job is queued in the line of its lock, or *late* (it waits for a time outside of any line: a delay, a
//! retry that others may pass), or running, or has ended. Each step is the script of the same name.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    backend::{Node, Step, Token},
    hints::Hint,
    job::{JobId, JobState},
};
use crate::key::Key;

/// `enqueue.lua`.
#[derive(Debug, Clone)]
pub(crate) struct Enqueue {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) envelope: Bytes,
    pub(crate) policy: JobPolicy,
    /// Idempotency record, the request's fingerprint, and how long the record lives.
    pub(crate) record: Option<(Arc<str>, String, Duration)>,
    pub(crate) merge: Option<Merge>,
    pub(crate) caps: Caps,
    /// Whom the job belongs to, for `visible_to`; empty = nobody in particular.
    pub(crate) owner: String,
    /// Who is told when it has ended, however it has.
    pub(crate) call: Option<Call>,
}

impl Enqueue {
    /// What it takes, with the call that tells of its end.
    pub(crate) fn bytes(&self) -> u64 {
        let call = self.call.as_ref().map_or(0, |call| call.envelope.len());
        (self.envelope.len() + call) as u64
    }
}

/// A job that there is from the end of another one on: it has to lie in the shard of that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) envelope: Bytes,
    pub(crate) max_attempts: u32,
}

/// How a job runs, as it was decided when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobPolicy {
    /// May run again after a crash.
    pub(crate) again: bool,
    /// At least one.
    pub(crate) max_attempts: u32,
    /// Not before: until then it is late.
    pub(crate) delay: Duration,
    /// No run of it begins after this time; it is expired then, unless it runs.
    pub(crate) deadline: Option<Duration>,
    pub(crate) on_failure: OnFailure,
    /// Not stored unless a live worker watches the shard.
    pub(crate) needs_worker: bool,
}

impl Default for JobPolicy {
    fn default() -> Self {
        Self {
            again: false,
            max_attempts: 1,
            delay: Duration::ZERO,
            deadline: None,
            on_failure: OnFailure::Block,
            needs_worker: false,
        }
    }
}

/// What the later jobs of a resource do while one waits to be tried again: after a failure, or because no worker
/// that is there can run it yet. That is so for one of a newer version of this library, one that is sealed with a
/// key or carries a snapshot that the worker does not know, and one whose route it does not have. Such a job waits
/// uncharged, with that reason in its status, and runs when a worker comes that can; one that nobody could ever
/// read, because it was cut off or swapped with another, is dead at once, and the line goes on in either case.
///
/// Live requests wait for none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They wait too. The order holds also across a deployment of which half of the workers know the newer
    /// requests: were those passed, an older change of a resource could undo a newer one. Who does not want to
    /// wait cancels the job, or gives it a deadline.
    #[default]
    Block,
    /// They pass; the one that waits comes back to its place, before those that are left. Not one that a worker
    /// hands over as it stops: that is taken up at once.
    Skip,
}

/// Of the queued jobs of one resource and group only one is kept.
#[derive(Debug, Clone)]
pub(crate) struct Merge {
    /// Hex: what is the same request.
    pub(crate) group: Arc<str>,
    pub(crate) wins: Wins,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wins {
    /// The queued one stays, and the new one is it.
    First,
    /// The new one is stored at the tail, and the queued one is cancelled: `superseded`.
    Last,
}

/// Most jobs and bytes, of one resource and of one shard; and of one owner in one shard. And most bytes that a shard
/// keeps of jobs that are done, and of dead ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) resource_jobs: u64,
    pub(crate) resource_bytes: u64,
    pub(crate) shard_jobs: u64,
    pub(crate) shard_bytes: u64,
    pub(crate) owner_jobs: u64,
    pub(crate) owner_bytes: u64,
    pub(crate) ended_bytes: u64,
}

/// What an ended job takes besides its request or its response, about: its facts, and its entries here and there.
pub(crate) const ENDED_SIZE: u64 = 512;

impl Caps {
    /// No bounds: all that a number of the scripts can hold.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self::all(u64::MAX >> 12);

    /// The same bound for everything.
    pub(crate) const fn all(most: u64) -> Self {
        Self {
            resource_jobs: most,
            resource_bytes: most,
            shard_jobs: most,
            shard_bytes: most,
            owner_jobs: most,
            owner_bytes: most,
            ended_bytes: most,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Enqueued {
    /// The position is from 1; 0 = late.
    Stored {
        position: u64,
    },
    Known(JobId),
    Mismatch,
    Full,
    /// Nobody watches the shard, and it was wanted that somebody does.
    Unmanned,
    /// The queued job that this request was merged into.
    Merged(JobId),
}

/// A request under an idempotency record that ran at once: `direct.lua`.
#[derive(Debug, Clone)]
pub(crate) struct Direct {
    pub(crate) key: Key,
    pub(crate) record: Arc<str>,
    pub(crate) id: JobId,
    pub(crate) owner: String,
    /// How long record and job are kept.
    pub(crate) life: Duration,
    /// The request's fingerprint, once it is known, which is not before its end.
    pub(crate) print: Option<String>,
}

/// `claim.lua`.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) me: Token,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "the words of the script")]
pub(crate) enum Claimed {
    Claimed(Run),
    Busy(Duration),
    Later(Duration),
    Moved(JobId),
    Empty,
    /// Its worker died, or its time was over: it has ended, and another one is first now.
    Dead(JobId),
}

/// A run that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) id: JobId,
    pub(crate) fence: u64,
    pub(crate) attempt: u32,
    pub(crate) envelope: Bytes,
    pub(crate) accepted_us: u64,
    /// Another job stood behind it then.
    pub(crate) more: bool,
}

/// A run that is under way, on a lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) attempt: u32,
    /// The first fence that the run was given; that of every earlier run is smaller.
    pub(crate) fence: u64,
}

/// `settle.lua`.
#[derive(Debug, Clone)]
pub(crate) struct Settle {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) me: Token,
    pub(crate) verdict: Verdict,
    /// The caller has room for the next job of this line, if it is its turn: claims it in the same step.
    pub(crate) next: Option<NextRun>,
}

/// The claim that goes along with a settlement.
#[derive(Debug, Clone)]
pub(crate) struct NextRun {
    pub(crate) me: Token,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettledRun {
    /// The run had been lost: nothing was written.
    Lost,
    /// The verdict stands; the run of the next job, if it was asked for and there is one.
    Stands(Option<Run>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done {
        response: Bytes,
        retention: Duration,
    },
    Dead {
        reason: &'static str,
        retention: Duration,
    },
    Retry {
        delay: Duration,
        reason: &'static str,
    },
    /// Not charged as an attempt, and to be tried again after this time, as a retry is: where others may pass one
    /// that waits, they do. The reason `busy` is counted apart.
    Back {
        delay: Duration,
        reason: &'static str,
    },
    /// As `Back`, for whoever comes next: nothing is the matter with the job, and so nobody passes it.
    Hand {
        delay: Duration,
        reason: &'static str,
    },
}

/// What can be told of a job: `job.lua`, one call, reads only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobView {
    pub(crate) state: JobState,
    pub(crate) attempts: u32,
    /// From 1; `None` once it has left the line, and while it is late.
    pub(crate) position: Option<u64>,
    pub(crate) reason: Option<String>,
    pub(crate) owner: String,
    /// Whether any worker watches the job's shard.
    pub(crate) watched: bool,
    pub(crate) response: Option<Bytes>,
    pub(crate) past: Past,
}

/// What has happened to a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) lock: Option<Key>,
    pub(crate) bytes: u64,
    pub(crate) accepted_us: u64,
    /// 0 = not yet; the last run.
    pub(crate) began_us: u64,
    pub(crate) ended_us: u64,
    /// Runs whose worker died, and runs that met another busy lock.
    pub(crate) crashes: u32,
    pub(crate) busy: u32,
    /// Until it may run (delay, backoff), if that is to come.
    pub(crate) due_in: Option<Duration>,
    /// The last runs, at most 20: `<attempt> <began us> <ended us> <outcome>`, oldest first.
    pub(crate) runs: Vec<String>,
    /// The job that has superseded it.
    pub(crate) by: Option<JobId>,
}

/// One row of `due.lua`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Locks that are due, each with its first job.
    pub(crate) names: Vec<(Key, Option<JobId>)>,
    pub(crate) next: Option<Duration>,
}

/// What a sign of life is answered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    /// The shards this node watches now.
    pub(crate) mine: Vec<u16>,
    /// Those of them that have something due, or to come.
    pub(crate) busy: Vec<u16>,
    /// Other live workers, at most 100 of them.
    pub(crate) others: Vec<Node>,
    /// The queue is paused: nobody watches.
    pub(crate) paused: bool,
    /// How soon the lease of one of the others ends, if it does not live: the one after this node, in a ring of all.
    pub(crate) lapse: Option<Duration>,
}

/// Which jobs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    Dead,
    Done,
}

/// One page of `list.lua`: ids and facts, never bodies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) jobs: Vec<(JobId, JobView)>,
    /// Where the next page begins; `None` = that was all of this shard.
    pub(crate) next: Option<u64>,
}

/// What a shard has counted: `tally.lua`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Queued, late and running.
    pub(crate) pending: u64,
    pub(crate) bytes: u64,
    pub(crate) late: u64,
    /// Kept at this moment.
    pub(crate) done: u64,
    pub(crate) dead: u64,
    /// Since the beginning: ended as such, and no longer kept.
    pub(crate) trimmed_done: u64,
    pub(crate) trimmed_dead: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}

/// The steps of deferred requests.
pub(crate) trait Jobs {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued>;
    /// Before the handler runs, under its lock. `Some`: the record is taken, by this job.
    fn begin_direct(&self, call: Direct) -> Step<'_, Option<JobId>>;
    /// After it: `Some` keeps this stored response as that of a job that is done, `None` forgets the record, so that
    /// a retry runs again. Ends nothing but what began with this id.
    fn end_direct(&self, call: Direct, response: Option<Bytes>) -> Step<'_, ()>;
    fn claim(&self, call: Claim) -> Step<'_, Claimed>;
    fn settle(&self, call: Settle) -> Step<'_, SettledRun>;
    /// The state afterwards; `None` for an unknown job.
    fn cancel(&self, id: JobId, retention: Duration) -> Step<'_, Option<JobState>>;
    fn job(&self, id: JobId) -> Step<'_, Option<JobView>>;
    /// The run of a job that is under way: `running.lua`, reads only. `None` if there is none, or if the lock under it
    /// has lapsed or was given back.
    #[cfg_attr(
        not(feature = "http-replay"),
        allow(dead_code, reason = "nobody else asks whether a run is one")
    )]
    fn running(&self, id: JobId) -> Step<'_, Option<Running>>;
    /// The envelope of a job, as long as it is kept: until it has ended well.
    fn envelope(&self, id: JobId) -> Step<'_, Option<Bytes>>;
    /// The store's clock, in microseconds since 1970: what ages of jobs are told by.
    fn clock(&self) -> Step<'_, u64>;
    /// The first jobs of these lines, none where a line has none. All of one shard.
    #[cfg(test)]
    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>>;
    /// Moves what is late and has come due into its line, expires what is past its deadline, and says
    /// which locks are worth a visit.
    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>>;
    /// Undoes the claim under this token, whose caller has gone: the job waits again, uncharged. It may not be
    /// known which job it was. False if the token runs none.
    fn unclaim(&self, key: Key, me: Token, id: Option<JobId>) -> Step<'_, bool>;
    /// A worker's sign of life: it is counted, and keeps its part of the shards. A lease of zero: it leaves.
    fn beat(&self, node: Node, lease: Duration) -> Step<'_, Beat>;
    /// Sends a hint to one process.
    fn tell(&self, node: Node, hint: Hint) -> Step<'_, ()>;
    /// Ended jobs of a shard, from a mark on (0 = the first), at most 100.
    fn list(&self, shard: u16, which: Listing, from: u64, most: usize) -> Step<'_, Listed>;
    /// Puts a dead job back, at the tail of its line, with its attempts to come. The state afterwards.
    fn redrive(&self, id: JobId) -> Step<'_, Option<JobState>>;
    /// Forgets a job that has ended, with all that is kept of it. False if there is none that has.
    fn purge(&self, id: JobId) -> Step<'_, bool>;
    fn tally(&self, shard: u16) -> Step<'_, Tally>;
    /// While paused, no worker watches: jobs are kept, and live requests pass them.
    fn set_paused(&self, paused: bool) -> Step<'_, ()>;
    fn is_paused(&self) -> Step<'_, bool>;
}
