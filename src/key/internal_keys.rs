//! Keys of lockgate's own locks: webhook jobs, and the run limits of all queue workers.

use std::hash::Hasher as _;

use super::Key;

impl Key {
    /// Returns the lock of the webhook job about a job. It lies in the shard of that job, so that
    /// the script that ends the job can enqueue the webhook job. No application key has this kind.
    pub(crate) fn for_webhook(job: &str, shard: u16) -> Self {
        let mut text = Self::build("cb", "", job.as_bytes()).0.to_string();
        text.push('.');
        let mut prefix_hash = fnv::FnvHasher::default();
        prefix_hash.write(text.as_bytes());
        let mut digits = itoa::Buffer::new();
        let is_in_shard = |suffix: &u32| {
            let mut hash = fnv::FnvHasher::with_key(prefix_hash.finish());
            hash.write(itoa::Buffer::new().format(*suffix).as_bytes());
            Self::shard_of_hash(hash.finish()) == shard
        };
        let suffix = (0..100_000).find(is_in_shard).unwrap_or_default();
        text.push_str(digits.format(suffix));
        Self(text.into())
    }

    pub(crate) fn is_webhook(&self) -> bool {
        self.0.starts_with("cb:")
    }

    /// Returns the key of the run limits that all workers of a store share. No application key has
    /// this kind.
    pub(crate) fn for_queue_workers() -> Self {
        Self::build("w", "", b"queue")
    }
}
