//! Histories of quotas: admissions, their times and their costs.
//!
//! With any algorithm, a quota bounds the admissions within a period of any length. Fixed windows
//! of length `w` admit `limit` for each window that the period touches; sliding windows and GCRA
//! admit less ([`QuotaBound`]). An admitted request was charged between its call and the reply. The
//! requests that were sent and answered within a period must therefore not exceed that bound (RL1).
//! Refused and unanswered requests do not count: they may have been charged, but were not admitted.
//!
//! A [reading](QuotaEvent::SpentRead) of the units spent of a key is compared with two bounds
//! (RL2). If it is below the least cost of the admissions, a charge was refunded twice. If it is
//! above the most that all requests [may cost](QuotaEvent::CostLimit), a request was charged twice.
//! This covers keys whose charges are adjusted after the response, where RL1 shows nothing: quotas
//! that are not exhausted, and charges beyond the quota.
//!
//! Each living client is admitted or refused by the store again soon after the last fault (L1).

mod client_liveness;
mod excess_admissions;
mod quota_bound;
mod quota_event;
mod quota_history;
mod quota_ledger;

pub use self::{
    quota_bound::QuotaBound,
    quota_event::QuotaEvent,
    quota_history::{QuotaCheckStats, QuotaHistory},
};
