//! Measured locks behind one interface, with one module per library that only calls its API. All
//! use `LOCK_TTL`, wait without a limit, and run in the same tasks.

mod baselines;
mod best_retry_delay;
#[cfg(feature = "peers")]
mod distkit;
#[cfg(feature = "peers")]
mod distributed_lock_redis;
mod lockgate;
mod raw_redis;
#[cfg(feature = "peers")]
mod rslock;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

#[cfg(feature = "peers")]
pub(crate) use self::rslock::rslock_manager;
pub(crate) use self::{
    best_retry_delay::LockLoad, lockgate::connect_store, raw_redis::connect_multiplexed,
};
use crate::bench_result::BenchResult;

/// Lease of every lock.
pub(crate) const LOCK_TTL: Duration = Duration::from_secs(10);

/// Lock library as its users see it.
pub(crate) trait LockContender: Sized + Send + Sync + 'static {
    /// Prepared state of one task for one key, if the library has any.
    type Lock: Send + Sync + 'static;
    /// Held lock.
    type Guard: Send + 'static;

    /// Connects to Redis on `port`. Only contenders that poll use `retry_delay`.
    fn connect(port: u16, retry_delay: Duration) -> impl Future<Output = BenchResult<Self>> + Send;
    fn prepare_lock(&self, name: &str) -> Self::Lock;
    /// Waits without a limit.
    fn acquire(&self, lock: &Self::Lock) -> impl Future<Output = BenchResult<Self::Guard>> + Send;
    fn release(&self, guard: Self::Guard) -> impl Future<Output = BenchResult<()>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum ContenderKind {
    Lockgate,
    /// Like `Lockgate`, with releases in the background.
    LockgateBackground,
    Rslock,
    Distkit,
    DistributedLockRedis,
    /// Hand-written lock; see [`raw_redis`].
    Raw,
    /// Round trip without a lock, beside which absolute times are read.
    Ping,
    /// No lock and no round trip: the ideal for one task that works.
    NoLock,
}

impl ContenderKind {
    pub(crate) const LIBRARIES: [Self; 3] =
        [Self::Rslock, Self::Distkit, Self::DistributedLockRedis];

    pub(crate) fn is_lockgate(self) -> bool {
        matches!(self, Self::Lockgate | Self::LockgateBackground)
    }
}

impl fmt::Display for ContenderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lockgate => "lockgate",
            Self::LockgateBackground => "lockgate, release in background",
            Self::Rslock => "rslock",
            Self::Distkit => "distkit",
            Self::DistributedLockRedis => "distributed-lock-redis",
            Self::Raw => "raw",
            Self::Ping => "PING",
            Self::NoLock => "no lock, one task",
        })
    }
}

/// Contender with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ContenderConfig {
    pub(crate) kind: ContenderKind,
    pub(crate) retry_delay: Duration,
}

impl ContenderConfig {
    /// Creates the contender with its best retry delay for `load`.
    pub(crate) fn with_best_setting(kind: ContenderKind, load: LockLoad) -> Self {
        Self { kind, retry_delay: best_retry_delay::best_retry_delay(kind, load) }
    }
}

impl fmt::Display for ContenderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, retry_delay } = self;
        match kind {
            ContenderKind::Rslock => write!(f, "{kind} (rand 0..{retry_delay:?})"),
            ContenderKind::Distkit => write!(f, "{kind} ({retry_delay:?})"),
            ContenderKind::Raw | ContenderKind::DistributedLockRedis if retry_delay.is_zero() => {
                write!(f, "{kind} (spin)")
            }
            ContenderKind::Raw | ContenderKind::DistributedLockRedis => {
                write!(f, "{kind} ({retry_delay:?})")
            }
            _ => write!(f, "{kind}"),
        }
    }
}

/// Function that is generic over the type of a contender.
pub(crate) trait ContenderVisitor {
    fn run_with<C: LockContender>(self) -> BenchResult<()>;
}

pub(crate) fn dispatch_contender(
    kind: ContenderKind,
    visitor: impl ContenderVisitor,
) -> BenchResult<()> {
    match kind {
        ContenderKind::Lockgate => {
            visitor.run_with::<lockgate::LockgateContender<lockgate::AwaitedRelease>>()
        }
        ContenderKind::LockgateBackground => {
            visitor.run_with::<lockgate::LockgateContender<lockgate::BackgroundRelease>>()
        }
        ContenderKind::Raw => visitor.run_with::<raw_redis::RawRedisContender>(),
        ContenderKind::Ping => visitor.run_with::<baselines::PingContender>(),
        ContenderKind::NoLock => visitor.run_with::<baselines::NoLockContender>(),
        #[cfg(feature = "peers")]
        ContenderKind::Rslock => visitor.run_with::<rslock::RslockContender>(),
        #[cfg(feature = "peers")]
        ContenderKind::Distkit => visitor.run_with::<distkit::DistkitContender>(),
        #[cfg(feature = "peers")]
        ContenderKind::DistributedLockRedis => {
            visitor.run_with::<distributed_lock_redis::DistributedLockContender>()
        }
        #[cfg(not(feature = "peers"))]
        ContenderKind::Rslock | ContenderKind::Distkit | ContenderKind::DistributedLockRedis => {
            Err(format!("{kind} is not in this build (feature `peers`)").into())
        }
    }
}

/// Pauses between two attempts in the retry loops of this benchmark.
async fn sleep_before_retry(retry_delay: Duration) {
    if !retry_delay.is_zero() {
        tokio::time::sleep(retry_delay).await;
    }
}
