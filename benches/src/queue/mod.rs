//! Queues: one interface, and one file for each that does no more than to call it by its own words. Those of
//! npm are driven by scripts of their own, which read the same plan.

#[cfg(feature = "queue-apalis")]
mod apalis;
#[cfg(feature = "queue-bullmq")]
mod bullmq;
mod left;
mod node;
mod plan;
mod process;
mod requests;
mod rig;
mod seen;
mod setting;
#[cfg(feature = "queue-tasks")]
mod tasks;

use std::{fmt, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use self::seen::Seen;
pub(crate) use self::{
    left::{Left, left},
    node::Node,
    plan::{Plan, Pushed, Ran},
    process::main,
    rig::{Done, Start as RigStart, Word, main as rig},
    setting::Setting,
};
use crate::outcome::Outcome;

/// The queue's name, where it has one.
const NAME: &str = "bench";

/// A queue as its users see it.
pub(crate) trait Queue: Sized + Send + Sync + 'static {
    /// What lives as long as jobs run.
    type Work;

    /// Of a process that pushes.
    fn pushes(plan: &Plan) -> impl Future<Output = Outcome<Self>> + Send;
    /// The moment from which its run is waited for, if that is not the one before this call.
    fn push(&self, job: u64) -> impl Future<Output = Outcome<Option<u64>>> + Send;
    /// The same in one call, if there is one.
    fn push_all(&self, jobs: Range<u64>) -> impl Future<Output = Outcome<Option<u64>>> + Send;
    /// Lets run what has been pushed, if anything keeps it from that.
    fn let_go(&self) -> impl Future<Output = Outcome<()>> + Send {
        async { Ok(()) }
    }
    /// Runs jobs; when this returns it is ready for the first.
    fn works(plan: &Plan, seen: Arc<Seen>) -> impl Future<Output = Outcome<Self::Work>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Tasks of `store.queue`: the like of what the peers do.
    Tasks,
    /// Requests that are deferred by `DeferLayer`, each of them and at once: what is left of a deferral
    /// without the lock.
    Requests,
    /// Requests that are deferred because they find their lock held.
    Busy,
    BullmqRust,
    ApalisRedis,
    BullmqNode,
    BeeQueue,
}

impl Kind {
    pub(crate) const PEERS: [Self; 4] =
        [Self::BullmqRust, Self::ApalisRedis, Self::BullmqNode, Self::BeeQueue];
    pub(crate) const OURS: [Self; 2] = [Self::Tasks, Self::Requests];

    pub(crate) fn is_ours(self) -> bool {
        self == Self::Busy || Self::OURS.contains(&self)
    }

    /// The script that drives it, if it is one of npm's.
    pub(crate) fn script(self) -> Option<&'static str> {
        match self {
            Self::BullmqNode => Some("bullmq.mjs"),
            Self::BeeQueue => Some("bee-queue.mjs"),
            _ => None,
        }
    }

    /// The longest backlog it can run at all.
    pub(crate) fn backlog(self, wanted: u64) -> u64 {
        match self {
            // Its script unpacks all that is due at once, and fails from about 8,000 on.
            Self::ApalisRedis => wanted.min(7_000),
            _ => wanted,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tasks => "store.queue",
            Self::Requests => "deferred requests",
            Self::Busy => "those that find a lock held",
            Self::BullmqRust => "bullmq-official",
            Self::ApalisRedis => "apalis-redis",
            Self::BullmqNode => "bullmq (node)",
            Self::BeeQueue => "bee-queue (node)",
        })
    }
}

/// What to do with a queue once it is known which type it is.
trait Visitor {
    fn meet<Q: Queue>(self) -> Outcome<()>;
}

fn visit(kind: Kind, visitor: impl Visitor) -> Outcome<()> {
    match kind {
        #[cfg(feature = "queue-tasks")]
        Kind::Tasks => visitor.meet::<tasks::Tasks>(),
        Kind::Requests | Kind::Busy => visitor.meet::<requests::Requests>(),
        #[cfg(feature = "queue-bullmq")]
        Kind::BullmqRust => visitor.meet::<bullmq::Bullmq>(),
        #[cfg(feature = "queue-apalis")]
        Kind::ApalisRedis => visitor.meet::<apalis::Apalis>(),
        other => Err(format!("{other} is not in this build").into()),
    }
}
