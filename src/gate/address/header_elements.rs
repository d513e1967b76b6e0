//! Iterator over the elements of a list header, from right to left.
//!
//! Each proxy appends its element on the right. Splitting from the right makes the elements of
//! trusted proxies independent of the text left of them, such as a quote that a client left open.

/// Most elements that are read; no request passes that many proxies.
const MAX_ELEMENTS: usize = 32;

/// Most bytes that are read.
const MAX_BYTES: usize = 4096;

/// Elements of all lines of a header, the last one first, without empty ones (RFC 9110 section
/// 5.6.1).
#[derive(Debug)]
pub(super) struct HeaderElements<'a> {
    lines: Vec<&'a [u8]>,
    /// Unread rest of the current line.
    current_line: Option<&'a [u8]>,
    allow_quotes: bool,
    remaining_elements: usize,
    remaining_bytes: usize,
}

/// The header has more than `MAX_ELEMENTS` elements or `MAX_BYTES` bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ElementLimitExceeded;

impl<'a> HeaderElements<'a> {
    /// Creates the iterator. `allow_quotes` allows commas within quoted strings.
    pub(super) fn new(lines: Vec<&'a [u8]>, allow_quotes: bool) -> Self {
        Self {
            lines,
            current_line: None,
            allow_quotes,
            remaining_elements: MAX_ELEMENTS,
            remaining_bytes: MAX_BYTES,
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the indices are positions in one header value")]
    fn next_raw(&mut self) -> Option<Result<&'a [u8], ElementLimitExceeded>> {
        let line = self.current_line.take().or_else(|| self.lines.pop())?;
        let readable = &line[line.len().saturating_sub(self.remaining_bytes)..];
        let Some(remaining) = self.remaining_elements.checked_sub(1) else {
            return Some(Err(ElementLimitExceeded));
        };
        self.remaining_elements = remaining;
        let comma = last_comma(readable, self.allow_quotes);
        if comma.is_none() && readable.len() < line.len() {
            return Some(Err(ElementLimitExceeded));
        }
        let element = comma.map_or(readable, |comma| &readable[comma + 1..]);
        self.remaining_bytes -= element.len();
        self.current_line = comma.map(|_| &line[..line.len() - element.len() - 1]);
        Some(Ok(element))
    }
}

impl<'a> Iterator for HeaderElements<'a> {
    type Item = Result<&'a [u8], ElementLimitExceeded>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_raw()? {
                Ok(element) if element.trim_ascii().is_empty() => {}
                other => return Some(other),
            }
        }
    }
}

#[expect(clippy::indexing_slicing, reason = "the index is a position in the value")]
fn last_comma(line: &[u8], allow_quotes: bool) -> Option<usize> {
    let mut quoted = false;
    for (index, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if allow_quotes && !(quoted && is_escaped(&line[..index])) => quoted = !quoted,
            b',' if !quoted => return Some(index),
            _ => {}
        }
    }
    None
}

/// Returns true if the byte after `preceding` is escaped: an odd number of backslashes precedes it.
fn is_escaped(preceding: &[u8]) -> bool {
    preceding.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}
