//! What a handler says when a task did not work out.

use std::{error::Error as StdError, fmt, io, iter::successors, time::Duration};

use crate::{clock::LONGEST, store::MAX_REASON_BYTES};

/// What the errors of handlers convert into: every error that may go to another thread, `String`, `anyhow::Error`, what
/// a tower middleware answers with, and [`Failure`].
pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a task failed, and what is to become of it. Every error converts into one, so `?` works in a handler
/// that answers with `Result<(), Failure>`; its reason is what that says, and what the errors say that it has as its
/// [`source`](StdError::source). It converts into a boxed error itself, which may pass through whatever stands around a
/// handler: what is to become of the task is found in it again, also where it is the source of another error, and, but for `?`,
/// within an [`io::Error`].
///
/// It is no error itself, as `anyhow::Error` is none: else the conversion could not be for all errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(super) reason: String,
    pub(super) then: Then,
}

/// What is to become of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Tried again as the worker's settings say.
    Retry,
    RetryAfter(Duration),
    /// Left to other workers, and not charged as an attempt.
    Back(Duration),
    Dead,
}

impl Failure {
    /// Tried again after a pause, as long as the task has attempts. The reason is kept in the task's history, at
    /// most 200 bytes of it, and shown in listings.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: one_line(&reason.to_string()), then: Then::Retry }
    }

    /// Not to be tried again: the task becomes a dead letter now.
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self { then: Then::Dead, ..Self::new(reason) }
    }

    /// Tried again after this time instead of the worker's own backoff; at most a year.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.then = Then::RetryAfter(delay.min(LONGEST));
        self
    }

    /// What it says.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl<E: StdError> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::found_in(&error, error.source())
    }
}

/// A failure on its way through what knows only errors.
#[derive(Debug)]
struct Carried(Failure);

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.reason)
    }
}

impl StdError for Carried {}

impl From<Failure> for BoxError {
    fn from(failure: Failure) -> Self {
        Box::new(Carried(failure))
    }
}

impl Failure {
    /// What a handler has answered with.
    pub(super) fn of(error: BoxError) -> Self {
        match error.downcast::<Carried>() {
            Ok(carried) => carried.0,
            Err(error) => Self::found_in(&*error, within(&*error)),
        }
    }

    /// The one that another error was made of, or else one that says what that error and its causes do.
    fn found_in(error: &dyn StdError, cause: Option<Cause<'_>>) -> Self {
        let carried = causes(cause).find_map(|cause| cause.downcast_ref::<Carried>());
        carried.map_or_else(|| Self::new(told(error, cause)), |carried| carried.0.clone())
    }
}

type Cause<'a> = &'a (dyn StdError + 'static);

/// Most errors of a chain that are looked at: one may name itself as its source.
const CAUSES: usize = 32;

/// The nearest one, and what that was made of.
fn causes(nearest: Option<Cause<'_>>) -> impl Iterator<Item = Cause<'_>> {
    successors(nearest, |cause| within(*cause)).take(CAUSES)
}

/// What it was made of. (An I/O error says that its source is the source of what was put into it.)
fn within(error: Cause<'_>) -> Option<Cause<'_>> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// What it says, and what its causes say that is not said yet: many repeat theirs at the end.
fn told(error: &dyn StdError, cause: Option<Cause<'_>>) -> String {
    let mut text = error.to_string();
    for cause in causes(cause) {
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
fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_REASON_BYTES));
    for one in text.chars() {
        if out.len() + one.len_utf8() > MAX_REASON_BYTES {
            break;
        }
        out.push(if one.is_control() { ' ' } else { one });
    }
    out
}
