//! [`LockSnapshot`]: holders, queue and jobs of a lock as the store has them.

use std::time::Duration;

use crate::store::{backend::JobId, lock_token::LockToken};

/// Most holders, queue entries and jobs of a snapshot, each.
pub(crate) const MAX_SNAPSHOT_ENTRIES: usize = 100;

/// State of a lock, read in one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockSnapshot {
    pub(crate) holders: Vec<SnapshotHolder>,
    pub(crate) waiters: Vec<SnapshotWaiter>,
    /// Number of entries in the queue, including expired ones.
    pub(crate) waiter_count: u64,
    pub(crate) jobs: Vec<JobId>,
    pub(crate) job_count: u64,
}

/// Holder of a lock, or an offer to a waiter or a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotHolder {
    pub(crate) kind: HolderKind,
    /// Name of the mode.
    pub(crate) mode: &'static str,
    pub(crate) remaining: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HolderKind {
    Holder(LockToken),
    OfferToWaiter(LockToken),
    OfferToJob(JobId),
}

/// Process in the queue of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotWaiter {
    pub(crate) token: LockToken,
    pub(crate) mode: &'static str,
    pub(crate) waited: Duration,
}

/// Returns the name of a mode by its letter.
pub(crate) fn mode_name(letter: &str) -> &'static str {
    match letter {
        "s" => "shared",
        "p" => "permits",
        _ => "exclusive",
    }
}

#[cfg(feature = "redis")]
impl SnapshotHolder {
    /// Parses a member of the Redis key `h`.
    pub(crate) fn parse(member: &str, remaining: Duration) -> Option<Self> {
        let (kind, rest) = member.split_at_checked(1)?;
        let (mode, token) = match rest.split_at_checked(1) {
            Some((letter @ ("s" | "p"), token)) => (mode_name(letter), token),
            _ => (mode_name(""), rest),
        };
        let kind = match kind {
            "h" => HolderKind::Holder(LockToken::parse(token)?),
            "o" => HolderKind::OfferToWaiter(LockToken::parse(token)?),
            "j" => HolderKind::OfferToJob(JobId::parse(rest)?),
            _ => return None,
        };
        Some(Self { kind, mode, remaining })
    }
}

#[cfg(feature = "redis")]
impl SnapshotWaiter {
    /// Parses a member of the Redis key `q`: `<deadline ms>:<mode>:<token>`.
    pub(crate) fn parse(member: &str, waited: Duration) -> Option<Self> {
        let mut parts = member.splitn(3, ':');
        let mode = parts.nth(1)?;
        let token = LockToken::parse(parts.next()?)?;
        Some(Self { token, mode: mode_name(mode.get(..1)?), waited })
    }
}
