//! A quota with a name, and what it means to exceed it.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use super::quota::Quota;
use crate::{clock::MAX_DURATION, key::escape, outage::RateLimitOutage, store::Penalty};

/// A quota with a name, which clients see, and what becomes of those who exceed it.
///
/// Wherever a layer or limiter takes a policy, a bare [`Quota`] will do: it is a policy named `default`.
///
/// ```
/// use std::time::Duration;
/// use lockgate::{Policy, Quota};
///
/// let minute = Quota::requests(100).per(Duration::from_secs(60)).burst(20);
/// let policy = Policy::new(minute).with_name("search").penalty(50, Duration::from_secs(600));
/// assert_eq!(policy.name(), "search");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// As clients read it.
    name: Arc<str>,
    /// As it stands in the counters' keys.
    counter_name: Arc<str>,
    quota: Quota,
    cost: u64,
    penalty: Option<(u32, Duration)>,
    shadow: bool,
    outage: RateLimitOutage,
    lease_size: u32,
    max_refusal_ttl: Option<Duration>,
}

/// Most charges that are leased at once.
const MAX_LEASE_SIZE: u32 = 10_000;

impl Policy {
    /// A policy that clients know as `default`, and that counts together with those of the same quota that
    /// have no name either: each request costs 1, refusals are enforced and have no further
    /// consequence, and while the store is away this process limits by itself.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self {
            name: "default".into(),
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

    /// The name in `RateLimit-Policy`, and the counter's: policies of one name count together for a
    /// key, wherever they stand, and a quota that is changed keeps what was spent. (Fixed windows,
    /// sliding windows and GCRA count apart.) So policies that are meant to differ need names that do, also
    /// in different layers: of two quotas that share a counter, the shorter window ends what the longer one
    /// has counted, which then does not hold.
    ///
    /// Any text will do: distinct names are distinct counters, and distinct to clients. In header fields, which
    /// hold printable ASCII alone (RFC 9651 section 3.3.3), every other byte is percent-encoded, and so is `%`;
    /// [`label`](Self::label) is the name as clients read it.
    ///
    /// Default: clients read `default`, and the quota itself is the counter's name, so that layers
    /// nobody has named do not get in each other's way; such a quota counts anew when it is changed.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = encode_name(name).into();
        self.counter_name = escape(name.as_bytes()).into();
        self
    }

    /// What a request costs, where nothing else says so. Default 1; 0 charges nothing.
    ///
    /// # Panics
    ///
    /// If it is more than the quota lets in at once: no request would ever be. (Of a quota of 0 that is meant.)
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        assert!(
            cost <= self.quota.capacity() || self.quota.is_zero(),
            "Policy::cost: {cost} is more than the quota ever lets in at once"
        );
        self.cost = cost;
        self
    }

    /// After so many refusals within a window, everything of that key that costs anything is refused for
    /// `block` (at least 1 ms, at most a year). Default: a refusal costs nothing, and who comes back in time is let in.
    ///
    /// Every refusal has to be counted in the store, so those that are no block are not
    /// [remembered](Self::cache_refusals_for) in the process.
    ///
    /// Of two layers around one handler that are alike otherwise, the inner one is left out only if it has the same penalty
    /// or none: with another one it charges the request, too, and a warning says so.
    #[must_use]
    pub fn penalty(mut self, after: u32, block: Duration) -> Self {
        self.penalty = Some((after.max(1), block.clamp(Duration::from_millis(1), MAX_DURATION)));
        self
    }

    /// Decides and reports, and lets the request pass all the same: a refusal is a `tracing` event (`INFO`)
    /// and is seen in the [`Decision`](super::Decision). A shadow policy is charged after those that are
    /// enforced have let the request in, in a call of its own, and can't keep them from anything.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// What to do while the store is away. Default [`RateLimitOutage::Local`]: a limiter that is down should
    /// not take the service down with it, nor leave it without any limit.
    #[must_use]
    pub fn on_outage(mut self, outage: RateLimitOutage) -> Self {
        self.outage = outage;
        self
    }

    /// Takes up to `n` charges of a key at once, and spends them in this process without asking the
    /// store. Default: every request is a charge of its own. At most 10,000.
    ///
    /// Never admits more than the quota: what is leased is charged, and lapses with its window. It may refuse
    /// early: what a process has leased of a key and not spent is not there for the others, and what it is fetching
    /// is not there for those who ask it meanwhile, at most `n` for each process. Leases that are not used for a second are given back, and so are all by
    /// [`Store::shutdown`](crate::Store::shutdown); a process that dies keeps what it has leased until the window ends.
    /// Of a key that spends half of a lease of 32 or more within 25 ms, the next half is fetched before anybody waits for it.
    /// Requests that cost anything else than 1 are charged one by one, and so are those of a policy with a
    /// [penalty](Self::penalty), whose refusals have to be counted one by one.
    ///
    /// # Panics
    ///
    /// If the quota is no fixed window: the others count when a request comes, not only that it does.
    #[must_use]
    pub fn quota_lease(mut self, n: u32) -> Self {
        assert!(
            n < 2 || self.quota.is_unlimited() || self.quota.is_fixed_window(),
            "Policy::lease: only a fixed window can be leased"
        );
        self.lease_size = n.min(MAX_LEASE_SIZE);
        self
    }

    /// The longest time for which a refusal is remembered in this process, and repeated without asking
    /// the store. Default: as long as the store said that it lasts, which is exact; 100 ms for policies
    /// whose charges may be given back or are leased, or whose quota differs by request, where the end may
    /// come sooner.
    ///
    /// What is charged on one route and given back there, since another policy refuses, is not known on a route that
    /// has this policy alone: a refusal there may outlast its reason. Set it on such a policy;
    /// and if you [reset](super::RateLimiter::reset) keys, or change the quota while other processes
    /// run: they learn of it after this time. Zero remembers nothing.
    #[must_use]
    pub fn cache_refusals_for(mut self, most: Duration) -> Self {
        self.max_refusal_ttl = Some(most);
        self
    }

    /// The name as clients read it in header fields: see [`name`](Self::with_name).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Whether it is only [watched](Self::shadow), not enforced.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    pub(super) fn counter_name(&self) -> &Arc<str> {
        &self.counter_name
    }

    pub(super) fn default_cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn penalty_rule(&self) -> Option<Penalty> {
        self.penalty.map(|(after, block)| Penalty { after_refusals: after, block_for: block })
    }

    pub(super) fn outage(&self) -> RateLimitOutage {
        self.outage
    }

    /// Charges to be taken at once under this quota, which may be another than the policy's own.
    pub(super) fn lease_size_for(&self, quota: Quota) -> u32 {
        // What a lease asks for and does not get would count as refusals.
        if quota.is_fixed_window() && self.penalty.is_none() { self.lease_size } else { 0 }
    }

    pub(super) fn max_refusal_ttl(&self) -> Option<Duration> {
        self.max_refusal_ttl
    }
}

/// A name as a string of structured fields. Percent-encoding keeps distinct names distinct.
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

/// Counter name of a policy without a name: `~`, limit, window and capacity. An escaped name that starts with `~` is
/// a hash, which has no dots. Two layers without a name are two limits, unless their quotas are equal.
fn default_counter_name(quota: Quota) -> Arc<str> {
    let (limit, window, most) = (quota.limit(), quota.window(), quota.capacity());
    match window.subsec_nanos() % 1_000_000 {
        0 => format!("~{limit}.{}.{most}", window.as_millis()).into(),
        // GCRA counts in microseconds.
        _ => format!("~{limit}.{}n.{most}", window.as_nanos()).into(),
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::new(quota)
    }
}
