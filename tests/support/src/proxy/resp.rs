//! Parser of RESP values, as far as needed to find their ends.

/// Returns the length of the first value, or `None` if it is incomplete.
pub(super) fn value_length(bytes: &[u8]) -> Option<usize> {
    let (mut offset, mut pending_values) = (0, 1_usize);
    while pending_values > 0 {
        let (kind, text, next_offset) = parse_line(bytes, offset)?;
        offset = next_offset;
        pending_values -= 1;
        // A length of -1 is a null: no bytes, no elements.
        let count = || std::str::from_utf8(text).ok()?.parse::<usize>().ok();
        match kind {
            b'$' | b'!' | b'=' => offset += count().map_or(0, |length| length + 2),
            b'*' | b'~' | b'>' => pending_values += count().unwrap_or(0),
            b'%' => pending_values += 2 * count().unwrap_or(0),
            b'|' => pending_values += 2 * count().unwrap_or(0) + 1,
            _ => {}
        }
    }
    (offset <= bytes.len()).then_some(offset)
}

/// Returns the arguments of a command, which is an array of strings.
pub(super) fn command_args(command: &[u8]) -> Vec<&[u8]> {
    let mut arguments = Vec::new();
    let Some((b'*', _, mut offset)) = parse_line(command, 0) else { return arguments };
    while let Some((b'$', text, start)) = parse_line(command, offset) {
        let length = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let Some(argument) = length.and_then(|length: usize| command.get(start..start + length))
        else {
            break;
        };
        arguments.push(argument);
        offset = start + argument.len() + 2;
    }
    arguments
}

/// Returns the type byte of the value at `offset`, the rest of its line, and the start of the next
/// line.
fn parse_line(bytes: &[u8], offset: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(offset..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some((*rest.first()?, rest.get(1..end)?, offset + end + 2))
}
