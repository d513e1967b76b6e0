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
    clock::ceil_secs,
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
    /// Limit and window of the first request, which nearly all requests share, and the header
    /// value.
    policy_header: OnceLock<(u64, Duration, Bytes)>,
}

impl RefusalReplyCache {
    /// Returns the reply for this status. It is built unless it is the last one of its slot.
    #[expect(clippy::indexing_slicing, reason = "a remainder is below the divisor")]
    pub(super) fn get_or_build(
        &self,
        standing: &PolicyStatus<'_>,
        make: impl FnOnce() -> Reply,
    ) -> Arc<SharedReply> {
        let wait = ceil_secs(standing.wait_time());
        let told = RefusalReplyKey {
            limit: standing.limit,
            window: standing.window,
            remaining: standing.remaining,
            wait_secs: wait,
            permanent: standing.is_permanent(),
        };
        // Any index will do, as long as it is the same for the same wait.
        let mut place = self.refusals[usize::try_from(wait).unwrap_or(0) % SLOT_COUNT].lock();
        match &*place {
            Some((last, reply)) if *last == told => Arc::clone(reply),
            _ => {
                let reply = Arc::new(SharedReply::new(make()));
                *place = Some((told, Arc::clone(&reply)));
                reply
            }
        }
    }
}

impl RefusalReplyCache {
    /// Returns the value of `RateLimit-Policy` for a layer with `limits` policies. It is cached for
    /// one policy only, since the name is the same in all requests then.
    pub(super) fn policy_header(&self, standings: &[PolicyStatus<'_>], limits: usize) -> Bytes {
        let ([one], 1) = (standings, limits) else { return format_policy_header(standings) };
        let (limit, window, text) = self
            .policy_header
            .get_or_init(|| (one.limit, one.window, format_policy_header(standings)));
        if (*limit, *window) == (one.limit, one.window) {
            return text.clone();
        }
        format_policy_header(standings)
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
        let again = RefusalReplyCache::default();
        let told = |standings: &[PolicyStatus<'_>], limits| again.policy_header(standings, limits);
        let one =
            |limit, name| PolicyStatus { name, ..sample_policy_status(limit, Duration::ZERO) };
        for _ in 0..2 {
            assert_eq!(told(&[one(3, "a")], 1), "\"a\";q=3;w=60");
            assert_eq!(told(&[one(4, "a")], 1), "\"a\";q=4;w=60", "another quota");
            assert_eq!(told(&[one(3, "b")], 2), "\"b\";q=3;w=60", "the other has no key here");
            let both = told(&[one(3, "a"), one(3, "b")], 2);
            assert_eq!(both, "\"a\";q=3;w=60, \"b\";q=3;w=60");
            assert!(told(&[], 1).is_empty());
        }
    }

    #[test]
    fn identical_refusals_share_one_reply() {
        let again = RefusalReplyCache::default();
        let told =
            |standing, status| again.get_or_build(&standing, || Reply::new(status)).reply().status;
        let millis = Duration::from_millis;
        assert_eq!(told(sample_policy_status(3, millis(1_500)), 1), 1);
        assert_eq!(told(sample_policy_status(3, millis(1_001)), 2), 1, "2 s, both");
        assert_eq!(told(sample_policy_status(3, millis(1_000)), 3), 3, "another second");
        assert_eq!(told(sample_policy_status(3, millis(1_500)), 4), 1, "each has a place");
        assert_eq!(
            told(sample_policy_status(3, millis(9_500)), 5),
            5,
            "the same place, another second"
        );
        assert_eq!(told(sample_policy_status(3, millis(1_500)), 6), 6, "which is put out");
        assert_eq!(told(sample_policy_status(4, millis(1_500)), 7), 7, "another quota");
        assert_eq!(told(sample_policy_status(4, Duration::MAX), 8), 8, "hopeless");
    }
}
