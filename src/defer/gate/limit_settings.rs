//! Settings of `DeferLayer`: limits of the queue, of its owners, and of the ended requests.

use super::defer_layer::{DeferLayer, per_shard};
use crate::gate::RequestKind;

impl<R: RequestKind> DeferLayer<R> {
    /// Most requests that wait for one resource; beyond it requests get the busy response. Default:
    /// 1000; at a tenth of a second each, the last one waits for nearly two minutes.
    ///
    /// An owner and the shard of the resource have limits of their own,
    /// [`max_owner_jobs`](Self::max_owner_jobs) and [`max_queue_jobs`](Self::max_queue_jobs): to
    /// raise this limit, raise those too.
    #[must_use]
    pub fn max_resource_jobs(self, per_resource: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.resource_jobs = per_resource)
    }

    /// Most bytes of the requests that wait for one resource, heads and bodies; beyond it requests
    /// get the busy response. Default: 8 MiB, which is 127 bodies of the largest size with their
    /// heads, and half of the limit of a shard.
    ///
    /// [`max_owner_bytes`](Self::max_owner_bytes) and [`max_queue_bytes`](Self::max_queue_bytes)
    /// bound it further, as in [`max_resource_jobs`](Self::max_resource_jobs).
    #[must_use]
    pub fn max_resource_bytes(self, per_resource: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.resource_bytes = per_resource)
    }

    /// Most requests that wait in the whole queue, which is the store's namespace; beyond it
    /// requests get the busy response. Default: 100,000.
    ///
    /// Each of the 64 shards counts its own requests and has a 64th of the limit, rounded up
    /// (1,563). The total may therefore exceed the limit by up to 63, which matters for a small
    /// one, and a resource may reach the limit of its shard, which it shares with others, long
    /// before. For an exact limit of one resource use
    /// [`max_resource_jobs`](Self::max_resource_jobs).
    ///
    /// A quarter of each shard is reserved for requests for a resource with fewer than 4 requests,
    /// from an [`owner`](Self::owner) with fewer than 16 in that shard; half of the reserve is only
    /// for requests with an owner.
    ///
    /// The name of a resource determines its shard, so a client can choose names that fill one
    /// shard. With owners it cannot exclude other owners that way. Requests without an owner cannot
    /// be distinguished, so such a client can exclude them if it uses as many resources. If there
    /// are no accounts, an owner by client address helps. A shard for fewer than 64 requests (4,033
    /// in total) has no reserve.
    #[must_use]
    pub fn max_queue_jobs(self, jobs: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.shard_jobs = per_shard(jobs))
    }

    /// Most bytes of the whole queue: requests that wait or run, and for each of them its webhook.
    /// Default: 1 GiB, which is 16 MiB for each shard.
    ///
    /// Counted as in [`max_queue_jobs`](Self::max_queue_jobs), with the same reserve. The reserve
    /// is for a resource with at most a 64th of the shard's bytes, for an owner with at most a
    /// 16th, and for the first request of either. A shard for less than 1 MiB (64 MiB in total) has
    /// no reserve.
    #[must_use]
    pub fn max_queue_bytes(self, bytes: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.shard_bytes = per_shard(bytes))
    }

    /// Most requests of one [`owner`](Self::owner) that wait in the whole queue, including its
    /// undelivered [webhooks](Self::webhook); beyond it requests get the busy response. Default:
    /// 64,000. That is less than two thirds of the queue, so no owner excludes all others, and 1000
    /// in each shard, which is the queue of one resource.
    ///
    /// Requests without an owner have no such limit, but are limited to seven eighths of each shard
    /// ([`max_queue_jobs`](Self::max_queue_jobs)).
    ///
    /// Counted as in `max_queue_jobs`, with a 64th of the limit in each shard, rounded up. An owner
    /// with requests for few resources reaches it long before, and an owner with requests for many
    /// resources may have 64 where the limit is 2.
    #[must_use]
    pub fn max_owner_jobs(self, jobs: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.owner_jobs = per_shard(jobs))
    }

    /// Most bytes of the waiting requests of one [`owner`](Self::owner). Default: 512 MiB, which is
    /// 8 MiB for each shard, as much as one resource takes. Counted as in
    /// [`max_owner_jobs`](Self::max_owner_jobs).
    #[must_use]
    pub fn max_owner_bytes(self, bytes: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.owner_bytes = per_shard(bytes))
    }

    /// Most bytes of ended requests, so that many or large results do not fill the server before
    /// their retention ends. The limit applies to finished requests and to dead letters separately.
    /// It includes half a KiB for the metadata of each of them, and the responses that
    /// [`idempotent_direct`](Self::idempotent_direct) stores. Default: 1 GiB, as much as may wait.
    ///
    /// Beyond it responses are evicted and counted as trimmed in
    /// [`DeferStats`](crate::defer::DeferStats): the oldest one of the same [`owner`](Self::owner)
    /// if that has more than an equal share, otherwise of the owner with the most bytes. Requests
    /// without an owner count as one owner. An evicted request leaves a tombstone of about 300
    /// bytes for the rest of its retention, for the last 16,384 of one owner in each of 64 shards.
    /// Its status is 410, and a retry with its `Idempotency-Key` does not run again.
    ///
    /// Counted as in [`max_queue_jobs`](Self::max_queue_jobs). The limit belongs to the queue, so
    /// set the same number in all of its layers; the number of the latest request applies.
    #[must_use]
    pub fn max_ended_bytes(self, bytes: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.ended_bytes = per_shard(bytes))
    }

    /// Most `Idempotency-Key`s that the whole queue stores for one [`owner`](Self::owner); requests
    /// without an owner count as one owner. Beyond it a request with a new key gets 429 and does
    /// not run until an older key expires, since a key that was forgotten early would let a retry
    /// run twice.
    ///
    /// Default: 1,048,576, which is a dozen requests a second for a day. At about 350 bytes each
    /// they take 5 MiB of a shard, a third of its [responses](Self::max_ended_bytes).
    ///
    /// Counted as in [`max_queue_jobs`](Self::max_queue_jobs): all keys of one resource are in its
    /// shard, which has a 64th of the limit (16,384).
    #[must_use]
    pub fn max_idempotency_keys(self, keys: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.owner_records = per_shard(keys))
    }

    /// Requires an accepted request to reach this number of replicas; otherwise the response is 503
    /// with the `Location`, as for every request that may not have been stored. Default: 0. It
    /// costs one more round trip for each deferred request (`WAIT`).
    ///
    /// The request is not withdrawn in that case, since a worker may already run it. A retry with
    /// the same `Idempotency-Key` finds it, under the same condition. As with
    /// [`LockLayer::min_replicas`](crate::lock::LockRequest::min_replicas), a failover may still
    /// promote a replica without the request, unless all replicas are required.
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.with_settings(|settings| settings.min_replicas = replicas)
    }
}
