//! Parser of script replies. A reply of an unexpected shape is a protocol error, never a panic.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use crate::error::{Error, ErrorKind};

/// Parts of a script's reply, read one after the other.
pub(super) struct ReplyReader {
    script: &'static str,
    parts: std::vec::IntoIter<Value>,
}

impl ReplyReader {
    /// Reads a list; any other reply is a list of one, and nil an empty one.
    pub(super) fn new(script: &'static str, reply: Value) -> Self {
        let parts = match reply {
            Value::Array(parts) => parts,
            Value::Nil => Vec::new(),
            value => vec![value],
        };
        Self { script, parts: parts.into_iter() }
    }

    pub(super) fn read_bytes(&mut self) -> Result<Bytes, Error> {
        match self.parts.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes.into()),
            _ => Err(self.protocol_error()),
        }
    }

    pub(super) fn read_text(&mut self) -> Result<String, Error> {
        match self.parts.next() {
            Some(Value::BulkString(bytes)) => {
                String::from_utf8(bytes).map_err(|_| self.protocol_error())
            }
            Some(Value::SimpleString(text)) => Ok(text),
            Some(Value::Okay) => Ok("ok".to_owned()),
            Some(Value::Int(n)) => Ok(n.to_string()),
            _ => Err(self.protocol_error()),
        }
    }

    /// Reads a text or nil.
    #[cfg_attr(
        not(any(feature = "console", feature = "metrics")),
        allow(dead_code, reason = "read by the console and by metrics only")
    )]
    pub(super) fn read_optional_text(&mut self) -> Result<Option<String>, Error> {
        match self.parts.as_slice().first() {
            Some(Value::Nil) => {
                self.parts.next();
                Ok(None)
            }
            _ => self.read_text().map(Some),
        }
    }

    pub(super) fn read_number(&mut self) -> Result<u64, Error> {
        let number = match self.parts.next() {
            Some(Value::Int(n)) => u64::try_from(n).ok(),
            Some(Value::BulkString(bytes)) => {
                std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok())
            }
            _ => None,
        };
        number.ok_or_else(|| self.protocol_error())
    }

    pub(super) fn read_millis(&mut self) -> Result<Duration, Error> {
        self.read_number().map(Duration::from_millis)
    }

    /// Reads a nested list.
    pub(super) fn read_list(&mut self) -> Result<Self, Error> {
        match self.parts.next() {
            Some(reply) => Ok(Self::new(self.script, reply)),
            None => Err(self.protocol_error()),
        }
    }

    /// Returns the error of one command of a batch, if this is its reply.
    pub(super) fn item_error(&self) -> Option<Error> {
        let [Value::BulkString(tag), Value::BulkString(text), ..] = self.parts.as_slice() else {
            return None;
        };
        if tag != b"error" {
            return None;
        }
        let error = String::from_utf8_lossy(text);
        crate::throttle::throttled!(
            error,
            %error, script = self.script, "the server rejected one call of a batch"
        );
        // Scripts report a lack of memory before their first write, so nothing was changed.
        let kind =
            if error.contains("OOM ") { ErrorKind::Unavailable } else { ErrorKind::Protocol };
        Some(Error::new(kind, self.script))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.as_slice().is_empty()
    }

    pub(super) fn protocol_error(&self) -> Error {
        Error::new(ErrorKind::Protocol, self.script)
    }
}
