//! Outcomes that are counted, with their label values.

/// Defines an enum of outcomes, their number, and their label values.
macro_rules! outcomes {
    ($($(#[$docs:meta])* $name:ident { $($variant:ident = $label:literal),+ $(,)? })+) => {$(
        $(#[$docs])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            /// Label values, in the order of the variants.
            pub(crate) const LABELS: &[&str] = &[$($label),+];

            pub(crate) fn index(self) -> usize {
                self as usize
            }
        }
    )+};
}

outcomes! {
    /// Result of a request for a lock.
    LockRequestOutcome {
        Granted = "granted",
        Busy = "busy",
        TimedOut = "timeout",
        QueueFull = "queue_full",
        Unavailable = "unavailable",
        Other = "other",
    }
    /// How a lock was handed over to the next waiter of the same process.
    HandoverVia { Memory = "memory", Store = "store" }
    /// Result of a policy for one request.
    DecisionOutcome {
        Admitted = "admitted",
        Refused = "refused",
        Denied = "denied",
        TooCostly = "too_costly",
    }
    /// Where the result of a policy came from.
    DecisionSource { Memory = "memory", Lease = "lease", Store = "store", Local = "local" }
    /// Result of an attempt to defer a request.
    EnqueueResult {
        Deferred = "deferred",
        Known = "known",
        Refused = "refused",
        Failed = "failed",
    }
    /// How a run of a deferred request ended.
    RunResult {
        Done = "done",
        Retry = "retry",
        Dead = "dead",
        Lost = "lost",
        HandedBack = "handed_back",
        Cancelled = "cancelled",
    }
    /// Result of a push of a task.
    PushResult {
        Stored = "stored",
        Known = "known",
        Full = "full",
        TooLarge = "too_large",
        Failed = "error",
    }
    /// How a run of a task ended.
    TaskResult {
        Done = "done",
        Retry = "retry",
        Dead = "dead",
        Lost = "lost",
        Returned = "returned",
        Cancelled = "cancelled",
    }
    /// How the delivery of a webhook ended.
    WebhookResult { Delivered = "delivered", Retry = "retry", Dead = "dead" }
    /// How a call to the store ended.
    StoreCallOutcome { Ok = "ok", Unavailable = "unavailable", Timeout = "timeout", Failed = "error" }
}
