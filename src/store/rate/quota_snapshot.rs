//! `QuotaSnapshot`: state of a counter after a call, as clients see it.

use std::time::Duration;

/// State of a counter after a call. Times count from the server's reply. Times that a client may
/// rely on are rounded up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuotaSnapshot {
    /// Units that can be charged at once now.
    pub(crate) remaining: u64,
    /// Time until more quota is available. Fixed window: its end, or a whole window if none has
    /// begun. Sliding window and GCRA: until one more unit is available; zero if all are.
    pub(crate) reset_after: Duration,
    /// Time until this counter admits `cost`, if nothing else is charged; zero if it does now.
    /// [`Duration::MAX`] if it never will, because `cost` exceeds the limit or the burst.
    pub(crate) retry_after: Duration,
    /// Time until the whole quota is available. A cached copy of this state can be dropped then.
    pub(crate) full_after: Duration,
    /// Window that was charged, for a later [`ChargeAdjustment`](super::ChargeAdjustment).
    pub(crate) charged_window: ChargedWindow,
    /// Remaining time of a penalty, if there is one. `retry_after` may be longer.
    pub(crate) blocked_for: Option<Duration>,
}

/// Window of a counter, or GCRA debt, that was charged. Only the store interprets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChargedWindow {
    /// Fixed window: its end, in ms. Sliding window: its start, in ms. GCRA: the time at which the
    /// debt is paid off if nothing is refunded, in us.
    pub(crate) boundary: u64,
    /// GCRA: the debt that the charge is part of; 0 if nothing is owed. A debt that was paid off or
    /// discarded never returns, nor does one of another rate or from before the clock was set back.
    pub(crate) debt_id: u64,
}
