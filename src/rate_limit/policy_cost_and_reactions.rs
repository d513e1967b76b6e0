//! `Policy`: a quota with a name, a cost, and its reactions: to a refusal (penalty, shadow mode,
//! cached refusals), to an unavailable store, and the quota lease.

use std::{borrow::Cow, fmt::Write as _, sync::Arc, time::Duration};

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::{policy_change::PolicyChange, policy_document::PolicyDocument, quota::Quota};
use crate::{
    duration_text::DurationText,
    durations::MAX_DURATION,
    error::{Error, expect_setting},
    key::escape,
    outage::RateLimitOutage,
    store::Penalty,
};

/// Quota with a name, which clients see, a cost and a reaction to requests beyond it.
///
/// Layers and limiters take a bare [`Quota`] in place of a policy; it is called after its numbers,
/// such as `100-per-60s`.
///
/// ```
/// use std::time::Duration;
/// use lockgate::{Policy, Quota};
///
/// let minute = Quota::requests(100).per(Duration::from_secs(60)).burst(20);
/// let policy = Policy::new(minute).with_name("search").penalty(50, Duration::from_secs(600));
/// assert_eq!(policy.name(), "search");
/// ```
///
/// # Configuration
///
/// With serde, a policy has the fields `quota`, and optionally `name`, `cost`, `penalty`
/// (`after_refusals` and `block`), `shadow`, `on_outage` (`local`, `refuse` or `admit`),
/// `quota_lease` and `cache_refusals_for`, which are its setters. Durations are texts such as
/// `600s` or `10min`. Unknown fields, and values that a setter would refuse or clamp, are errors.
///
/// ```
/// use std::time::Duration;
/// use lockgate::{Policy, Quota};
///
/// let json = r#"{
///     "name": "search",
///     "quota": "100 per 60s burst 20",
///     "penalty": { "after_refusals": 50, "block": "10min" }
/// }"#;
/// let minute = Quota::requests(100).per(Duration::from_secs(60)).burst(20);
/// let policy = Policy::new(minute).with_name("search").penalty(50, Duration::from_secs(600));
/// assert_eq!(serde_json::from_str::<Policy>(json)?, policy);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "PolicyDocument", try_from = "PolicyDocument")]
pub struct Policy {
    /// Name that clients see.
    pub(super) name: Arc<str>,
    /// The application has set the name.
    pub(super) is_named: bool,
    /// Name in the keys of the counters.
    counter_name: Arc<str>,
    quota: Quota,
    cost: u64,
    pub(super) penalty: Option<Penalty>,
    shadow: bool,
    outage: RateLimitOutage,
    lease_size: u32,
    max_refusal_ttl: Option<Duration>,
}

/// Penalty that no subject reaches: only charges with a penalty look for blocks by operators.
const NO_PENALTY: Penalty = Penalty { after_refusals: u32::MAX, block_for: MAX_DURATION };

/// Maximum size of a quota lease.
pub(super) const MAX_LEASE_SIZE: u32 = 10_000;

