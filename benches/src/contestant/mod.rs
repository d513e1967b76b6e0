//! Those who are measured: one interface, and one file for each that does no more than to call it by its
//! own words. All have a TTL of 10 s, wait as long as it takes, and are asked from the same tasks.

#[cfg(feature = "peers")]
mod distkit;
#[cfg(feature = "peers")]
mod distributed_lock_redis;
mod lockgate;
mod nothing;
mod raw;
#[cfg(feature = "peers")]
mod rslock;
mod settings;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

#[cfg(feature = "peers")]
pub(crate) use self::rslock::manager as rslock_manager;
pub(crate) use self::{
    lockgate::connect as connect_store, raw::connect as multiplexed, settings::Load,
};
use crate::outcome::Outcome;

/// The lease of everybody.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A lock as its users see it.
pub(crate) trait Contestant: Sized + Send + Sync + 'static {
    /// What one task keeps for one key, if anything can be prepared.
    type Lock: Send + Sync + 'static;
    /// A lock that is held.
    type Guard: Send + 'static;

    /// `pause` is the retry delay of those who poll.
    fn connect(port: u16, pause: Duration) -> impl Future<Output = Outcome<Self>> + Send;
    fn lock(&self, name: &str) -> Self::Lock;
    /// Waits as long as it takes.
    fn acquire(&self, lock: &Self::Lock) -> impl Future<Output = Outcome<Self::Guard>> + Send;
    fn release(&self, guard: Self::Guard) -> impl Future<Output = Outcome<()>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Who {
    Lockgate,
    /// The same, with the release off the caller's path.
    LockgateBackground,
    Rslock,
    Distkit,
    DistributedLockRedis,
    /// What a careful user writes by hand.
    Raw,
    /// No lock at all, but a round trip: what absolute times are worth in this minute.
    Ping,
    /// No lock and no round trip: the ideal, for one task that works.
    Nothing,
}

impl Who {
    pub(crate) const LIBRARIES: [Self; 3] =
        [Self::Rslock, Self::Distkit, Self::DistributedLockRedis];

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Lockgate | Self::LockgateBackground)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lockgate => "lockgate",
            Self::LockgateBackground => "lockgate, release in background",
            Self::Rslock => "rslock",
            Self::Distkit => "distkit",
            Self::DistributedLockRedis => "distributed-lock-redis",
            Self::Raw => "raw",
            Self::Ping => "PING",
            Self::Nothing => "no lock, one task",
        })
    }
}

/// Somebody with a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Contender {
    pub(crate) who: Who,
    pub(crate) pause: Duration,
}

impl Contender {
    /// At the setting that is best for it.
    pub(crate) fn best(who: Who, load: Load) -> Self {
        Self { who, pause: settings::best(who, load) }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, pause } = self;
        match who {
            Who::Rslock => write!(f, "{who} (rand 0..{pause:?})"),
            Who::Distkit => write!(f, "{who} ({pause:?})"),
            Who::Raw | Who::DistributedLockRedis if pause.is_zero() => write!(f, "{who} (spin)"),
            Who::Raw | Who::DistributedLockRedis => write!(f, "{who} ({pause:?})"),
            _ => write!(f, "{who}"),
        }
    }
}

/// What to do with a contestant once it is known which type it is.
pub(crate) trait Visitor {
    fn meet<C: Contestant>(self) -> Outcome<()>;
}

pub(crate) fn visit(who: Who, visitor: impl Visitor) -> Outcome<()> {
    match who {
        Who::Lockgate => visitor.meet::<lockgate::Lockgate<lockgate::Awaited>>(),
        Who::LockgateBackground => visitor.meet::<lockgate::Lockgate<lockgate::InBackground>>(),
        Who::Raw => visitor.meet::<raw::Raw>(),
        Who::Ping => visitor.meet::<nothing::Ping>(),
        Who::Nothing => visitor.meet::<nothing::Nothing>(),
        #[cfg(feature = "peers")]
        Who::Rslock => visitor.meet::<rslock::Rslock>(),
        #[cfg(feature = "peers")]
        Who::Distkit => visitor.meet::<distkit::Distkit>(),
        #[cfg(feature = "peers")]
        Who::DistributedLockRedis => visitor.meet::<distributed_lock_redis::Dlr>(),
        #[cfg(not(feature = "peers"))]
        Who::Rslock | Who::Distkit | Who::DistributedLockRedis => {
            Err(format!("{who} is not in this build (feature `peers`)").into())
        }
    }
}

/// Between two tries of those whose loop is ours.
async fn pause(length: Duration) {
    if !length.is_zero() {
        tokio::time::sleep(length).await;
    }
}
