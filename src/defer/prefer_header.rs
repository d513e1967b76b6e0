//! `PreferHeader`: the preferences of a request in its `Prefer` header (RFC 7240).

use std::time::Duration;

/// Parsed `Prefer` header. Unknown and malformed preferences are ignored (section 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PreferHeader {
    /// Time that the client is willing to wait for the final response.
    pub(super) wait: Option<Duration>,
    /// Preference for a 202 over a late response.
    pub(super) respond_async: bool,
}

impl PreferHeader {
    /// Parses the values of the header. The first of a repeated preference counts (section 2).
    pub(super) fn parse(values: &[&[u8]]) -> Self {
        let mut preferences = Self::default();
        let texts = values.iter().filter_map(|value| std::str::from_utf8(value).ok());
        for preference in texts.flat_map(|value| split_outside_quotes(value, ',')) {
            let token = split_outside_quotes(preference, ';').next().unwrap_or_default();
            let (name, value) = token.split_once('=').unwrap_or((token, ""));
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("respond-async") {
                preferences.respond_async = true;
            } else if name.eq_ignore_ascii_case("wait") && preferences.wait.is_none() {
                preferences.wait = value.parse().ok().map(Duration::from_secs);
            }
        }
        preferences
    }
}

/// Splits at `separator` outside of quoted strings (RFC 9110 section 5.6.4).
fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c| {
        let is_unescaped = !std::mem::take(&mut escaped);
        escaped = quoted && is_unescaped && c == '\\';
        quoted ^= is_unescaped && c == '"';
        !quoted && c == separator
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_values(values: &[&str]) -> (Option<u64>, bool) {
        let values: Vec<_> = values.iter().map(|value| value.as_bytes()).collect();
        let PreferHeader { wait, respond_async } = PreferHeader::parse(&values);
        (wait.map(|wait| wait.as_secs()), respond_async)
    }

    #[test]
    fn wait_and_respond_async_are_found_in_any_position() {
        assert_eq!(parse_values(&["respond-async, wait=10"]), (Some(10), true));
        assert_eq!(
            parse_values(&["return=minimal", "Wait = \"7\"; x=1, wait=9"]),
            (Some(7), false)
        );
        assert_eq!(parse_values(&["handling=lenient; y", "Respond-Async;x"]), (None, true));
        assert_eq!(parse_values(&["wait=0"]), (Some(0), false));
    }

    #[test]
    fn quoted_text_is_not_parsed_as_a_preference() {
        assert_eq!(parse_values(&[r#"x="a, respond-async, wait=5", wait=7"#]), (Some(7), false));
        assert_eq!(parse_values(&[r#"x="a;\", wait=5"; wait=6, wait=7"#]), (Some(7), false));
        assert_eq!(parse_values(&[r#"x="; wait=5, respond-async"#]), (None, false));
    }

    /// Header values of any bytes: the first preference counts, whatever follows it.
    #[test]
    fn later_values_do_not_change_a_preference() {
        bolero::check!().with_iterations(1_000).with_type::<Vec<Vec<u8>>>().for_each(|lines| {
            let mut all: Vec<&[u8]> = vec![b"wait=5, respond-async"];
            all.extend(lines.iter().map(|line| &line[..]));
            let five = Some(Duration::from_secs(5));
            assert_eq!(PreferHeader::parse(&all), PreferHeader { wait: five, respond_async: true });
            let _ = PreferHeader::parse(&all[1..]);
        });
    }

    #[test]
    fn malformed_preferences_are_ignored() {
        for none in ["", "wait", "wait=x", "wait=-1", "waits=3", "respond-async2", "respond"] {
            assert_eq!(parse_values(&[none]), (None, false), "{none}");
        }
    }
}
