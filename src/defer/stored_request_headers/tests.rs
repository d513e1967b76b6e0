//! Stored headers of requests.

use proptest::prelude::*;

use super::*;

fn headers(list: &[(&str, &str)]) -> HeaderPairs {
    list.iter().map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect()
}

/// Header names: never stored, internal, credential, and application headers.
fn header_name() -> impl Strategy<Value = String> {
    let known: [&[&str]; 3] = [
        UNSTORED_HEADERS,
        &["authorization", "cookie", "x-api-key", "lockgate-held", "lockgate-replay"],
        &["x-user-id", "x-role", "host", "content-type", "idempotency-key", "x-forwarded-for"],
    ];
    prop_oneof![proptest::sample::select(known.concat()).prop_map(str::to_owned), "[a-z-]{1,12}"]
}

/// Header lines of any name; a `Connection` line may nominate any header.
fn header_lines() -> impl Strategy<Value = HeaderPairs> {
    let value = proptest::collection::vec(any::<u8>(), 0..20);
    let line = (header_name(), value);
    let nominates = proptest::collection::vec(header_name(), 0..6)
        .prop_map(|names| ("connection".to_owned(), names.join(", ").into_bytes()));
    proptest::collection::vec(prop_oneof![3 => line, 1 => nominates], 0..20)
}

proptest! {
    /// Only a line's own name decides whether it is stored; the order is preserved.
    #[test]
    fn header_line_never_removes_another(sent in header_lines(), exempt in proptest::option::of(header_name())) {
        let filter = StoredHeaderFilter { keep_headers: exempt.into_iter().collect(), ..StoredHeaderFilter::default() };
        let alone = sent.iter().flat_map(|line| stored_request_headers(&vec![line.clone()], &filter));
        prop_assert_eq!(stored_request_headers(&sent, &filter), alone.collect::<HeaderPairs>());
        let is_excluded = |name: &str| {
            !filter.is_exempt(name) && (UNSTORED_HEADERS.contains(&name) || matching_credential(name).is_some())
        };
        let is_stored = |name: &str| !name.starts_with(INTERNAL_HEADER_PREFIX) && !is_excluded(name);
        let expected = sent.iter().filter(|(name, _)| is_stored(name)).cloned();
        prop_assert_eq!(stored_request_headers(&sent, &filter), expected.collect::<HeaderPairs>());
    }
}

/// The reader of the stored response may support other codings than the request's sender.
#[test]
fn accept_encoding_is_not_stored_by_default() {
    let sent = headers(&[("accept", "a"), ("accept-encoding", "gzip")]);
    assert_eq!(
        stored_request_headers(&sent, &StoredHeaderFilter::default()),
        headers(&[("accept", "a")])
    );
    let filter = StoredHeaderFilter {
        keep_headers: vec!["accept-encoding".to_owned()],
        ..StoredHeaderFilter::default()
    };
    assert_eq!(stored_request_headers(&sent, &filter), sent);
}

#[test]
fn credential_is_withheld_unless_kept() {
    let sent = headers(&[("authorization", "Bearer x"), ("connection", "authorization")]);
    assert_eq!(stored_request_headers(&sent, &StoredHeaderFilter::default()), []);
    let filter_with = |name: &str| StoredHeaderFilter {
        keep_headers: vec![name.to_owned()],
        ..StoredHeaderFilter::default()
    };
    assert_eq!(filter_with("cookie").withheld_credential("authorization"), Some("authorization"));
    let filter = filter_with("authorization");
    assert_eq!(filter.withheld_credential("authorization"), None);
    assert_eq!(stored_request_headers(&sent, &filter), sent[..1]);
}

#[test]
fn custom_header_declared_a_credential_is_withheld() {
    let sent = headers(&[("x-pass", "k")]);
    assert_eq!(StoredHeaderFilter::default().withheld_credential("x-pass"), None);
    let mut filter = StoredHeaderFilter {
        credential_headers: vec!["x-pass".to_owned()],
        ..StoredHeaderFilter::default()
    };
    assert_eq!(filter.withheld_credential("x-pass"), Some("x-pass"));
    assert_eq!(stored_request_headers(&sent, &filter), []);
    // Like any other header, it is stored if `keep_headers` names it.
    filter.keep_headers.push("x-pass".to_owned());
    assert_eq!(filter.withheld_credential("x-pass"), None);
    assert_eq!(stored_request_headers(&sent, &filter), sent);
}

#[test]
fn stored_head_len_counts_only_stored_headers() {
    let sent = headers(&[("x-a", "123"), ("cookie", "long"), ("x-a", "4")]);
    assert_eq!(stored_head_len("/a?b", &sent, &StoredHeaderFilter::default()), 4 + 3 + 3 + 3 + 1);
}

/// A stored credential still marks the request as authenticated.
#[test]
fn kept_credential_still_counts_as_a_credential() {
    let filter = StoredHeaderFilter {
        keep_headers: vec!["x-api-key".into(), "x-pass".into()],
        credential_headers: vec!["x-pass".into()],
    };
    for name in ["x-api-key", "x-pass"] {
        assert!(filter.is_credential(name) && filter.withheld_credential(name).is_none(), "{name}");
        assert!(filter.allows(name), "{name}");
    }
    assert!(filter.is_credential("cookie") && !filter.allows("cookie"));
    assert!(!filter.is_credential("x-role"));
}
