//! `TraceContext`: a span's identity in the form of the W3C Trace Context.

/// Name of the header with trace id, span id and flags.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// Name of the header with the entries of tracing systems.
pub(crate) const TRACESTATE: &str = "tracestate";

/// Length of a `traceparent` of version 00, in bytes.
const TRACEPARENT_LEN: usize = 55;

/// Longest `tracestate` in bytes: the length that every system has to propagate (W3C Trace Context
/// section 3.3.1.5).
const MAX_TRACESTATE_LEN: usize = 512;

/// Identity of a span, as the headers `traceparent` and `tracestate` carry it (W3C Trace Context).
///
/// ```
/// use lockgate::TraceContext;
///
/// let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let context = TraceContext::new(traceparent, Some("vendor=1")).expect("it is valid");
/// assert_eq!(context.traceparent(), traceparent);
/// assert_eq!(context.tracestate(), Some("vendor=1"));
/// assert!(TraceContext::new("00-0-0-01", None).is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: Box<str>,
    tracestate: Option<Box<str>>,
}

impl TraceContext {
    /// Creates a context from the values of the two headers. Returns `None` if `traceparent` is not
    /// valid. A `tracestate` that is empty, longer than 512 bytes, or not printable ASCII is left
    /// out, as the standard permits: trace and span are known without it.
    #[must_use]
    pub fn new(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let tracestate = tracestate
            .map(|state| state.trim_matches([' ', '\t']))
            .filter(|state| is_tracestate(state));
        is_traceparent(traceparent).then(|| Self {
            traceparent: traceparent.into(),
            tracestate: tracestate.map(Into::into),
        })
    }

    /// Returns the value of the header `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Returns the value of the header `tracestate`, if there is one.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// Returns the trace id, which all spans of a trace share.
    pub(crate) fn trace_id(&self) -> &str {
        self.traceparent.get(3..35).unwrap_or_default()
    }

    /// Reads the context of a stored request. Several `tracestate` headers are one list.
    pub(crate) fn from_headers(headers: &[(String, Vec<u8>)]) -> Option<Self> {
        let values_of = |wanted: &'static str| {
            let named = headers.iter().filter(move |(name, _)| name == wanted);
            named.filter_map(|(_, value)| std::str::from_utf8(value).ok())
        };
        let states = Vec::from_iter(values_of(TRACESTATE)).join(",");
        Self::new(values_of(TRACEPARENT).next()?, Some(&states))
    }

    /// Replaces the context in the headers of a request.
    pub(crate) fn write_to(&self, headers: &mut Vec<(String, Vec<u8>)>) {
        headers.retain(|(name, _)| name != TRACEPARENT && name != TRACESTATE);
        let state = self.tracestate().map(|state| (TRACESTATE, state));
        let pairs = [(TRACEPARENT, self.traceparent())].into_iter().chain(state);
        headers.extend(pairs.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
    }

    /// Returns the context as one text without line breaks: `<traceparent>[ <tracestate>]`.
    pub(crate) fn to_text(&self) -> String {
        match self.tracestate() {
            Some(state) => format!("{} {state}", self.traceparent),
            None => self.traceparent.to_string(),
        }
    }

    /// Reads the text of [`to_text`](Self::to_text).
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            Some((traceparent, state)) => Self::new(traceparent, Some(state)),
            None => Self::new(text, None),
        }
    }
}

/// Checks the form `<version>-<trace id>-<span id>-<flags>`. A later version with more parts is
/// rejected: its parts would be stored without being understood.
fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut has_part = |len: usize, invalid: &str| {
        let is_hex = |part: &&str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let part = parts.next().filter(|part| part.len() == len).filter(is_hex);
        part.is_some_and(|part| part != invalid)
    };
    text.len() == TRACEPARENT_LEN
        && has_part(2, "ff")
        && has_part(32, "00000000000000000000000000000000")
        && has_part(16, "0000000000000000")
        && has_part(2, "")
}

fn is_tracestate(text: &str) -> bool {
    (1..=MAX_TRACESTATE_LEN).contains(&text.len())
        && text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACEPARENT_VALUE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn invalid_traceparent_is_rejected_and_invalid_tracestate_is_left_out() {
        for invalid in [
            "",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::new(invalid, None), None, "{invalid}");
        }
        for state in ["", "a=\n", "a=\u{e4}", &"x".repeat(513)] {
            let context = TraceContext::new(TRACEPARENT_VALUE, Some(state)).expect("it is valid");
            assert_eq!(context.tracestate(), None, "{state:?}");
        }
    }

    #[test]
    fn context_round_trips_through_text_and_replaces_that_of_a_client() {
        for state in [None, Some("a=1,b=two words")] {
            let context = TraceContext::new(TRACEPARENT_VALUE, state).expect("it is valid");
            assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
            assert_eq!(TraceContext::from_text(&context.to_text()).as_ref(), Some(&context));
            let mut headers = ["traceparent", "accept", "tracestate", "tracestate"]
                .map(|name| (name.to_owned(), b"old".to_vec()))
                .to_vec();
            context.write_to(&mut headers);
            assert_eq!(TraceContext::from_headers(&headers).as_ref(), Some(&context));
            assert_eq!(headers.len(), if state.is_some() { 3 } else { 2 });
        }
    }

    #[test]
    fn several_tracestate_headers_are_one_list() {
        let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let headers = [
            header(TRACESTATE, "a=1"),
            header(TRACEPARENT, TRACEPARENT_VALUE),
            header(TRACESTATE, "b=2"),
        ];
        let context = TraceContext::from_headers(&headers).expect("it is valid");
        assert_eq!(context.tracestate(), Some("a=1,b=2"));
    }
}
