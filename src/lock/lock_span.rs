//! `LockSpan`: span of an acquire and of the hold that follows it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::field::Empty;

use super::{
    lock_guard::LockGuard,
    lock_outcome::{AcquireError, LockOutcome},
};
use crate::{
    durations::saturating_millis,
    instruments::LockRequestOutcome,
    key::Key,
    store::{HoldState, LockMode, Store},
    trace::BoxedSpan,
};

/// Span `lockgate.lock`, from the acquire to the release. Several locks that are acquired together
/// have one span, with the name of the first.
#[derive(Debug, Default)]
pub(super) struct LockSpan(Option<Box<OpenLockSpan>>);

/// Acquire that has begun: its span, and the start of its wait for the metrics.
#[must_use]
pub(super) struct AcquireTimer {
    span: LockSpan,
    started_at: Instant,
}

#[derive(Debug)]
struct OpenLockSpan {
    span: BoxedSpan,
    /// Field and start of the time that is being taken: that of the wait, then that of the hold.
    timed: Option<(&'static str, Instant)>,
    /// Holds whose loss is an error of the span.
    holds: Vec<Arc<HoldState>>,
}

impl LockSpan {
    /// Ends the time of the hold. The span itself lasts until the release has found no loss.
    pub(super) fn end_hold(&mut self) {
        if let Some(open) = &mut self.0 {
            open.record_time();
        }
    }

    /// Starts an acquire, with a span if it is enabled.
    pub(super) fn start(store: &Store, keys: &[Key], mode: LockMode) -> AcquireTimer {
        let span = BoxedSpan::new(tracing::info_span!(
            "lockgate.lock",
            otel.status_code = Empty,
            lock = keys.first().map(|key| tracing::field::display(store.log_name(key))),
            lock.kind = mode.name(),
            lock.count = keys.len(),
            fence = Empty,
            outcome = Empty,
            lockgate.wait_ms = Empty,
            lockgate.hold_ms = Empty,
            loss = Empty,
        ));
        let started_at = Instant::now();
        let is_enabled = span.is_enabled();
        let timed = Some((WAIT_FIELD, started_at));
        let open = || Box::new(OpenLockSpan { span, timed, holds: Vec::new() });
        AcquireTimer { span: Self(is_enabled.then(open)), started_at }
    }
}

impl AcquireTimer {
    /// Ends the wait of an acquire of these locks, at most `max_wait` long. The span continues with
    /// the first of the guards that `guards_of` returns of a grant, until that is released.
    pub(super) fn end_wait<G>(
        self,
        (store, keys, max_wait): (&Store, &[Key], Option<Duration>),
        acquired: &mut Result<LockOutcome<G>, AcquireError>,
        guards_of: impl FnOnce(&mut G) -> Vec<&mut LockGuard>,
    ) {
        let label = keys.first().map_or("", Key::without_value);
        let waited = self.started_at.elapsed();
        let has_time_left = max_wait.is_some_and(|max_wait| waited < max_wait);
        let outcome = request_outcome(acquired, has_time_left);
        store.counters().record_lock_request(label, outcome, waited);
        let Some(mut open) = self.span.0 else { return };
        open.record_time();
        let outcome = match acquired {
            Ok(LockOutcome::Granted(_)) => "granted",
            Ok(LockOutcome::Busy(_)) | Err(AcquireError::Busy(_)) => "busy",
            Ok(LockOutcome::RecordExists) => "duplicate",
            Ok(LockOutcome::TooManyKeys(_)) => "too many idempotency keys",
            Err(AcquireError::WouldDeadlock) => "would deadlock",
            Err(AcquireError::Fault(_)) => "store unavailable",
        };
        open.span.record("outcome", outcome);
        if let Err(AcquireError::WouldDeadlock | AcquireError::Fault(_)) = acquired {
            open.span.record("otel.status_code", "ERROR");
        }
        if let Ok(LockOutcome::Granted(granted)) = acquired {
            let mut guards = guards_of(granted);
            open.holds = guards.iter().filter_map(|guard| guard.hold_state()).cloned().collect();
            if let Some(guard) = guards.first_mut() {
                open.span.record("fence", guard.fence());
                open.timed = Some((HOLD_FIELD, Instant::now()));
                guard.set_span(LockSpan(Some(open)));
            }
        }
    }
}

fn request_outcome<G>(
    acquired: &Result<LockOutcome<G>, AcquireError>,
    has_time_left: bool,
) -> LockRequestOutcome {
    match acquired {
        Ok(LockOutcome::Granted(_)) => LockRequestOutcome::Granted,
        Ok(LockOutcome::Busy(busy)) | Err(AcquireError::Busy(busy)) if busy.waited.is_some() => {
            // A waiter leaves before its deadline only if it found no place.
            match has_time_left {
                true => LockRequestOutcome::QueueFull,
                false => LockRequestOutcome::TimedOut,
            }
        }
        Ok(LockOutcome::Busy(_)) | Err(AcquireError::Busy(_)) => LockRequestOutcome::Busy,
        Err(AcquireError::Fault(_)) => LockRequestOutcome::Unavailable,
        Ok(LockOutcome::RecordExists | LockOutcome::TooManyKeys(_))
        | Err(AcquireError::WouldDeadlock) => LockRequestOutcome::Other,
    }
}

impl OpenLockSpan {
    fn record_time(&mut self) {
        if let Some((field, since)) = self.timed.take() {
            self.span.record(field, saturating_millis(since.elapsed()));
        }
    }
}

/// Also records the time of a wait that was dropped, and a loss that is known by now.
impl Drop for OpenLockSpan {
    fn drop(&mut self) {
        self.record_time();
        if let Some(loss) = self.holds.iter().find_map(|hold| hold.current().loss()) {
            self.span.record("loss", tracing::field::debug(loss));
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

const WAIT_FIELD: &str = "lockgate.wait_ms";
const HOLD_FIELD: &str = "lockgate.hold_ms";