impl Policy {
    /// Creates a policy that is called after its quota: clients see 10 requests per second as
    /// `10-per-1s`. It shares its counters with other policies of the same quota that have no name.
    ///
    /// A request costs 1, refusals are enforced and have no further consequence, and this process
    /// enforces its share of the quota while the store is unavailable.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
    /// use std::time::Duration;
    /// use lockgate::{Policy, Quota, Store};
    ///
    /// let hour = Quota::requests(10).per(Duration::from_secs(3600));
    /// let policy = Policy::new(hour).cost(4);
    /// assert_eq!((policy.name(), policy.quota()), ("10-per-3600s", hour));
    /// let limit = Store::memory().rate_limiter(policy);
    /// assert_eq!(limit.check("customer:7", 4).await?.remaining(), 6);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self {
            name: name_after_quota(quota).into(),
            is_named: false,
            counter_name: default_counter_name(quota),
            quota,
            cost: 1,
            penalty: None,
            shadow: false,
            outage: RateLimitOutage::Local,
            lease_size: 0,
            max_refusal_ttl: None,
        }
    }

    /// Sets the name in `RateLimit-Policy` and of the counters.
    ///
    /// Policies of one name share a counter for each key, in whatever layers they are, and the
    /// counter keeps its state when the quota changes. (Fixed windows, sliding windows and GCRA
    /// have separate counters.) Independent policies therefore need different names, in different
    /// layers too: if two quotas share a counter, the shorter window resets the count of the longer
    /// one, which then does not hold.
    ///
    /// Any text is allowed; different names have different counters, and clients can tell them
    /// apart. Structured headers hold printable ASCII only (RFC 9651 section 3.3.3), so every other
    /// byte and `%` are percent-encoded. [`name`](Self::name) returns the encoded form.
    ///
    /// Default: the quota, for clients and for the counter, so that layers without a name do not
    /// interfere.
    ///
    /// - Clients see the limit and the window, in the largest unit of `s`, `ms`, `us` and `ns` that
    ///   divides it: `100-per-60s`. The second policy of the same numbers in one layer or limiter
    ///   is `100-per-60s-2`, the third one `100-per-60s-3`. An unlimited quota is `unlimited`.
    /// - The counter starts anew when the quota changes.
    /// - The name is that of the policy's own quota, even if
    ///   [`quota_by`](super::RateLimitLayer::quota_by) finds another one for a request. Name such a
    ///   policy.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = encode_name(name).into();
        self.is_named = true;
        self.counter_name = escape(name.as_bytes()).into();
        self
    }

    /// Sets the cost of a request, unless the layer or the caller sets another. Default 1; 0
    /// charges nothing.
    ///
    /// # Panics
    ///
    /// If the cost exceeds the capacity of the quota, since no request would ever be admitted. A
    /// quota of 0 allows any cost. For a cost or a quota from a configuration use
    /// [`try_cost`](Self::try_cost).
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        expect_setting(self.try_cost(cost))
    }

    /// Like [`cost`](Self::cost), for a cost or a quota from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the cost exceeds the capacity of the quota,
    /// unless that is 0.
    pub fn try_cost(mut self, cost: u64) -> Result<Self, Error> {
        if cost > self.quota.capacity() && !self.quota.is_zero() {
            return Err(Error::setting(format!(
                "Policy::cost: {cost} exceeds the capacity of the quota"
            )));
        }
        self.cost = cost;
        Ok(self)
    }

    /// Blocks a key after a number of refusals within a window: every request with a cost is
    /// refused for `block` (at least 1 ms, at most a year). Default: a refusal has no consequence,
    /// and a retry after `Retry-After` is admitted.
    ///
    /// The store has to count every refusal, so refusals other than blocks are not
    /// [cached](Self::cache_refusals_for) in the process.
    ///
    /// Of two layers around one handler that are otherwise alike, the inner one is skipped only if
    /// it has the same penalty or none. With another penalty it charges the request too, and a
    /// warning is logged.
    #[must_use]
    pub fn penalty(mut self, after_refusals: u32, block: Duration) -> Self {
        self.penalty = Some(Penalty {
            after_refusals: after_refusals.max(1),
            block_for: block.clamp(Duration::from_millis(1), MAX_DURATION),
        });
        self
    }

    /// Decides and reports, but always admits. A refusal is a `tracing` event (`INFO`) and is part
    /// of the [`Decision`](super::Decision). A shadow policy is charged in a call of its own, after
    /// the enforced policies have admitted the request, and never affects those.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Sets the reaction to an unavailable store. Default [`RateLimitOutage::Local`]: a limiter in
    /// an outage should neither take the service down nor leave it without a limit.
    #[must_use]
    pub fn on_outage(mut self, outage: RateLimitOutage) -> Self {
        self.outage = outage;
        self
    }

    /// Charges up to `max_units` units of a key at once, and spends them in this process without
    /// asking the store. At most 10,000. Default: a charge for each request.
    ///
    /// - A lease never admits more than the quota: leased units are charged, and expire with their
    ///   window.
    /// - It may refuse early, by at most `max_units` for each process: units that one process has
    ///   leased are missing for the others, and units in flight are missing for requests of their
    ///   own process.
    /// - Leases unused for a second are returned, and all leases by
    ///   [`Store::shutdown`](crate::Store::shutdown). A process that dies keeps its leases until
    ///   the window ends.
    /// - If a key spends half of a lease of 32 or more within 25 ms, the next half is prefetched.
    /// - Requests with a cost other than 1 are charged one by one. Those of a policy with a
    ///   [penalty](Self::penalty) are too, since their refusals are counted one by one.
    ///
    /// # Panics
    ///
    /// If the quota is no fixed window. In the others, the time of a charge matters. For a quota
    /// from a configuration use [`try_quota_lease`](Self::try_quota_lease).
    #[must_use]
    pub fn quota_lease(self, max_units: u32) -> Self {
        expect_setting(self.try_quota_lease(max_units))
    }

    /// Like [`quota_lease`](Self::quota_lease), for a quota from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the quota is no fixed window.
    pub fn try_quota_lease(mut self, max_units: u32) -> Result<Self, Error> {
        if max_units >= 2 && !self.quota.is_unlimited() && !self.quota.is_fixed_window() {
            return Err(Error::setting(
                "Policy::quota_lease: only the quota of a fixed window can be leased",
            ));
        }
        self.lease_size = max_units.min(MAX_LEASE_SIZE);
        Ok(self)
    }

    /// Sets the maximum time for which this process repeats a refusal without asking the store.
    /// Zero caches nothing.
    ///
    /// Default: as long as the store said that the refusal lasts, which is exact. 100 ms for
    /// policies with refunds, with a quota lease or with a quota that depends on the request, where
    /// a refusal may end sooner.
    ///
    /// Set it in these cases:
    ///
    /// - The policy is alone on one route and beside other policies on another. A charge on the
    ///   second route is refunded if another policy refuses, and the first route does not learn of
    ///   it: its cached refusal may outlast the reason.
    /// - Keys are [reset](super::RateLimiter::reset), or the quota is changed while other processes
    ///   run. Those learn of it after this time.
    #[must_use]
    pub fn cache_refusals_for(mut self, max_refusal_ttl: Duration) -> Self {
        self.max_refusal_ttl = Some(max_refusal_ttl);
        self
    }

    /// Returns the name that clients see in the rate headers; see [`with_name`](Self::with_name).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns true if the policy is in [shadow mode](Self::shadow) and not enforced.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Numbers the name of a policy that is called after its quota, if one of `others` has that
    /// name: clients tell the policies of a response apart by their names. The counter keeps its
    /// name.
    pub(super) fn distinguished_from<'a>(
        mut self,
        others: &(impl Iterator<Item = &'a Arc<Self>> + Clone),
    ) -> Self {
        if self.is_named {
            return self;
        }
        let base = name_after_quota(self.quota);
        let (mut name, mut number) = (base.clone(), 1);
        while others.clone().any(|other| *other.name == *name) {
            number += 1;
            name = format!("{base}-{number}");
        }
        self.name = name.into();
        self
    }

    /// Returns the policy as an operator has changed it. Its counters keep their names.
    pub(super) fn changed_by(&self, change: &PolicyChange) -> Self {
        Self {
            quota: change.new_quota().unwrap_or(self.quota),
            shadow: change.new_shadow().unwrap_or(self.shadow),
            penalty: self.penalty.or(change.has_blocks().then_some(NO_PENALTY)),
            ..self.clone()
        }
    }

    /// Returns true if the two, under one key, share a counter or the name that clients see.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        let algorithm = |policy: &Self| policy.quota.to_rule().map(|rule| rule.algorithm());
        let share_counter = self.counter_name == other.counter_name
            && algorithm(self).is_some_and(|own| algorithm(other) == Some(own));
        share_counter || (self.is_named && self.name == other.name)
    }

    pub(crate) fn counter_name(&self) -> &Arc<str> {
        &self.counter_name
    }

    pub(super) fn default_cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn penalty_rule(&self) -> Option<Penalty> {
        self.penalty
    }

    pub(super) fn outage(&self) -> RateLimitOutage {
        self.outage
    }

    pub(super) fn lease_size(&self) -> u32 {
        self.lease_size
    }

    /// Returns the size of a lease under this quota, which may differ from the policy's own.
    pub(super) fn lease_size_for(&self, quota: Quota) -> u32 {
        // Refused units of a lease would count as refusals towards a penalty.
        if quota.is_fixed_window() && self.penalty.is_none() { self.lease_size } else { 0 }
    }

    pub(super) fn max_refusal_ttl(&self) -> Option<Duration> {
        self.max_refusal_ttl
    }
}

