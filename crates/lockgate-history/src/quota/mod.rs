//! Histories of quotas: who was let in, when, at which cost.
//!
//! Whatever the algorithm, a quota bounds what may be let in within a time of any length: fixed windows of length
//! `w` let in `limit` for each window that the time touches, sliding windows and GCRA less ([`QuotaBound`]). A request
//! that was let in was charged between its being sent and its being answered; so of all that was sent and answered
//! within a time, no more may have been let in than that. What was refused, or was not answered, counts for nothing:
//! it may have been charged, but nobody was let in by it.
//!
//! What the store tells of a key that is [spent](QuotaEvent::LeaseSpend) is held against both: no less than what was let in costs
//! at least, or something was given back twice; no more than what all that was asked for [may](QuotaEvent::CostLimit) cost, or something was
//! charged twice (RL2). Of a key whose charges are put right after the response the one shows what the other can't: a
//! quota that is not spent yet, and charges beyond it.
//!
//! And each client that lives is let in or refused by the store again, soon after the last fault (L1).

mod client_requests;
mod quota_bound;
mod quota_event;
mod quota_history;
mod quota_ledger;

pub use self::{
    quota_bound::QuotaBound,
    quota_event::QuotaEvent,
    quota_history::{QuotaCheckStats, QuotaHistory},
};
