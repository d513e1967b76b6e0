//! Errors of the store. A busy lock, a spent quota and a full queue are outcomes, not errors.

use std::{error::Error as StdError, fmt, sync::Arc};

/// Operation of an error that concerns a setting.
const SETTING: &str = "setting";

type ErrorSource = Box<dyn StdError + Send + Sync>;

/// Error between this process and the store, or of a setting that a `try_...` function refuses.
///
/// Clients never see it: the layers log it, and answer 503 or 500 without its text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Class of an [`Error`], by the reaction that it allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call has not run and never will; it can be repeated. The store can't be reached, the
    /// circuit breaker is open, or the deadline passed before the call was sent. The address and
    /// the cause of a failed connection, or the reason that the server gave, is the source of the
    /// error.
    Unavailable,
    /// No answer arrived within the deadline, or the connection broke. The call may have run.
    Timeout,
    /// The store's answer violates the protocol (a key of another program, a failed script). The
    /// call may have run: the effects of a script up to its failure remain.
    Protocol,
    /// The configuration is wrong: URL, password, number of shards, or a value of a setting. A
    /// retry does not help.
    Config,
    /// A charge costs more than its quota ever admits at once. Nothing was charged, and waiting
    /// does not help.
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

    /// Creates the error of a `try_...` function. Its text is the sentence alone.
    pub(crate) fn setting(sentence: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, SETTING).with_source(sentence.into())
    }

    /// Returns the class of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns true if the call may have run although it failed.
    pub(crate) fn may_have_run(&self) -> bool {
        matches!(self.kind, ErrorKind::Timeout | ErrorKind::Protocol)
    }
}

/// Returns the value of a `try_...` function.
///
/// # Panics
///
/// With the sentence of the error.
#[expect(clippy::panic, reason = "a misconfiguration is reported at startup")]
#[track_caller]
pub(crate) fn expect_setting<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (SETTING, Some(sentence)) = (self.operation, &self.source) {
            return write!(f, "{sentence}");
        }
        let reason = match self.kind {
            ErrorKind::Unavailable => "the store is unavailable",
            ErrorKind::Timeout => "no reply from the store in time; the call may have run",
            ErrorKind::Protocol => "the store sent a reply that is not lockgate's",
            ErrorKind::Config => "the store is misconfigured",
            ErrorKind::CostAboveQuota => "the cost exceeds the capacity of the quota",
        };
        write!(f, "{}: {reason}", self.operation)?;
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

/// The cursor of a listing could not be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseCursorError;

impl fmt::Display for ParseCursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cursor could not be parsed")
    }
}

impl StdError for ParseCursorError {}

/// A text is not the id of a job or of a task. Error of
/// [`JobId::from_str`](std::str::FromStr::from_str) and of the same function of `TaskId`.
///
/// It contains at most the first ten characters of the text: an id with a typing error would give
/// most of the id away to a log.
///
/// ```
/// use lockgate::JobId;
///
/// let error = "order 7, please".parse::<JobId>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "\"order 7, p…\" (15 bytes) is not the id of a job: 34 hex digits in lower case"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseIdError {
    /// Kind and form of the id.
    expected: &'static str,
    /// Start of the text, escaped.
    start: String,
    /// Length of the text in bytes.
    len: usize,
}

/// Number of characters of a text that a [`ParseIdError`] repeats.
const SHOWN_CHARS: usize = 10;

/// Most bytes of these characters, which may be escaped.
const MAX_SHOWN_BYTES: usize = 48;

impl ParseIdError {
    pub(crate) fn new(expected: &'static str, text: &str) -> Self {
        let mut start = String::new();
        for (index, character) in text.chars().enumerate() {
            let escaped: String = character.escape_debug().collect();
            if index == SHOWN_CHARS || start.len() + escaped.len() > MAX_SHOWN_BYTES {
                start.push('…');
                break;
            }
            start += &escaped;
        }
        Self { expected, start, len: text.len() }
    }
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, start, len } = self;
        write!(f, "\"{start}\" ({len} bytes) is not the id of {expected}")
    }
}

impl StdError for ParseIdError {}
