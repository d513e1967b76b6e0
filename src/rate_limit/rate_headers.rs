//! Response headers of draft-ietf-httpapi-ratelimit-headers-10, and their predecessors.
//!
//! `RateLimit-Policy: "name";q=100;w=60` and `RateLimit: "name";r=99;t=60` are lists of strings
//! with parameters (RFC 9651), one member for each policy. `w` and `t` are whole seconds, rounded
//! up. The partition key is left out, since it would reveal the subject of the quota.

use std::borrow::Cow;

use super::policy_status::PolicyStatus;
use crate::{durations::ceil_secs, reply::HeaderSet};

/// Headers that report quotas to clients.
///
/// `Retry-After` is independent of this setting: every refusal that ends by waiting has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RateHeaders {
    /// `RateLimit-Policy` and `RateLimit` of the IETF draft, with every policy of the layer. The
    /// default.
    #[default]
    Draft,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`; the last one in
    /// seconds from now, not as a date. They describe one policy: the longest refusal, or else the
    /// least remaining. Nested layers each add their own headers, so only one of them should have
    /// this setting.
    Legacy,
    /// The headers of the draft and the older ones.
    Both,
    /// No headers.
    Off,
}

/// Maximum integer of a structured field (RFC 9651 section 3.3.1).
const MAX_STRUCTURED_INTEGER: u64 = 999_999_999_999_999;

impl RateHeaders {
    /// Appends the headers. `expose_headers` also adds the header that makes them readable for
    /// scripts of other origins.
    pub(super) fn append_to(
        self,
        expose_headers: bool,
        statuses: &[PolicyStatus<'_>],
        headers: &mut HeaderSet,
    ) {
        headers.reserve(self.max_header_count() + usize::from(expose_headers));
        self.for_each_header(
            expose_headers,
            statuses,
            format_policy_header,
            |name, value: Cow<'static, str>| {
                headers.push((name.into(), value));
            },
        );
    }

    /// Calls `add` for each header. `policy_header` returns the value of `RateLimit-Policy`, which
    /// is the same for all requests with the same quotas.
    pub(super) fn for_each_header<V: From<String> + From<&'static str>>(
        self,
        expose_headers: bool,
        statuses: &[PolicyStatus<'_>],
        policy_header: impl FnOnce(&[PolicyStatus<'_>]) -> V,
        mut add: impl FnMut(&'static str, V),
    ) {
        if matches!(self, Self::Draft | Self::Both) && !statuses.is_empty() {
            add("ratelimit-policy", policy_header(statuses));
            add("ratelimit", format_quota_header(statuses).into());
        }
        if matches!(self, Self::Legacy | Self::Both)
            && let Some(binding) = binding_policy(statuses)
        {
            let mut add_header = |name: &'static str, n| add(name, format_number(n).into());
            add_header("x-ratelimit-limit", binding.limit);
            add_header("x-ratelimit-remaining", binding.remaining);
            add_header("x-ratelimit-reset", ceil_secs(binding.wait_time()));
        }
        if expose_headers {
            add("access-control-expose-headers", self.exposed_header_names().into());
        }
    }

    fn max_header_count(self) -> usize {
        match self {
            Self::Draft => 2,
            Self::Legacy => 3,
            Self::Both => 5,
            Self::Off => 0,
        }
    }

    fn exposed_header_names(self) -> &'static str {
        match self {
            Self::Draft => "RateLimit-Policy, RateLimit, Retry-After",
            Self::Legacy => {
                "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After"
            }
            Self::Both => {
                "RateLimit-Policy, RateLimit, X-RateLimit-Limit, X-RateLimit-Remaining, \
                 X-RateLimit-Reset, Retry-After"
            }
            Self::Off => "Retry-After",
        }
    }
}

/// Formats the value of `RateLimit-Policy`.
pub(super) fn format_policy_header<V: From<String>>(statuses: &[PolicyStatus<'_>]) -> V {
    format_structured_list(statuses, [";q=", ";w="], |status| {
        [status.limit, ceil_secs(status.window)]
    })
    .into()
}

fn format_quota_header(statuses: &[PolicyStatus<'_>]) -> String {
    format_structured_list(statuses, [";r=", ";t="], |status| {
        [status.remaining, ceil_secs(status.wait_time())]
    })
}

fn format_structured_list(
    statuses: &[PolicyStatus<'_>],
    param_names: [&str; 2],
    numbers: impl Fn(&PolicyStatus<'_>) -> [u64; 2],
) -> String {
    let mut out = String::new();
    for status in statuses {
        let mut buffers = [itoa::Buffer::new(), itoa::Buffer::new()];
        let [first_buffer, second_buffer] = &mut buffers;
        let [first_number, second_number] = numbers(status).map(|n| n.min(MAX_STRUCTURED_INTEGER));
        let (first_number, second_number) =
            (first_buffer.format(first_number), second_buffer.format(second_number));
        let comma = if out.is_empty() { "" } else { ", " };
        let parts = [param_names[0], first_number, param_names[1], second_number];
        let length =
            comma.len() + status.name.len() + 2 + parts.map(str::len).iter().sum::<usize>();
        // Exact, so that the text of a single policy becomes a header value without reallocation.
        out.reserve_exact(length);
        out.push_str(comma);
        push_structured_string(status.name, &mut out);
        parts.iter().for_each(|part| out.push_str(part));
    }
    out
}

/// Appends a name as a quoted string, valid in structured fields and in JSON. `"` and `\` are
/// escaped, and characters that such a string can't hold become `-`.
pub(super) fn push_structured_string(name: &str, out: &mut String) {
    out.push('"');
    if name.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'"' && b != b'\\') {
        out.push_str(name);
    } else {
        out.extend(name.chars().flat_map(|c| {
            let (escape, c) = match c {
                '"' | '\\' => (Some('\\'), c),
                ' '..='~' => (None, c),
                _ => (None, '-'),
            };
            escape.into_iter().chain([c])
        }));
    }
    out.push('"');
}

