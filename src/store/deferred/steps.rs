//! The steps themselves, as both stores have them.

use std::time::Duration;

use bytes::Bytes;

use super::{
    accepted::{Began, Direct, Enqueue, Enqueued},
    runs::{Claim, Claimed, Running, Settle, SettledRun},
    view::{Beat, Due, JobView, Listed, Listing, PendingMark, Tally},
};
use crate::{
    key::Key,
    store::{
        backend::{Node, Step, Token},
        hints::Hint,
        job::{JobId, JobState},
    },
};

/// The steps of deferred requests.
pub(crate) trait Jobs {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued>;
    /// Before the handler runs, under its lock.
    fn begin_direct(&self, call: Direct) -> Step<'_, Began>;
    /// After it: `Some` keeps this stored response as that of a job that is done, `None` forgets the record, so that
    /// a retry runs again. Ends nothing but what began with this id; false if nothing of it ran any more.
    fn end_direct(&self, call: Direct, response: Option<Bytes>) -> Step<'_, bool>;
    /// Prolongs the run that began with this id by its lease; false if nothing of it runs any more.
    fn renew_direct(&self, call: Direct) -> Step<'_, bool>;
    /// Ends the run that began with this id as dead, since it is unknown how far it came; false as above.
    fn bury_direct(&self, call: Direct, reason: &'static str) -> Step<'_, bool>;
    fn claim(&self, call: Claim) -> Step<'_, Claimed>;
    fn settle(&self, call: Settle) -> Step<'_, SettledRun>;
    /// Cancels a job that waits, as it was seen: the last run began then, or never (0). The state afterwards, `Queued`
    /// if it has run since and waits again; `None` for an unknown job.
    fn cancel(&self, id: JobId, began_us: u64, retention: Duration) -> Step<'_, Option<JobState>>;
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
    /// known which job it was. False if the token runs none, or none any more.
    fn unclaim(&self, key: Key, me: Token, id: Option<JobId>) -> Step<'_, bool>;
    /// A worker's sign of life: it is counted, and keeps its part of the shards. A lease of zero: it leaves.
    fn beat(&self, node: Node, lease: Duration) -> Step<'_, Beat>;
    /// Sends a hint to one process.
    fn tell(&self, node: Node, hint: Hint) -> Step<'_, ()>;
    /// Ended jobs of a shard, from a mark on (0 = the first), at most 100.
    fn list(&self, shard: u16, which: Listing, from: u64, most: usize) -> Step<'_, Listed>;
    /// Jobs of a shard that wait or run, from behind a mark, at most 100.
    fn pending(&self, shard: u16, from: PendingMark, most: usize) -> Step<'_, Listed<PendingMark>>;
    /// Puts a job that died then back, at the tail of its line, with its attempts to come. The state afterwards.
    fn redrive(&self, id: JobId, ended_us: u64) -> Step<'_, Option<JobState>>;
    /// Forgets a job that ended then, with all that is kept of it. False if there is none that has.
    fn purge(&self, id: JobId, ended_us: u64) -> Step<'_, bool>;
    fn tally(&self, shard: u16) -> Step<'_, Tally>;
    /// While paused, no worker watches: jobs are kept, and live requests pass them.
    fn set_paused(&self, paused: bool) -> Step<'_, ()>;
    fn is_paused(&self) -> Step<'_, bool>;
}
