//! `AppliedPreferences`: the client's preferences (`Prefer`) that apply to a request, and how its
//! lock is tried by them.

use std::time::Duration;

use super::defer_layer::TriggerSettings;
use crate::{defer::prefer_header::PreferHeader, gate::LockInstruction};

/// Preferences of the client that are applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AppliedPreferences {
    pub(super) respond_async: bool,
    pub(super) wait: Option<Duration>,
}

impl AppliedPreferences {
    /// Returns the value of `Preference-Applied`.
    pub(super) fn header_value(self) -> Option<String> {
        let wait = self.wait.map(|wait| format!("wait={}", wait.as_secs()));
        let respond_async = self.respond_async.then(|| "respond-async".to_owned());
        let applied: Vec<_> = respond_async.into_iter().chain(wait).collect();
        (!applied.is_empty()).then(|| applied.join(", "))
    }
}

impl TriggerSettings {
    /// Returns how the lock is tried, and the preferences applied.
    pub(super) fn attempt_mode(
        &self,
        prefer: &[&[u8]],
        may_be_stored: impl FnOnce() -> bool,
    ) -> (LockInstruction, AppliedPreferences) {
        let PreferHeader { wait, respond_async } = PreferHeader::parse(prefer);
        // With `max_preferred_wait` zero, a client's wait does not replace the route's.
        let honored_wait = wait.filter(|_| !self.max_wait.is_zero());
        let wait = honored_wait.map(|wait| wait.min(self.max_wait));
        if self.background {
            return (
                LockInstruction::ParkOrRefuse,
                AppliedPreferences { respond_async, wait: None },
            );
        }
        let respond_async = respond_async && self.respond_async;
        // A request that can't be stored would be refused, so its lock is tried.
        if respond_async && wait.unwrap_or_default().is_zero() && may_be_stored() {
            return (LockInstruction::ParkImmediately, AppliedPreferences { respond_async, wait });
        }
        let mode = LockInstruction::WaitFor(wait.unwrap_or(self.lock_wait));
        (mode, AppliedPreferences { respond_async, wait })
    }
}
