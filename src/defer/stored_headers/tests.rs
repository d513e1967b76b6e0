//! Tests of what is stored of headers.

use proptest::prelude::*;

use super::*;

fn headers(list: &[(&str, &str)]) -> HeaderPairs {
    list.iter().map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect()
}

/// Names that a request may have: fixed ones, ours, credentials, and those of the application.
fn header_name() -> impl Strategy<Value = String> {
    let known: [&[&str]; 3] = [
        UNSTORED_HEADERS,
        &["authorization", "cookie", "x-api-key", "lockgate-held", "lockgate-replay"],
        &["x-user-id", "x-role", "host", "content-type", "idempotency-key", "x-forwarded-for"],
    ];
    prop_oneof![proptest::sample::select(known.concat()).prop_map(str::to_owned), "[a-z-]{1,12}"]
}

/// Lines of any names; those of `RedisConnection` nominate any other ones.
fn header_lines() -> impl Strategy<Value = HeaderPairs> {
    let value = proptest::collection::vec(any::<u8>(), 0..20);
    let line = (header_name(), value);
    let nominates = proptest::collection::vec(header_name(), 0..6)
        .prop_map(|names| ("connection".to_owned(), names.join(", ").into_bytes()));
    proptest::collection::vec(prop_oneof![3 => line, 1 => nominates], 0..20)
}

proptest! {
    /// Stored is what was received, in order, but for what a line's own name rules out.
    #[test]
    fn header_line_never_removes_another(sent in header_lines(), keep in proptest::option::of(header_name())) {
        let fields = StoredHeaderFilter { keep_headers: keep.into_iter().collect(), ..StoredHeaderFilter::default() };
        let alone = sent.iter().flat_map(|line| stored_request_headers(&vec![line.clone()], &fields));
        prop_assert_eq!(stored_request_headers(&sent, &fields), alone.collect::<HeaderPairs>());
        let goes = |name: &str| {
            !fields.is_exempt(name) && (UNSTORED_HEADERS.contains(&name) || matching_credential(name).is_some())
        };
        let stays = |name: &str| !name.starts_with(INTERNAL_HEADER_PREFIX) && !goes(name);
        let kept = sent.iter().filter(|(name, _)| stays(name)).cloned();
        prop_assert_eq!(stored_request_headers(&sent, &fields), kept.collect::<HeaderPairs>());
    }
}

/// Or what was an answer to one client would be a page that others can be sent to.
#[test]
fn stored_response_keeps_browser_restrictions() {
    let said = [
        ("content-security-policy", "sandbox"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("set-cookie", "a=b"),
        ("x-own", "1"),
    ];
    assert_eq!(stored_response_headers(headers(&said), &[]), headers(&said[..3]));
    assert_eq!(stored_response_headers(headers(&said), &["x-own".to_owned()]).len(), 4);
}

/// Who reads it may know other codings than who sent the request.
#[test]
fn accept_encoding_is_not_stored_by_default() {
    let sent = headers(&[("accept", "a"), ("accept-encoding", "gzip")]);
    assert_eq!(
        stored_request_headers(&sent, &StoredHeaderFilter::default()),
        headers(&[("accept", "a")])
    );
    let keep = StoredHeaderFilter {
        keep_headers: vec!["accept-encoding".to_owned()],
        ..StoredHeaderFilter::default()
    };
    assert_eq!(stored_request_headers(&sent, &keep), sent);
}

#[test]
fn credential_is_withheld_unless_kept() {
    let sent = headers(&[("authorization", "Bearer x"), ("connection", "authorization")]);
    assert_eq!(stored_request_headers(&sent, &StoredHeaderFilter::default()), []);
    let keeps = |name: &str| StoredHeaderFilter {
        keep_headers: vec![name.to_owned()],
        ..StoredHeaderFilter::default()
    };
    assert_eq!(keeps("cookie").withheld_credential("authorization"), Some("authorization"));
    let keep = keeps("authorization");
    assert_eq!(keep.withheld_credential("authorization"), None);
    assert_eq!(stored_request_headers(&sent, &keep), sent[..1]);
}

#[test]
fn custom_header_declared_a_credential_is_withheld() {
    let sent = headers(&[("x-pass", "k")]);
    assert_eq!(StoredHeaderFilter::default().withheld_credential("x-pass"), None);
    let mut fields = StoredHeaderFilter {
        credential_headers: vec!["x-pass".to_owned()],
        ..StoredHeaderFilter::default()
    };
    assert_eq!(fields.withheld_credential("x-pass"), Some("x-pass"));
    assert_eq!(stored_request_headers(&sent, &fields), []);
    // As any other: stored if that is asked for as well.
    fields.keep_headers.push("x-pass".to_owned());
    assert_eq!(fields.withheld_credential("x-pass"), None);
    assert_eq!(stored_request_headers(&sent, &fields), sent);
}

#[test]
fn stored_head_len_counts_only_stored_headers() {
    let sent = headers(&[("x-a", "123"), ("cookie", "long"), ("x-a", "4")]);
    assert_eq!(stored_head_len("/a?b", &sent, &StoredHeaderFilter::default()), 4 + 3 + 3 + 3 + 1);
}

/// A kept one is stored, and shows that the request is some user's all the same.
#[test]
fn kept_credential_still_counts_as_a_credential() {
    let fields = StoredHeaderFilter {
        keep_headers: vec!["x-api-key".into(), "x-pass".into()],
        credential_headers: vec!["x-pass".into()],
    };
    for name in ["x-api-key", "x-pass"] {
        assert!(fields.is_credential(name) && fields.withheld_credential(name).is_none(), "{name}");
        assert!(fields.allows(name), "{name}");
    }
    assert!(fields.is_credential("cookie") && !fields.allows("cookie"));
    assert!(!fields.is_credential("x-role"));
}
