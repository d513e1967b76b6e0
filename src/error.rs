//! Faults of the store. A busy lock, a spent quota and a full line are outcomes, not errors.

use std::{error::Error as StdError, fmt, sync::Arc};

type ErrorSource = Box<dyn StdError + Send + Sync>;

/// What went wrong between this process and the store.
///
/// Never shown to clients: the layers answer 503 or 500 without its text, and log it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`], by what the caller can do about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store can't be reached, or the breaker is open, or the deadline passed before the call was sent. The call has not
    /// run and will not: it can be made again. Where the server said why, that is the error's source.
    Unavailable,
    /// No answer within the deadline, or the connection broke. The call may have run.
    Timeout,
    /// The store answered, but not as the protocol has it (a foreign key, a script that failed). What a script had done until
    /// it failed stands: the call may have run.
    Protocol,
    /// The configuration is wrong: URL, password, number of shards. Trying again does not help.
    Config,
    /// A charge costs more than its quota ever lets in at once: nothing was charged, and no waiting helps.
    CostAboveQuota,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self { kind, operation, source: None }
    }

    pub(crate) fn with_source(mut self, source: impl Into<ErrorSource>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    pub(crate) fn config(sentence: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, "configuration").with_source(sentence.into())
    }

    /// What kind of fault it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// True if the call may have run although it failed.
    pub(crate) fn may_have_run(&self) -> bool {
        matches!(self.kind, ErrorKind::Timeout | ErrorKind::Protocol)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ErrorKind::Unavailable => "the store is not available",
            ErrorKind::Timeout => "no answer from the store in time; the call may have run",
            ErrorKind::Protocol => "the store gave an answer that is not lockgate's",
            ErrorKind::Config => "the store is not configured rightly",
            ErrorKind::CostAboveQuota => "the cost is more than the quota ever lets in at once",
        };
        write!(f, "{}: {what}", self.operation)?;
        match (&self.kind, &self.source) {
            (ErrorKind::Config | ErrorKind::Unavailable, Some(source)) => write!(f, ": {source}"),
            _ => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// A text that is no cursor of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseCursorError;

impl fmt::Display for ParseCursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no cursor of a listing")
    }
}

impl StdError for ParseCursorError {}
