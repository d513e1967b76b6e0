//! `LogName`: a name in a log record, hashed or as it is.

use std::fmt;

use super::{Key, LogHash};

/// Name in a log record: the first 12 hex digits of its SHA-256 hash, or the name itself if the
/// application has allowed that. It is formatted only if a subscriber writes the record.
#[derive(Clone, Copy)]
pub(crate) struct LogName<'a> {
    name: &'a str,
    is_shown: bool,
}

impl Key {
    /// Returns the name of the key for log records; see [`Store::log_names`](crate::Store).
    pub(crate) fn log_name(&self, is_shown: bool) -> LogName<'_> {
        LogName { name: &self.0, is_shown }
    }
}

impl fmt::Display for LogName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key is ASCII without control characters: its parts are escaped.
        if self.is_shown {
            f.write_str(&Key::from_store(self.name).operator_name())
        } else {
            fmt::Display::fmt(&LogHash(self.name), f)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hashed_unless_it_is_shown() {
        let key = Key::path_param("id", "alice");
        assert_eq!(key.log_name(true).to_string(), "p:id::alice");
        assert_eq!(key.log_name(false).to_string(), key.log_hash().to_string());
        assert_eq!(key.log_name(false).to_string().len(), 12);
    }
}
