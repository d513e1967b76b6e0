//! The history check of quotas: processes ask for the same few keys while they are killed, stopped and cut off and
//! while their server goes away and comes back; and however that goes, no more is let in than the quotas allow
//! (RL1). After the last fault each client of each process that lives is let in or refused by the store again, within a
//! bound, and has no other answer from then on (L1).
//!
//! Each process writes down what it was told. While the store is away those whose policy is `Local` go on alone,
//! and that has a bound of its own.

mod conduct;
mod fault;
mod fill;
mod limiter;
mod rest;
mod spender;

use std::time::Duration;

use lockgate::{Outage, Policy, Quota, testing::history::quota::Limit};

pub use self::{
    conduct::conduct,
    limiter::limiter,
    spender::{spender, spent},
};
use crate::history::clock::{self, ns};

const SECOND: Duration = Duration::from_secs(1);

/// So long a quota that is asked for anew is asked for, by the clock that all processes have.
const EPOCH: Duration = Duration::from_secs(2);

/// The window of those: it begins with the first charge, and is not over when the last one is made, however late.
const LONG: Duration = Duration::from_secs(20);

/// What is asked for under one name of the history: each policy by a key of its own, and what they let in together
/// at most.
struct Asked {
    name: &'static str,
    policies: Vec<Policy>,
    limit: Limit,
    /// In each [`EPOCH`] by a key that was not there before.
    anew: bool,
}

impl Asked {
    /// Its name in the history in this epoch.
    fn name_in(&self, epoch: u64) -> String {
        if self.anew { format!("{}-{epoch}", self.name) } else { self.name.to_owned() }
    }
}

fn epoch() -> u64 {
    clock::now() / ns(EPOCH)
}

/// Of those that are asked for anew not one more than the limit is ever let in, leases, refunds and lost replies included;
/// and every other second there are some that are not spent yet, so that whatever is done meets one. "apart" has two keys, so
/// two tags: what the first has charged is given back when the second refuses, and that may be lost, but must not be done
/// twice. The second has many keys of little each, so that it refuses while there is plenty of the first, which is judged.
fn policies() -> Vec<Asked> {
    let quota = |n| Quota::requests(n);
    let policy = |quota: Quota, name: &str| Policy::new(quota).name(name);
    let window = ns(SECOND);
    let one =
        |policy: Policy, name, limit| Asked { name, policies: vec![policy], limit, anew: false };
    // Of which one more may be let in: the first.
    let once = |n: u64| Limit::Paced { burst: n - 1, limit: 0, window: 1 };
    let long = |n, name: &str| policy(quota(n).per(LONG), name).on_outage(Outage::Refuse);
    let anew = |policies, name, n| Asked { name, policies, limit: once(n), anew: true };
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
        anew(vec![long(300, "once")], "once", 300),
        anew(vec![long(300, "lent").lease(10)], "lent", 300),
        anew(vec![long(150, "wide"), long(3, "narrow")], "apart", 150),
    ]
}
