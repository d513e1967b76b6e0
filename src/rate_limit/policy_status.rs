//! `PolicyStatus`: the state of one policy for a request, as reported to clients.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::decision::{Decision, PolicyDecision};

/// State of one policy for a request, as reported in headers and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStatus<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// Number of units per window.
    pub limit: u64,
    /// The window's length.
    pub window: Duration,
    /// Units that can be spent at once.
    pub remaining: u64,
    /// Time until more units are available.
    pub reset_after: Duration,
    /// Time that this request has to wait for this policy, if no other request spends its units.
    /// Zero if the policy admits it; [`Duration::MAX`] if it never will, since the cost exceeds the
    /// capacity.
    pub retry_after: Duration,
    /// True if this policy refuses the request.
    pub violated: bool,
}

impl PolicyStatus<'_> {
    /// Returns the time until such a request is admitted, if it is refused; otherwise the time
    /// until more units are available.
    pub(super) fn wait_time(&self) -> Duration {
        if self.violated && !self.is_permanent() { self.retry_after } else { self.reset_after }
    }

    /// Returns true if waiting does not help.
    pub(super) fn is_permanent(&self) -> bool {
        self.violated && self.retry_after == Duration::MAX
    }
}

/// Returns the policies reported to clients. Shadow policies are not reported.
pub(super) fn policy_statuses(decision: &Decision) -> SmallVec<[PolicyStatus<'_>; 1]> {
    if let [decision] = decision.policies() {
        // The common case. Collecting an iterator does not know its length.
        let status = (!decision.policy().is_shadow()).then(|| policy_status(decision)).flatten();
        return status.map_or_else(SmallVec::new, |status| smallvec![status]);
    }
    let enforced = decision.policies().iter().filter(|decision| !decision.policy().is_shadow());
    enforced.filter_map(policy_status).collect()
}

fn policy_status(decision: &PolicyDecision) -> Option<PolicyStatus<'_>> {
    let (quota, remaining) = (decision.quota(), decision.remaining()?);
    Some(PolicyStatus {
        name: decision.policy().name(),
        limit: quota.limit(),
        window: quota.window(),
        remaining,
        reset_after: decision.reset_after()?,
        retry_after: decision.retry_after(),
        violated: decision.is_violated(),
    })
}
