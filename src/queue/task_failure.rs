//! `TaskFailure`: the error of a handler, and the task's future after it.

use std::{error::Error as StdError, fmt, io, iter::successors, time::Duration};

use crate::{durations::MAX_DURATION, store::MAX_REASON_BYTES};

/// Type that the errors of handlers convert into: every `Send + Sync` error, `String`,
/// `anyhow::Error`, boxed errors of tower middleware, and [`TaskFailure`].
pub(super) type TaskHandlerError = Box<dyn StdError + Send + Sync>;

/// Reason of a failed attempt, and the task's future after it: a retry, or a dead letter.
///
/// Every error converts into a `TaskFailure`, so `?` works in a handler that returns `Result<(),
/// TaskFailure>`. The reason is the error's text, followed by the texts of its
/// [sources](StdError::source).
///
/// A `TaskFailure` converts into a boxed error, which may pass through middleware around a handler.
/// It is found again there, also as the source of another error, and within an [`io::Error`] unless
/// that was converted by `?`.
///
/// It does not implement [`Error`](StdError) itself, like `anyhow::Error`: otherwise it could not
/// be converted from every error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    pub(super) reason: String,
    pub(super) action: FailureAction,
}

/// The task's future after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// Retry after the worker's backoff.
    Retry,
    RetryAfter(Duration),
    /// Leave the task to other workers, without charging an attempt.
    ReturnToQueue(Duration),
    DeadLetter,
}

impl TaskFailure {
    /// Creates a failure that is retried after the worker's backoff, if the task has attempts left.
    /// At most 200 bytes of the reason are kept in the task's history, and shown in listings.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: single_line(&reason.to_string()), action: FailureAction::Retry }
    }

    /// Creates a failure that is not retried: the task becomes a dead letter now.
    pub fn dead_letter(reason: impl fmt::Display) -> Self {
        Self { action: FailureAction::DeadLetter, ..Self::new(reason) }
    }

    /// Retries after this time instead of the worker's backoff; at most a year.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.action = FailureAction::RetryAfter(delay.min(MAX_DURATION));
        self
    }

    /// Returns the reason.
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

/// A failure on its way through code that passes boxed errors.
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
    /// Converts the error of a handler.
    pub(super) fn from_handler_error(error: TaskHandlerError) -> Self {
        match error.downcast::<FailureAsError>() {
            Ok(carried) => carried.0,
            Err(error) => Self::from_chain(&*error, source_or_inner(&*error)),
        }
    }

    /// Returns the failure among the causes of an error; otherwise a failure with the texts of the
    /// error and its causes.
    fn from_chain(error: &dyn StdError, cause: Option<ErrorCause<'_>>) -> Self {
        let carried = cause_chain(cause).find_map(|cause| cause.downcast_ref::<FailureAsError>());
        carried.map_or_else(|| Self::new(describe_chain(error, cause)), |carried| carried.0.clone())
    }
}

type ErrorCause<'a> = &'a (dyn StdError + 'static);

/// Most causes of an error that are read: an error may be its own source.
const MAX_CAUSES: usize = 32;

/// Iterates over the nearest cause and its causes.
fn cause_chain(nearest: Option<ErrorCause<'_>>) -> impl Iterator<Item = ErrorCause<'_>> {
    successors(nearest, |cause| source_or_inner(*cause)).take(MAX_CAUSES)
}

/// Returns the cause of an error. (The source of an I/O error is the source of the error inside it,
/// so the error inside is returned.)
fn source_or_inner(error: ErrorCause<'_>) -> Option<ErrorCause<'_>> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// Joins the texts of an error and its causes, except for a cause at the end of the text so far:
/// many errors repeat theirs.
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

/// Replaces control characters and cuts the text: a history has one line for each attempt.
fn single_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_REASON_BYTES));
    for character in text.chars() {
        if out.len() + character.len_utf8() > MAX_REASON_BYTES {
            break;
        }
        out.push(if character.is_control() { ' ' } else { character });
    }
    out
}
