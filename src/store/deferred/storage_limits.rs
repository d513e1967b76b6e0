//! `StorageLimits`: limits of stored jobs, bytes and records, and the reserve of a shard.

/// Limits of stored jobs:
///
/// - jobs and bytes of one resource, of one shard, and of one owner in a shard
/// - bytes that a shard keeps of done jobs, and of dead ones
/// - idempotency records of one owner in a shard
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorageLimits {
    pub(crate) resource_jobs: u64,
    pub(crate) resource_bytes: u64,
    pub(crate) shard_jobs: u64,
    pub(crate) shard_bytes: u64,
    pub(crate) owner_jobs: u64,
    pub(crate) owner_bytes: u64,
    pub(crate) ended_bytes: u64,
    pub(crate) owner_records: u64,
}

/// Divisor of the reserve: this part of a shard's jobs and bytes is kept for locks with short
/// queues and owners with few jobs. The name of a lock determines its shard, so a client can choose
/// names that fill the shard of another one.
pub(crate) const RESERVED_PART: u64 = 4;
/// Divisor of the reserve for jobs without an owner. They may belong to such a client, so they get
/// half of it.
pub(crate) const OWNERLESS_RESERVED_PART: u64 = 2 * RESERVED_PART;

/// Jobs of a lock from which on its queue is not short, and gets nothing of the reserve.
pub(crate) const SHORT_QUEUE_JOBS: u64 = 4;
/// Jobs of an owner from which on it gets nothing of the reserve.
pub(crate) const SMALL_OWNER_JOBS: u64 = 16;

/// Divisor of the shard's bytes: the part that a short queue may have, including the new job,
/// unless that is its first.
pub(crate) const SHORT_QUEUE_BYTES_PART: u64 = 64;
/// The same divisor for a small owner.
pub(crate) const SMALL_OWNER_BYTES_PART: u64 = 16;

/// A limit of fewer jobs of a shard has no reserve.
const MIN_RESERVED_JOBS: u64 = 64;
/// A limit of fewer bytes of a shard has no reserve.
const MIN_RESERVED_BYTES: u64 = 1 << 20;

/// Approximate bytes of an ended job besides its request or response: its fields and index entries.
pub(crate) const ENDED_JOB_OVERHEAD: u64 = 512;

impl StorageLimits {
    /// No limits: the largest number that the scripts can hold.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self::uniform(u64::MAX >> 12);

    /// Returns the same limit for everything.
    pub(crate) const fn uniform(limit: u64) -> Self {
        Self {
            resource_jobs: limit,
            resource_bytes: limit,
            shard_jobs: limit,
            shard_bytes: limit,
            owner_jobs: limit,
            owner_bytes: limit,
            ended_bytes: limit,
            owner_records: limit,
        }
    }

    /// Returns the shard's limits of jobs and bytes, less `1 / reserved_part` of each.
    pub(crate) fn shard_limits_without(&self, reserved_part: u64) -> (u64, u64) {
        let without_reserve = |limit: u64, min_limit| {
            if limit < min_limit { limit } else { limit - limit / reserved_part }
        };
        (
            without_reserve(self.shard_jobs, MIN_RESERVED_JOBS),
            without_reserve(self.shard_bytes, MIN_RESERVED_BYTES),
        )
    }
}
