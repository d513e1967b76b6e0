//! Response headers of draft-ietf-httpapi-ratelimit-headers-10, and their predecessors.
//!
//! `RateLimit-Policy: "name";q=100;w=60` and `RateLimit: "name";r=99;t=60` are lists of strings
//! with parameters (RFC 9651), one member for each policy. `w` and `t` are whole seconds, rounded
//! up. The partition key is left out, since it would reveal the subject of the quota.

use std::borrow::Cow;

use super::policy_status::PolicyStatus;
use crate::{clock::ceil_secs, reply::HeaderSet};

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
    /// Appends the headers. `exposed` also adds the header that makes them readable for scripts of
    /// other origins.
    pub(super) fn append_to(
        self,
        exposed: bool,
        standings: &[PolicyStatus<'_>],
        fields: &mut HeaderSet,
    ) {
        fields.reserve(self.max_header_count() + usize::from(exposed));
        self.for_each_header(
            exposed,
            standings,
            format_policy_header,
            |name, value: Cow<'static, str>| {
                fields.push((name.into(), value));
            },
        );
    }

    /// Calls `add` for each header. `policies` returns the value of `RateLimit-Policy`, which is
    /// the same for all requests with the same quotas.
    pub(super) fn for_each_header<V: From<String> + From<&'static str>>(
        self,
        exposed: bool,
        standings: &[PolicyStatus<'_>],
        policies: impl FnOnce(&[PolicyStatus<'_>]) -> V,
        mut add: impl FnMut(&'static str, V),
    ) {
        if matches!(self, Self::Draft | Self::Both) && !standings.is_empty() {
            add("ratelimit-policy", policies(standings));
            add("ratelimit", format_quota_header(standings).into());
        }
        if matches!(self, Self::Legacy | Self::Both)
            && let Some(binding) = binding_policy(standings)
        {
            let mut field = |name: &'static str, n| add(name, format_number(n).into());
            field("x-ratelimit-limit", binding.limit);
            field("x-ratelimit-remaining", binding.remaining);
            field("x-ratelimit-reset", ceil_secs(binding.wait_time()));
        }
        if exposed {
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
pub(super) fn format_policy_header<V: From<String>>(standings: &[PolicyStatus<'_>]) -> V {
    format_structured_list(standings, [";q=", ";w="], |standing| {
        [standing.limit, ceil_secs(standing.window)]
    })
    .into()
}

fn format_quota_header(standings: &[PolicyStatus<'_>]) -> String {
    format_structured_list(standings, [";r=", ";t="], |standing| {
        [standing.remaining, ceil_secs(standing.wait_time())]
    })
}

fn format_structured_list(
    standings: &[PolicyStatus<'_>],
    names: [&str; 2],
    numbers: impl Fn(&PolicyStatus<'_>) -> [u64; 2],
) -> String {
    let mut out = String::new();
    for standing in standings {
        let mut buffers = [itoa::Buffer::new(), itoa::Buffer::new()];
        let [one, two] = &mut buffers;
        let [first, second] = numbers(standing).map(|n| n.min(MAX_STRUCTURED_INTEGER));
        let (first, second) = (one.format(first), two.format(second));
        let comma = if out.is_empty() { "" } else { ", " };
        let parts = [names[0], first, names[1], second];
        let room =
            comma.len() + standing.name.len() + 2 + parts.map(str::len).iter().sum::<usize>();
        // Exact, so that the text of a single policy becomes a header value without reallocation.
        out.reserve_exact(room);
        out.push_str(comma);
        push_structured_string(standing.name, &mut out);
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
            let (before, c) = match c {
                '"' | '\\' => (Some('\\'), c),
                ' '..='~' => (None, c),
                _ => (None, '-'),
            };
            before.into_iter().chain([c])
        }));
    }
    out.push('"');
}

pub(super) fn format_number(n: u64) -> String {
    itoa::Buffer::new().format(n).to_owned()
}

/// Returns the policy that a client must obey first.
fn binding_policy<'a>(standings: &'a [PolicyStatus<'a>]) -> Option<&'a PolicyStatus<'a>> {
    let refusing = standings.iter().filter(|standing| standing.violated);
    refusing.max_by_key(|standing| standing.retry_after).or_else(|| {
        standings
            .iter()
            .min_by_key(|standing| (standing.remaining, u64::MAX - ceil_secs(standing.reset_after)))
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
        exposed: bool,
        standings: &[PolicyStatus<'_>],
    ) -> Vec<String> {
        let mut fields = HeaderSet::new();
        kind.append_to(exposed, standings, &mut fields);
        fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn exposed_headers_match_the_sent_headers() {
        let one = [sample_policy_status("one", 1, 1, 1)];
        for kind in [RateHeaders::Draft, RateHeaders::Legacy, RateHeaders::Both, RateHeaders::Off] {
            let fields = format_headers(kind, true, &one);
            let (exposed, told) = fields.split_last().expect("one at least");
            let exposed = exposed.strip_prefix("access-control-expose-headers: ").expect("last");
            let mut exposed: Vec<_> = exposed.split(", ").map(str::to_ascii_lowercase).collect();
            assert_eq!(exposed.pop().as_deref(), Some("retry-after"));
            let told: Vec<_> = told.iter().filter_map(|field| field.split(':').next()).collect();
            assert_eq!(exposed, told);
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
        let told = format_headers(RateHeaders::Legacy, false, &refusing);
        assert_eq!(told[0], "x-ratelimit-limit: 6");
        assert_eq!(told[2], "x-ratelimit-reset: 2", "until it is let in, rounded up");
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
            let standings: Vec<_> = policies.iter().map(|(name, limit, remaining, reset, violated)| {
                let mut one = sample_policy_status(name, *limit, *remaining, u64::from(*reset));
                (one.violated, one.retry_after) = (*violated, one.reset_after * 2);
                one
            }).collect();
            let mut fields = HeaderSet::new();
            RateHeaders::Draft.append_to(false, &standings, &mut fields);
            for ((_, value), names) in fields.iter().zip([["q", "w"], ["r", "t"]]) {
                let list: sfv::List = Parser::new(&**value).parse().expect("a list");
                prop_assert_eq!(list.len(), standings.len());
                for (entry, standing) in list.iter().zip(&standings) {
                    let ListEntry::Item(item) = entry else { panic!("expected a string: {entry:?}") };
                    let BareItem::String(name) = &item.bare_item else { panic!("{item:?}") };
                    let plain = |c: char| if (' '..='~').contains(&c) { c } else { '-' };
                    let expected: String = standing.name.chars().map(plain).collect();
                    prop_assert_eq!(name.as_str(), expected);
                    let number = |name: &str| {
                        let value = item.params.get(name).and_then(BareItem::as_integer);
                        u64::try_from(i64::from(value.expect("an integer"))).expect("not negative")
                    };
                    let numbers = names.map(number);
                    let t = standing.reset_after.as_secs() * if standing.violated { 2 } else { 1 };
                    let expected = match names[0] {
                        "q" => [standing.limit, 60],
                        _ => [standing.remaining, t.max(1)],
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
