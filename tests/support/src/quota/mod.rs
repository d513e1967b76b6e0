//! The history check of quotas: processes ask for the same few keys while they are killed, stopped and cut off and
//! while their server goes away and comes back; and however that goes, no more is let in than the quotas allow
//! (RL1). After the last fault each client of each process that lives is let in or refused by the store again, within a
//! bound, and has no other answer from then on (L1).
//!
//! Each process writes down what it was told. While the store is away those whose policy is `Local` go on alone,
//! and that has a bound of its own.

mod conduct;
mod fault;
mod limiter;

use std::time::Duration;

use lockgate::{Outage, Policy, Quota, testing::history::quota::Limit};

pub use self::{conduct::conduct, limiter::limiter};
use crate::history::clock::ns;

const SECOND: Duration = Duration::from_secs(1);

/// The keys, each with its policy and what that lets in at most. The last one's window is longer than any run: of
/// it not one more than its limit is ever let in, leases and lost replies included.
fn policies() -> Vec<(&'static str, Policy, Limit)> {
    let quota = |n| Quota::requests(n);
    let policy = |quota: Quota, name: &str| Policy::new(quota).name(name);
    let (window, hour) = (ns(SECOND), Duration::from_secs(36_000));
    vec![
        ("fixed", policy(quota(40).per(SECOND), "fixed"), Limit::Fixed { limit: 40, window }),
        (
            "sliding",
            policy(quota(40).per(SECOND).sliding(), "sliding"),
            Limit::Sliding { limit: 40, window },
        ),
        (
            "paced",
            policy(quota(40).per(SECOND).burst(10), "paced").on_outage(Outage::Refuse),
            Limit::Paced { burst: 10, limit: 40, window },
        ),
        (
            "leased",
            policy(quota(100).per(SECOND), "leased").lease(10).on_outage(Outage::Refuse),
            Limit::Fixed { limit: 100, window },
        ),
        (
            "once",
            policy(quota(500).per(hour), "once").on_outage(Outage::Refuse),
            Limit::Paced { burst: 499, limit: 0, window: 1 },
        ),
    ]
}
