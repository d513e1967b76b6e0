//! What a handler says when a task did not work out.

use std::{error::Error as StdError, fmt, io, iter::successors, time::Duration};

use crate::{clock::MAX_DURATION, store::MAX_REASON_BYTES};

/// What the errors of handlers convert into: every error that may go to another thread, `String`, `anyhow::Error`, what
/// a tower middleware answers with, and [`TaskFailure`].
pub(super) type TaskHandlerError = Box<dyn StdError + Send + Sync>;

/// Why a task failed, and what is to become of it. Every error converts into one, so `?` works in a handler
/// that answers with `Result<(), TaskFailure>`; its reason is what that says, and what the errors say that it has as its
/// [`source`](StdError::source). It converts into a boxed error itself, which may pass through whatever stands around a
/// handler: what is to become of the task is found in it again, also where it is the source of another error, and, but for `?`,
/// within an [`io::Error`].
///
/// It is no error itself, as `anyhow::Error` is none: else the conversion could not be for all errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    pub(super) reason: String,
    pub(super) action: FailureAction,
}

/// What is to become of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// Tried again as the worker's settings say.
    Retry,
    RetryAfter(Duration),
    /// Left to other workers, and not charged as an attempt.
    ReturnToQueue(Duration),
    DeadLetter,
}

impl TaskFailure {
    /// Tried again after a pause, as long as the task has attempts. The reason is kept in the task's history, at
    /// most 200 bytes of it, and shown in listings.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: single_line(&reason.to_string()), action: FailureAction::Retry }
    }

    /// Not to be tried again: the task becomes a dead letter now.
    pub fn dead_letter(reason: impl fmt::Display) -> Self {
        Self { action: FailureAction::DeadLetter, ..Self::new(reason) }
    }

    /// Tried again after this time instead of the worker's own backoff; at most a year.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.action = FailureAction::RetryAfter(delay.min(MAX_DURATION));
        self
    }

    /// What it says.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl<E: StdError> From<E> for TaskFailure {
    fn from(error: E) -> Self {
        Self::from_chain(&error, error.source())
    }
}

/// A failure on its way through what knows only errors.
#[derive(Debug)]
struct FailureAsError(TaskFailure);

impl fmt::Display for FailureAsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.reason)
    }
}

impl StdError for FailureAsError {}

impl From<TaskFailure> for TaskHandlerError {
    fn from(failure: TaskFailure) -> Self {
        Box::new(FailureAsError(failure))
    }
}

impl TaskFailure {
    /// What a handler has answered with.
    pub(super) fn from_handler_error(error: TaskHandlerError) -> Self {
        match error.downcast::<FailureAsError>() {
            Ok(carried) => carried.0,
            Err(error) => Self::from_chain(&*error, source_or_inner(&*error)),
        }
    }

    /// The one that another error was made of, or else one that says what that error and its causes do.
    fn from_chain(error: &dyn StdError, cause: Option<ErrorCause<'_>>) -> Self {
        let carried = cause_chain(cause).find_map(|cause| cause.downcast_ref::<FailureAsError>());
        carried.map_or_else(|| Self::new(describe_chain(error, cause)), |carried| carried.0.clone())
    }
}

type ErrorCause<'a> = &'a (dyn StdError + 'static);

/// Most errors of a chain that are looked at: one may name itself as its source.
const MAX_CAUSES: usize = 32;

/// The nearest one, and what that was made of.
fn cause_chain(nearest: Option<ErrorCause<'_>>) -> impl Iterator<Item = ErrorCause<'_>> {
    successors(nearest, |cause| source_or_inner(*cause)).take(MAX_CAUSES)
}

/// What it was made of. (An I/O error says that its source is the source of what was put into it.)
fn source_or_inner(error: ErrorCause<'_>) -> Option<ErrorCause<'_>> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// What it says, and what its causes say that is not said yet: many repeat theirs at the end.
fn describe_chain(error: &dyn StdError, cause: Option<ErrorCause<'_>>) -> String {
    let mut text = error.to_string();
    for cause in cause_chain(cause) {
        if text.len() >= MAX_REASON_BYTES {
            break;
        }
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// A history has a line for each attempt.
fn single_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_REASON_BYTES));
    for one in text.chars() {
        if out.len() + one.len_utf8() > MAX_REASON_BYTES {
            break;
        }
        out.push(if one.is_control() { ' ' } else { one });
    }
    out
}
