//! `ChargeAdjustment`: refund of a charge, or a further charge after the request.

use std::sync::Arc;

use super::{
    charge_command::check_item_count, quota_rule::QuotaRule, quota_snapshot::ChargedWindow,
};
use crate::{error::Error, key::Key};

/// Adjustment of one counter after the fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeAdjustment {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) rule: QuotaRule,
    pub(crate) kind: AdjustmentKind,
}

impl ChargeAdjustment {
    /// Creates an adjustment. A charge is capped at [`QuotaRule::max_charge`].
    pub(crate) fn new(
        policy: Arc<str>,
        subject: Key,
        rule: QuotaRule,
        kind: AdjustmentKind,
    ) -> Self {
        let kind = match kind {
            AdjustmentKind::Charge { units } => {
                AdjustmentKind::Charge { units: units.min(rule.max_charge()) }
            }
            AdjustmentKind::Refund { .. } => kind,
        };
        Self { policy, subject, rule, kind }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdjustmentKind {
    /// Refunds the charge, or a part of it, in the window that the charge's [`QuotaSnapshot`]
    /// named. A refund lapses with that window, and never moves it.
    ///
    /// [`QuotaSnapshot`]: super::QuotaSnapshot
    Refund { units: u64, window: ChargedWindow },
    /// Charges more units now, even beyond the limit. It begins a window if there is none.
    Charge { units: u64 },
}

/// Adjustments of counters, each by itself. NOT idempotent, as a charge is not.
#[derive(Debug, Clone)]
pub(crate) struct SettleChargeCommand {
    /// Tag of the charge.
    pub(crate) tag: Key,
    /// At most [`MAX_ITEMS_PER_CHARGE`](super::charge_command::MAX_ITEMS_PER_CHARGE).
    pub(crate) items: Vec<ChargeAdjustment>,
}

impl SettleChargeCommand {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_item_count(self.items.len())
    }
}
