//! `TaskId`: the id of a task.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Serialize, Serializer};

use crate::error::ParseIdError;

/// Length of the text of a [`TaskId`].
const ID_LEN: usize = 22;

/// Id of a task: 128 bits, of which 122 are random, as 22 characters of `A-Z a-z 0-9 - _`. A new id
/// begins with a letter, so that no command takes it for an option.
///
/// ```
/// use lockgate::queue::TaskId;
///
/// let id: TaskId = "Q7dJ2xK0pLmN4vB8cZ1aSw".parse()?;
/// assert_eq!(id.to_string(), "Q7dJ2xK0pLmN4vB8cZ1aSw");
/// assert_eq!(format!("{id:?}"), "TaskId(Q7dJ2xK0pL…)"); // as in logs
/// assert!("Q7dJ2xK0pL".parse::<TaskId>().is_err());
/// # Ok::<(), lockgate::ParseIdError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl TaskId {
    #[expect(clippy::indexing_slicing, reason = "six bits are below 64")]
    pub(crate) fn new() -> Self {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bits = uuid::Uuid::new_v4().as_u128();
        let mut text = [b'A'; ID_LEN];
        // The first letter has the two highest bits, so it is one of `A` to `D`.
        for letter in text.iter_mut().rev() {
            *letter = LETTERS[usize::try_from(bits & 63).unwrap_or(0)];
            bits >>= 6;
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    /// Parses an id. Returns `None` if the text is not an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_id_char = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (text.len() == ID_LEN && text.bytes().all(is_id_char)).then(|| Self(text.into()))
    }

    /// Returns the whole id as text, as its `Display` form, for responses and for your own records.
    /// Read it again with `parse`. Logs have its first ten characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first ten characters, which log records contain. That is enough to find a task.
    #[must_use]
    pub fn log_prefix(&self) -> &str {
        self.0.get(..10).unwrap_or(&self.0)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TaskId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let expected = "a task: 22 characters of A-Z a-z 0-9 - _";
        Self::parse(text).ok_or_else(|| ParseIdError::new(expected, text))
    }
}

/// Shows the first ten characters, as logs do.
impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({}…)", self.log_prefix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_id_is_not_taken_for_an_option() {
        let ids: Vec<_> = std::iter::repeat_with(TaskId::new).take(1_000).collect();
        let starts_with_letter = |id: &TaskId| id.as_str().starts_with(char::is_alphabetic);
        assert!(ids.iter().all(starts_with_letter), "{ids:?}");
    }

    #[test]
    fn id_round_trips_through_its_text_and_other_texts_are_errors() {
        let id = TaskId::new();
        assert_eq!(id.to_string().parse::<TaskId>().as_ref(), Ok(&id));
        assert_eq!(format!("{id:?}"), format!("TaskId({}…)", &id.as_str()[..10]));
        let (short, spaced, long) = (&id.as_str()[1..], format!("{id} "), "x".repeat(100_000));
        for text in ["", short, &spaced, &long, "../../../../etc/passwd"] {
            let message = text.parse::<TaskId>().expect_err(text).to_string();
            assert!(message.contains("not the id of a task: 22 characters"), "{message}");
            assert!(message.len() < 120 && !message.contains(id.as_str()), "{message}");
        }
    }
}