pub(super) fn format_number(n: u64) -> String {
    itoa::Buffer::new().format(n).to_owned()
}

/// Returns the policy that a client must obey first.
fn binding_policy<'a>(statuses: &'a [PolicyStatus<'a>]) -> Option<&'a PolicyStatus<'a>> {
    let refusing_statuses = statuses.iter().filter(|status| status.violated);
    refusing_statuses.max_by_key(|status| status.retry_after).or_else(|| {
        statuses
            .iter()
            .min_by_key(|status| (status.remaining, u64::MAX - ceil_secs(status.reset_after)))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use sfv::{BareItem, ListEntry, Parser};

    use super::*;

    fn sample_policy_status(
        name: &str,
        limit: u64,
        remaining: u64,
        reset: u64,
    ) -> PolicyStatus<'_> {
        let (window, reset) = (Duration::from_secs(60), Duration::from_secs(reset));
        let retry = Duration::ZERO;
        PolicyStatus {
            name,
            limit,
            window,
            remaining,
            reset_after: reset,
            retry_after: retry,
            violated: false,
        }
    }

    fn format_headers(
        kind: RateHeaders,
        expose_headers: bool,
        statuses: &[PolicyStatus<'_>],
    ) -> Vec<String> {
        let mut headers = HeaderSet::new();
        kind.append_to(expose_headers, statuses, &mut headers);
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn exposed_headers_match_the_sent_headers() {
        let status = [sample_policy_status("one", 1, 1, 1)];
        for kind in [RateHeaders::Draft, RateHeaders::Legacy, RateHeaders::Both, RateHeaders::Off] {
            let headers = format_headers(kind, true, &status);
            let (expose_header, headers) = headers.split_last().expect("one at least");
            let expose_header =
                expose_header.strip_prefix("access-control-expose-headers: ").expect("last");
            let mut expose_header: Vec<_> =
                expose_header.split(", ").map(str::to_ascii_lowercase).collect();
            assert_eq!(expose_header.pop().as_deref(), Some("retry-after"));
            let headers: Vec<_> =
                headers.iter().filter_map(|field| field.split(':').next()).collect();
            assert_eq!(expose_header, headers);
        }
    }

    #[test]
    fn legacy_headers_describe_the_binding_policy() {
        let mut refusing = [
            sample_policy_status("a", 5, 0, 60),
            sample_policy_status("b", 6, 3, 1),
            sample_policy_status("c", 7, 2, 1),
        ];
        (refusing[1].violated, refusing[1].retry_after) = (true, Duration::from_millis(1_001));
        (refusing[2].violated, refusing[2].retry_after) = (true, Duration::from_millis(999));
        let headers = format_headers(RateHeaders::Legacy, false, &refusing);
        assert_eq!(headers[0], "x-ratelimit-limit: 6");
        assert_eq!(headers[2], "x-ratelimit-reset: 2", "until it is let in, rounded up");
        let even = [sample_policy_status("a", 5, 1, 10), sample_policy_status("b", 6, 1, 20)];
        assert_eq!(format_headers(RateHeaders::Legacy, false, &even)[0], "x-ratelimit-limit: 6");
    }

    proptest! {
        /// Checked by an independent parser of structured fields.
        #[test]
        fn rate_headers_are_valid_structured_fields(
            policies in prop::collection::vec(
                ("(?s).{0,12}", any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>()), 1..5),
        ) {
            let statuses: Vec<_> = policies.iter().map(|(name, limit, remaining, reset, violated)| {
                let mut status = sample_policy_status(name, *limit, *remaining, u64::from(*reset));
                (status.violated, status.retry_after) = (*violated, status.reset_after * 2);
                status
            }).collect();
            let mut headers = HeaderSet::new();
            RateHeaders::Draft.append_to(false, &statuses, &mut headers);
            for ((_, value), names) in headers.iter().zip([["q", "w"], ["r", "t"]]) {
                let list: sfv::List = Parser::new(&**value).parse().expect("a list");
                prop_assert_eq!(list.len(), statuses.len());
                for (entry, status) in list.iter().zip(&statuses) {
                    let ListEntry::Item(item) = entry else { panic!("expected a string: {entry:?}") };
                    let BareItem::String(name) = &item.bare_item else { panic!("{item:?}") };
                    let plain = |c: char| if (' '..='~').contains(&c) { c } else { '-' };
                    let expected: String = status.name.chars().map(plain).collect();
                    prop_assert_eq!(name.as_str(), expected);
                    let number = |name: &str| {
                        let value = item.params.get(name).and_then(BareItem::as_integer);
                        u64::try_from(i64::from(value.expect("an integer"))).expect("not negative")
                    };
                    let numbers = names.map(number);
                    let t = status.reset_after.as_secs() * if status.violated { 2 } else { 1 };
                    let expected = match names[0] {
                        "q" => [status.limit, 60],
                        _ => [status.remaining, t.max(1)],
                    };
                    prop_assert_eq!(numbers, expected.map(|n| n.min(MAX_STRUCTURED_INTEGER)));
                    prop_assert_eq!(item.params.len(), 2);
                }
            }
        }

        #[test]
        fn quoted_name_is_a_valid_json_string(name in ".{0,20}") {
            let mut out = String::new();
            push_structured_string(&name, &mut out);
            prop_assert!(serde_json::from_str::<String>(&out).is_ok(), "{}", out);
        }
    }
}
