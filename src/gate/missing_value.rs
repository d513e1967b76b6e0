//! `MissingValue`: why the extractor of a handler finds no value.

use std::fmt;

use super::{
    gate_request::{GateRequest, is_safe_method},
    replay_marker::is_replay,
};
use crate::throttle;

/// Reason why the extractor of a handler finds no value. Its text names what is missing, and the
/// fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingValue(Reason);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Lock,
    LockOfSafeMethod,
    LockOfUnlistedMethod,
    Fence,
    RateLimit,
    Charge,
    Job,
}

/// Mark of a request that a `RateLimitLayer` has seen and not charged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnchargedMark;

/// Mark of a request whose method the `.methods(..)` of a `LockLayer` does not list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnlistedMethodMark;

impl MissingValue {
    /// Returns the reason for a request that holds no lock.
    #[must_use]
    pub fn of_lock<V: GateRequest>(view: &V) -> Self {
        Self(if view.extension::<UnlistedMethodMark>().is_some() {
            Reason::LockOfUnlistedMethod
        } else if is_safe_method(view.method()) {
            Reason::LockOfSafeMethod
        } else {
            Reason::Lock
        })
    }

    /// Returns the reason for a request without a fence. `has_lock` is true if the request has the
    /// extension of a lock, which is then one that was admitted without a grant.
    #[must_use]
    pub fn of_fence<V: GateRequest>(view: &V, has_lock: bool) -> Self {
        if has_lock { Self(Reason::Fence) } else { Self::of_lock(view) }
    }

    /// Returns the reason for a request that was charged to no quota.
    #[must_use]
    pub fn of_charge<V: GateRequest>(view: &V) -> Self {
        // The worker may have the routes inside the layer alone.
        let is_exempt = is_replay(view) || view.extension::<UnchargedMark>().is_some();
        Self(if is_exempt { Reason::Charge } else { Reason::RateLimit })
    }

    /// Returns the reason for a request that is not the run of a job.
    #[must_use]
    pub fn of_job<V: GateRequest>(_: &V) -> Self {
        Self(Reason::Job)
    }

    /// Logs that this extractor found no value, at most once a minute for each extractor and
    /// reason.
    pub fn log(self, extractor: &str) {
        let text = self.text();
        if let Some(suppressed) = throttle::admit(&format!("{extractor}: {text}")) {
            tracing::error!(extractor, suppressed, "extractor without its value: {text}");
        }
    }

    fn text(self) -> &'static str {
        match self.0 {
            Reason::Lock => "the request holds no lock; put a LockLayer around the route",
            Reason::LockOfSafeMethod => {
                "the request holds no lock, and a LockLayer locks no GET, HEAD, OPTIONS or TRACE \
                 by default; put a LockLayer with .all_methods() around the route"
            }
            Reason::LockOfUnlistedMethod => {
                "the request holds no lock, because the LockLayer around the route does not act on \
                 this method; add the method to its .methods(..)"
            }
            Reason::Fence => {
                "the request passed without a lock while the store was unavailable \
                 (LockOutage::Admit); take Option<Fence>"
            }
            Reason::RateLimit => {
                "the request passed no RateLimitLayer; put a RateLimitLayer around the route"
            }
            Reason::Charge => {
                "the request was not charged: it is a deferred run, a preflight or on the allow \
                 list, or the store is unavailable; take Option<CurrentRate>"
            }
            Reason::Job => {
                "the request is not the run of a deferred request; take Option<CurrentJob>"
            }
        }
    }
}

impl fmt::Display for MissingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fake_request::FakeGateRequest;

    #[test]
    fn text_names_the_missing_part_and_its_fix() {
        let (post, get) = (FakeGateRequest::new("POST"), FakeGateRequest::new("GET"));
        let mut uncharged = FakeGateRequest::new("POST");
        uncharged.insert_extension(UnchargedMark);
        let mut unlisted = FakeGateRequest::new("PUT");
        unlisted.insert_extension(UnlistedMethodMark);
        for (missing, part, fix) in [
            (MissingValue::of_lock(&unlisted), "does not act on this method", ".methods(..)"),
            (MissingValue::of_lock(&post), "no lock", "put a LockLayer around"),
            (MissingValue::of_lock(&get), "no GET", "a LockLayer with .all_methods()"),
            (MissingValue::of_fence(&post, false), "no lock", "put a LockLayer around"),
            (MissingValue::of_fence(&post, true), "LockOutage::Admit", "take Option<Fence>"),
            (MissingValue::of_charge(&post), "no RateLimitLayer", "put a RateLimitLayer around"),
            (MissingValue::of_charge(&uncharged), "not charged", "take Option<CurrentRate>"),
            (MissingValue::of_job(&post), "not the run", "take Option<CurrentJob>"),
        ] {
            let text = missing.to_string();
            assert!(text.contains(part) && text.contains(fix), "{text}");
            // And nothing but that.
            let other = ["LockLayer", "RateLimitLayer", "Option<"].into_iter();
            let named = other.filter(|other| text.contains(other)).count();
            assert_eq!(named, 1, "{text}");
        }
    }
}
