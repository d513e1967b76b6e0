//! Control characters, which could move the cursor of a terminal or change its settings.

/// Replaces control characters except line breaks and tabs.
pub(crate) fn replace_controls(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{fffd}")
}

/// Replaces all control characters: a line break in a field could forge another field.
pub(crate) fn to_single_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Escapes the control characters that `serde_json` leaves as they are: those above ASCII, and DEL.
/// They stand in strings only, so the document stays the same.
pub(crate) fn escape_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() {
            escaped += &format!("\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn controls_are_replaced_in_text_and_escaped_in_json() {
        let text = "a\u{1b}[2J\tb\nc\u{9b}\u{7f}\r";
        let replaced = "a\u{fffd}[2J\tb\nc\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(replace_controls(text), replaced);
        assert!(!to_single_line(text).contains(char::is_control));
        let json = escape_controls(&Value::from(text).to_string());
        assert!(!json.contains(char::is_control), "{json}");
        assert_eq!(serde_json::from_str::<Value>(&json).ok(), Some(text.into()));
    }
}