/// Encodes a name as a string of structured fields. Percent-encoding keeps different names
/// different.
fn encode_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => {
                let _ = write!(out, "%{byte:02X}");
            }
            plain => out.push(plain.into()),
        }
    }
    out
}

/// Returns the name that was [encoded](encode_name).
pub(super) fn decode_name(name: &str) -> Cow<'_, str> {
    percent_decode_str(name).decode_utf8_lossy()
}

/// Returns the name that clients see of a policy without a name: `100-per-60s`.
fn name_after_quota(quota: Quota) -> String {
    if quota.is_unlimited() {
        return "unlimited".to_owned();
    }
    format!("{}-per-{}", quota.limit(), DurationText(quota.window()))
}

/// Returns the counter name of a policy without a name: `~`, limit, window and capacity. It differs
/// from all given names: an escaped name that starts with `~` is a hash, which has no dots. Two
/// layers without a name share a limit only if their quotas are equal.
fn default_counter_name(quota: Quota) -> Arc<str> {
    let (limit, window, capacity) = (quota.limit(), quota.window(), quota.capacity());
    match window.subsec_nanos() % 1_000_000 {
        0 => format!("~{limit}.{}.{capacity}", window.as_millis()).into(),
        // GCRA counts in microseconds.
        _ => format!("~{limit}.{}n.{capacity}", window.as_nanos()).into(),
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::new(quota)
    }
}
