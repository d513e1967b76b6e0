//! Id and state of a deferred request.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Serialize, Serializer};

use crate::{
    error::ParseIdError,
    key::{Key, SHARD_COUNT},
};

/// Id of a deferred request: its shard and 128 random bits, as 34 hex digits. It gives access to
/// the status of the request, so logs contain only its first ten digits.
///
/// Parse an id that an operator has typed, or that a client has got in a `Location`:
///
/// ```
/// use lockgate::JobId;
///
/// let id: JobId = "3366a0c1d2e3f4a5b6c7d8e9fa0b1c2d3e".parse()?;
/// assert_eq!(id.to_string(), "3366a0c1d2e3f4a5b6c7d8e9fa0b1c2d3e");
/// assert_eq!(format!("{id:?}"), "JobId(3366a0c1d2…)"); // as in logs
/// assert!("3366a0c1d2".parse::<JobId>().is_err());
/// # Ok::<(), lockgate::ParseIdError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(Arc<str>);

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl JobId {
    pub(crate) fn new(key: &Key) -> Self {
        let bits = u128::from_be_bytes(random_bytes());
        Self(format!("{:02x}{bits:032x}", key.shard()).into())
    }

    /// Parses an id. Returns `None` if the text is not an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let id = (text.len() == 34 && is_hex).then(|| Self(text.into()))?;
        (id.shard() < SHARD_COUNT).then_some(id)
    }

    /// Returns the id as text, as in the `Location` header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first ten digits, which log records contain. The other 24 stay secret: they are
    /// 96 random bits, which cannot be guessed.
    ///
    /// ```
    /// let id: lockgate::JobId = "3366a0c1d2e3f4a5b6c7d8e9fa0b1c2d3e".parse()?;
    /// assert_eq!(id.log_prefix(), "3366a0c1d2");
    /// # Ok::<(), lockgate::ParseIdError>(())
    /// ```
    #[must_use]
    pub fn log_prefix(&self) -> &str {
        self.0.get(..10).unwrap_or(&self.0)
    }

    pub(crate) fn shard(&self) -> u16 {
        let shard = self.0.get(..2).and_then(|digits| u16::from_str_radix(digits, 16).ok());
        shard.unwrap_or(u16::MAX)
    }
}

/// Returns 16 bytes from the thread's generator, which is seeded by the system. A version 4 UUID
/// has six fixed bits for version and variant; the two bytes with these bits are replaced from a
/// second UUID.
fn random_bytes() -> [u8; 16] {
    let mut bytes = uuid::Uuid::new_v4().into_bytes();
    let replacement = uuid::Uuid::new_v4().into_bytes();
    (bytes[6], bytes[8]) = (replacement[0], replacement[1]);
    bytes
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        Self::parse(text)
            .ok_or_else(|| ParseIdError::new("a job: 34 hex digits in lower case", text))
    }
}

/// Shows the first ten digits, as logs do: the whole id gives access to the request.
impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({}…)", self.log_prefix())
    }
}

/// State of an accepted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum JobState {
    /// The request waits to be run.
    Queued,
    /// A worker runs the request.
    Running,
    /// The request has run, and its response is stored.
    Done,
    /// The request was given up. The status document has the reason.
    Dead,
    /// The request was cancelled: before it ran, or by an operator while it ran.
    Cancelled,
    /// The request's deadline passed before it ran.
    Expired,
}

impl JobState {
    /// Returns the name used in the status document and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Queued, Self::Running, Self::Done, Self::Dead, Self::Cancelled, Self::Expired]
            .into_iter()
            .find(|state| state.as_str() == text)
    }

    /// Returns true if the request is queued or running.
    #[must_use]
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Queued | Self::Running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_form_shows_the_first_digits_and_is_no_id() {
        let id = JobId::new(&Key::custom("x"));
        let text = format!("{id:?}");
        assert_eq!(text, format!("JobId({}…)", &id.as_str()[..10]));
        assert!(text.parse::<JobId>().is_err() && id.log_prefix().parse::<JobId>().is_err());
    }

    #[test]
    fn text_that_is_no_id_is_an_error_that_repeats_little_of_it() {
        let id = JobId::new(&Key::custom("x")).to_string();
        let long = "é\u{1}".repeat(10_000);
        let (spaced, upper, other_type) =
            (format!(" {id}"), "A".repeat(34), format!("40{}", &id[2..]));
        for text in ["", "7", &id[1..], &spaced, &upper, &other_type, &long, "../deferred"] {
            let message = text.parse::<JobId>().expect_err(text).to_string();
            assert!(message.contains("not the id of a job: 34 hex digits"), "{message}");
            assert!(message.contains(&format!("({} bytes)", text.len())), "{message}");
            assert!(message.len() < 120 && !message.contains(&id), "{message}");
            assert!(!message.contains('\u{1}'), "{message:?}");
        }
    }

    /// None of the 128 is the same in all ids, as six are in UUIDs.
    #[test]
    fn every_bit_of_an_id_is_random() {
        let key = Key::custom("x");
        let (mut all, mut any) = (u128::MAX, 0);
        for _ in 0..200 {
            let id = JobId::new(&key);
            assert_eq!(id.to_string().parse::<JobId>().as_ref(), Ok(&id));
            assert_eq!((id.as_str().len(), id.shard()), (34, key.shard()));
            let bits = u128::from_str_radix(&id.as_str()[2..], 16).expect("hex");
            (all, any) = (all & bits, any | bits);
        }
        assert_eq!((all, any), (0, u128::MAX));
    }
}
