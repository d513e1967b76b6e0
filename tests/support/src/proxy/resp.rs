//! Parser of RESP values, as far as needed to find their ends.

/// The length of the first value in these bytes; `None` if it is not whole yet.
pub(super) fn value_length(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut wanted) = (0, 1_usize);
    while wanted > 0 {
        let (kind, text, after) = parse_line(bytes, at)?;
        at = after;
        wanted -= 1;
        // A length of -1 is nothing: no bytes, no values.
        let count = || std::str::from_utf8(text).ok()?.parse::<usize>().ok();
        match kind {
            b'$' | b'!' | b'=' => at += count().map_or(0, |length| length + 2),
            b'*' | b'~' | b'>' => wanted += count().unwrap_or(0),
            b'%' => wanted += 2 * count().unwrap_or(0),
            b'|' => wanted += 2 * count().unwrap_or(0) + 1,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// The words of a command: a list of strings.
pub(super) fn command_args(command: &[u8]) -> Vec<&[u8]> {
    let mut words = Vec::new();
    let Some((b'*', _, mut at)) = parse_line(command, 0) else { return words };
    while let Some((b'$', text, from)) = parse_line(command, at) {
        let length = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let Some(word) = length.and_then(|length: usize| command.get(from..from + length)) else {
            break;
        };
        words.push(word);
        at = from + word.len() + 2;
    }
    words
}

/// The kind of the value that begins there, the rest of its line, and where the next line begins.
fn parse_line(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((*rest.first()?, rest.get(1..end)?, at + end + 2))
}
