//! Parsers for headers of requests to the status resource. A malformed header counts as absent.

use std::time::Duration;

use crate::defer::prefer_header::PreferHeader;

/// Longest wait that `Prefer: wait=N` gets. It is shorter than the usual timeout of proxies. Since
/// a server waits for open responses, it is also shorter than the usual time for a graceful
/// shutdown.
const MAX_WAIT: Duration = Duration::from_secs(25);

/// Returns the UTF-8 members of a list header, in order.
fn list_members<'a>(values: &[&'a [u8]]) -> impl Iterator<Item = &'a str> {
    let texts: Vec<_> = values.iter().filter_map(|value| str::from_utf8(value).ok()).collect();
    texts.into_iter().flat_map(|value| value.split(',')).map(str::trim)
}

/// Parses the `wait` of `Prefer` headers, as a `DeferLayer` does.
pub(super) fn parse_wait(values: &[&[u8]]) -> Option<Duration> {
    PreferHeader::parse(values).wait.map(|wait| wait.min(MAX_WAIT))
}

/// Entity tags of `If-None-Match` without quotes; comparison is weak (RFC 9110 section 13.1.2). `*`
/// matches every existing document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct IfNoneMatch(Vec<String>);

impl IfNoneMatch {
    pub(super) fn matches(&self, tag: &str) -> bool {
        self.0.iter().any(|listed| listed == "*" || listed == tag)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(super) fn parse_if_none_match(values: &[&[u8]]) -> IfNoneMatch {
    let tag = |member: &str| match member.trim_start_matches("W/") {
        "*" => Some("*".to_owned()),
        quoted => Some(quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned()),
    };
    IfNoneMatch(list_members(values).filter_map(tag).collect())
}

/// Parses the id of the last event that a client received before its stream ended.
pub(super) fn parse_last_event_id(values: &[&[u8]]) -> Option<String> {
    list_members(values).next().filter(|id| !id.is_empty()).map(str::to_owned)
}

/// Returns true if `Accept` names event streams with at least the weight of JSON. A wildcard does
/// not count.
pub(super) fn accepts_event_stream(values: &[&[u8]]) -> bool {
    let quality = |media_type: &str| {
        let mut ranges = list_members(values);
        let parameters = ranges.find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            parts.next()?.eq_ignore_ascii_case(media_type).then_some(parts)
        });
        parameters.map(|mut parameters| {
            let q = parameters.find_map(|parameter| {
                parameter.strip_prefix("q=").or(parameter.strip_prefix("Q="))
            });
            q.map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0))
        })
    };
    let events = quality("text/event-stream").unwrap_or(0.0);
    events > 0.0 && events >= quality("application/json").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_wait_never_exceeds_max_wait() {
        bolero::check!().with_iterations(1_000).with_type::<(u64, Vec<Vec<u8>>)>().for_each(
            |(seconds, lines)| {
                let header = format!("wait={seconds}");
                let parsed = parse_wait(&[header.as_bytes()]).expect("it is a number");
                assert_eq!(parsed, Duration::from_secs((*seconds).min(MAX_WAIT.as_secs())));
                let lines: Vec<_> = lines.iter().map(|line| &line[..]).collect();
                assert!(parse_wait(&lines).is_none_or(|wait| wait <= MAX_WAIT));
                let _ = (
                    parse_if_none_match(&lines),
                    parse_last_event_id(&lines),
                    accepts_event_stream(&lines),
                );
            },
        );
    }

    #[test]
    fn first_wait_counts_and_is_bounded() {
        let seconds = |text: &str| parse_wait(&[text.as_bytes()]).map(|wait| wait.as_secs());
        assert_eq!(seconds("wait=5"), Some(5));
        assert_eq!(seconds("respond-async, Wait=\"7\"; x=1, wait=9"), Some(7));
        assert_eq!(seconds("wait=1000000"), Some(25));
        for none in ["", "respond-async", "wait", "wait=x", "wait=-1", "waits=3"] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }

    #[test]
    fn entity_tags_are_compared_weakly() {
        let known = parse_if_none_match(&[b"\"a\", W/\"b\"", b"\"c\""]);
        assert!(["a", "b", "c"].iter().all(|tag| known.matches(tag)), "{known:?}");
        assert!(!known.matches("d"));
        assert!(parse_if_none_match(&[b"*"]).matches("d"));
        assert!(parse_if_none_match(&[b"a, \"b"]).is_empty());
    }

    #[test]
    fn event_stream_requires_an_explicit_accept() {
        let wants = |text: &str| accepts_event_stream(&[text.as_bytes()]);
        assert!(wants("text/event-stream"));
        assert!(wants("application/json;q=0.5, Text/Event-Stream"));
        assert!(wants("text/event-stream;q=0.5, */*;q=0.1"));
        for not in [
            "",
            "*/*",
            "text/*",
            "text/event-stream;q=0",
            "application/json, text/event-stream;q=0.9",
        ] {
            assert!(!wants(not), "{not}");
        }
    }
}
