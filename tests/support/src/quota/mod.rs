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
mod spender;

use std::time::Duration;

use lockgate::{Outage, Policy, Quota, testing::history::quota::Limit};

pub use self::{
    conduct::conduct,
    limiter::limiter,
    spender::{spender, spent},
};
use crate::history::clock::ns;

const SECOND: Duration = Duration::from_secs(1);

/// What is asked for under one name of the history: each policy by a key of its own, and what they let in together
/// at most.
struct Asked {
    name: &'static str,
    policies: Vec<Policy>,
    limit: Limit,
}

/// The windows of the last two are longer than any run: of them not one more than the limit is ever let in, leases and
/// lost replies included. "apart" has two keys, so two tags: what the first has charged is given back when the second
/// refuses, and that may be lost, but must not be done twice.
fn policies() -> Vec<Asked> {
    let quota = |n| Quota::requests(n);
    let policy = |quota: Quota, name: &str| Policy::new(quota).name(name);
    let (window, hour) = (ns(SECOND), Duration::from_secs(36_000));
    let one = |policy: Policy, name, limit| Asked { name, policies: vec![policy], limit };
    // Of which one more may be let in: the first.
    let once = |n: u64| Limit::Paced { burst: n - 1, limit: 0, window: 1 };
    let ever = |n, name: &str| policy(quota(n).per(hour), name).on_outage(Outage::Refuse);
    vec![
        one(policy(quota(40).per(SECOND), "fixed"), "fixed", Limit::Fixed { limit: 40, window }),
        one(
            policy(quota(40).per(SECOND).sliding(), "sliding"),
            "sliding",
            Limit::Sliding { limit: 40, window },
        ),
        one(
            policy(quota(40).per(SECOND).burst(10), "paced").on_outage(Outage::Refuse),
            "paced",
            Limit::Paced { burst: 10, limit: 40, window },
        ),
        one(
            policy(quota(100).per(SECOND), "leased").lease(10).on_outage(Outage::Refuse),
            "leased",
            Limit::Fixed { limit: 100, window },
        ),
        one(ever(500, "once"), "once", once(500)),
        Asked {
            name: "apart",
            policies: vec![ever(600, "wide"), ever(400, "narrow")],
            limit: once(400),
        },
    ]
}
