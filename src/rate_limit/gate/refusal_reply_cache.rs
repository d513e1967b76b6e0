//! Cached refusals of a layer, and its cached policy header.
//!
//! All refusals of a client within one second are equal. During a flood the refusal cache decides,
//! and building the reply dominates: half of the instructions of a refusal were spent on the same
//! headers and document.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    durations::ceil_secs,
    rate_limit::{policy_status::PolicyStatus, rate_headers::format_policy_header},
    reply::{Reply, SharedReply},
};

/// Number of cached replies, by the seconds of the wait: clients with different waits get different
/// replies. A reply without a free slot is built anew.
const SLOT_COUNT: usize = 8;

/// All inputs of the reply of a layer with one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RefusalReplyKey {
    limit: u64,
    window: Duration,
    remaining: u64,
    wait_secs: u64,
    permanent: bool,
}

type RefusalReplySlot = Option<(RefusalReplyKey, Arc<SharedReply>)>;

/// Last replies of a layer.
#[derive(Default)]
pub(super) struct RefusalReplyCache {
    refusals: [Mutex<RefusalReplySlot>; SLOT_COUNT],
    /// Header of the first request, which nearly all requests share.
    policy_header: OnceLock<CachedPolicyHeader>,
}

/// Value of `RateLimit-Policy`, and the quota that it reports.
struct CachedPolicyHeader {
    limit: u64,
    window: Duration,
    value: Bytes,
}

impl RefusalReplyCache {
    /// Returns the reply for this status. It is built unless it is the last one of its slot.
    #[expect(clippy::indexing_slicing, reason = "a remainder is below the divisor")]
    pub(super) fn get_or_build(
        &self,
        status: &PolicyStatus<'_>,
        build: impl FnOnce() -> Reply,
    ) -> Arc<SharedReply> {
        let wait_secs = ceil_secs(status.wait_time());
        let key = RefusalReplyKey {
            limit: status.limit,
            window: status.window,
            remaining: status.remaining,
            wait_secs,
            permanent: status.is_permanent(),
        };
        // Any index will do, as long as it is the same for the same wait.
        let mut slot = self.refusals[usize::try_from(wait_secs).unwrap_or(0) % SLOT_COUNT].lock();
        match &*slot {
            Some((last_key, reply)) if *last_key == key => Arc::clone(reply),
            _ => {
                let reply = Arc::new(SharedReply::new(build()));
                *slot = Some((key, Arc::clone(&reply)));
                reply
            }
        }
    }
}

impl RefusalReplyCache {
    /// Returns the value of `RateLimit-Policy` for a layer with `policy_count` policies. It is
    /// cached for one policy only, since the name is the same in all requests then.
    pub(super) fn policy_header(
        &self,
        statuses: &[PolicyStatus<'_>],
        policy_count: usize,
    ) -> Bytes {
        let ([status], 1) = (statuses, policy_count) else { return format_policy_header(statuses) };
        let cached = self.policy_header.get_or_init(|| CachedPolicyHeader {
            limit: status.limit,
            window: status.window,
            value: format_policy_header(statuses),
        });
        if (cached.limit, cached.window) == (status.limit, status.window) {
            return cached.value.clone();
        }
        format_policy_header(statuses)
    }
}

impl fmt::Debug for RefusalReplyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalReplyCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_policy_status(limit: u64, retry: Duration) -> PolicyStatus<'static> {
        let (window, reset) = (Duration::from_secs(60), Duration::from_secs(60));
        PolicyStatus {
            name: "a",
            limit,
            window,
            remaining: 0,
            reset_after: reset,
            retry_after: retry,
            violated: true,
        }
    }

    #[test]
    fn policy_header_follows_the_statuses_of_the_request() {
        let cache = RefusalReplyCache::default();
        let result = |statuses: &[PolicyStatus<'_>], policy_count| {
            cache.policy_header(statuses, policy_count)
        };
        let status =
            |limit, name| PolicyStatus { name, ..sample_policy_status(limit, Duration::ZERO) };
        for _ in 0..2 {
            assert_eq!(result(&[status(3, "a")], 1), "\"a\";q=3;w=60");
            assert_eq!(result(&[status(4, "a")], 1), "\"a\";q=4;w=60", "another quota");
            assert_eq!(result(&[status(3, "b")], 2), "\"b\";q=3;w=60", "the other has no key here");
            let joined = result(&[status(3, "a"), status(3, "b")], 2);
            assert_eq!(joined, "\"a\";q=3;w=60, \"b\";q=3;w=60");
            assert!(result(&[], 1).is_empty());
        }
    }

    #[test]
    fn identical_refusals_share_one_reply() {
        let cache = RefusalReplyCache::default();
        let result = |policy_status, status| {
            cache.get_or_build(&policy_status, || Reply::new(status)).reply().status
        };
        let millis = Duration::from_millis;
        assert_eq!(result(sample_policy_status(3, millis(1_500)), 1), 1);
        assert_eq!(result(sample_policy_status(3, millis(1_001)), 2), 1, "2 s, both");
        assert_eq!(result(sample_policy_status(3, millis(1_000)), 3), 3, "another second");
        assert_eq!(result(sample_policy_status(3, millis(1_500)), 4), 1, "each has an entry");
        assert_eq!(
            result(sample_policy_status(3, millis(9_500)), 5),
            5,
            "the same entry, another second"
        );
        assert_eq!(result(sample_policy_status(3, millis(1_500)), 6), 6, "which is put out");
        assert_eq!(result(sample_policy_status(4, millis(1_500)), 7), 7, "another quota");
        assert_eq!(result(sample_policy_status(4, Duration::MAX), 8), 8, "hopeless");
    }
}
