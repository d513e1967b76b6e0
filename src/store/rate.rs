//! Charges of quota counters, and the quota snapshots that they return.
//!
//! A store keeps a [`CounterValue`] for each counter and decides. The snapshot for the client is
//! computed from it here (`ChargeItem::evaluate`), for every store alike. [`GcraRate`] turns an
//! even rate into integers.
//!
//! # Numbers
//!
//! All numbers are integers, in every store, and at most 2^53, up to which Lua's numbers are exact.
//! Limits, costs and usage are capped at [`MAX_UNITS`].

mod charge_adjustment;
mod charge_command;
mod counter_value;
mod gcra_rate;
mod quota_rule;
mod quota_snapshot;
mod stored_policy_changes;

#[cfg(feature = "redis")]
pub(crate) use self::charge_command::MAX_ITEMS_PER_CHARGE;
pub(crate) use self::{
    charge_adjustment::{AdjustmentKind, ChargeAdjustment, SettleChargeCommand},
    charge_command::{
        ChargeCommand, ChargeItem, ChargeOutcome, CounterName, QuotaSnapshots, check_item_count,
    },
    counter_value::{CounterValue, scale_ceil},
    gcra_rate::{GcraRate, MAX_DEBT_PARTS},
    quota_rule::{Algorithm, MAX_UNITS, Penalty, QuotaRule},
    quota_snapshot::{ChargedWindow, QuotaSnapshot},
    stored_policy_changes::StoredPolicyChanges,
};
