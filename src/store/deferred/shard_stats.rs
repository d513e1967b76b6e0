//! `ShardStats`: numbers of the jobs of a shard.

/// Numbers of the jobs of a shard, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShardStats {
    /// Jobs that are queued, delayed or running.
    pub(crate) pending: u64,
    pub(crate) bytes: u64,
    pub(crate) delayed: u64,
    /// Done jobs that are kept at present.
    pub(crate) done: u64,
    /// Dead jobs that are kept at present.
    pub(crate) dead: u64,
    /// Done jobs that are not kept any more, since the start of the data.
    pub(crate) trimmed_done: u64,
    /// Dead jobs that are not kept any more, since the start of the data.
    pub(crate) trimmed_dead: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}
