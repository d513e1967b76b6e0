//! `TaskId`: the id of a task.

use std::{fmt, sync::Arc};

use crate::key::LogHash;

/// Length of the text of a [`TaskId`].
const ID_LEN: usize = 22;

/// Id of a task: 128 bits, of which 122 are random, as 22 characters of `A-Z a-z 0-9 - _`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

impl TaskId {
    #[expect(clippy::indexing_slicing, reason = "six bits are below 64")]
    pub(crate) fn new() -> Self {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bits = uuid::Uuid::new_v4().as_u128();
        let mut text = [b'A'; ID_LEN];
        for letter in &mut text {
            *letter = LETTERS[usize::try_from(bits & 63).unwrap_or(0)];
            bits >>= 6;
        }
        Self(String::from_utf8_lossy(&text).into())
    }

    /// Parses an id. Returns `None` if the text is not an id.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_id_char = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (text.len() == ID_LEN && text.bytes().all(is_id_char)).then(|| Self(text.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({})", LogHash(&self.0))
    }
}
