//! Tests of idempotency keys: the parser, and the derived key.

use proptest::prelude::*;

use super::*;

#[test]
fn derived_idempotency_key_is_stable_and_hides_the_job() {
    let key = crate::key::Key::custom("a");
    let (one, two) = (JobId::new(&key), JobId::new(&key));
    assert_eq!(derive_idempotency_key(&one), derive_idempotency_key(&one));
    assert_ne!(derive_idempotency_key(&one), derive_idempotency_key(&two));
    assert!(!derive_idempotency_key(&one).contains(one.as_str()));
    let made = derive_idempotency_key(&one);
    assert!(matches!(parse_idempotency_key(&[made.as_bytes()]), Ok(Some(_))));
}

#[test]
fn arbitrary_idempotency_key_is_one_valid_string_or_error() {
    bolero::check!().with_iterations(1_000).with_type::<Vec<Vec<u8>>>().for_each(|lines| {
        let lines: Vec<_> = lines.iter().map(|line| &line[..]).collect();
        match parse_idempotency_key(&lines) {
            Ok(None) => assert!(lines.is_empty()),
            Ok(Some(key)) => {
                assert!(key.bytes().all(|b| (b' '..=b'~').contains(&b)), "{key:?}");
                assert!((1..=255).contains(&key.len()), "{key:?}");
                let quoted = quote(&key);
                assert_eq!(parse_idempotency_key(&[quoted.as_bytes()]), Ok(Some(key)));
                assert_eq!(lines.len(), 1);
            }
            Err(()) => {}
        }
    });
}

/// Encodes a key as a structured-field string (RFC 8941).
fn quote(key: &str) -> String {
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

proptest! {
    #[test]
    fn every_quoted_string_parses_as_a_key(key in "[ -~]{1,100}", parameters in "(; ?[a-z*][a-z0-9_.*-]{0,5}(=(\"[ !#-Z]*\"|[a-z0-9?:.*]{1,5}))?){0,3}") {
        let sent = format!("{}{parameters}", quote(&key));
        prop_assert_eq!(parse_idempotency_key(&[sent.as_bytes()]), Ok(Some(key)));
    }
}

#[test]
fn idempotency_keys_are_quoted_or_bare() {
    assert_eq!(parse_idempotency_key(&[]), Ok(None));
    assert_eq!(parse_idempotency_key(&[b"\"abc\""]), Ok(Some("abc".to_owned())));
    assert_eq!(parse_idempotency_key(&[b"abc"]), Ok(Some("abc".to_owned())));
    assert_eq!(parse_idempotency_key(&[br#""a \"b\\";v=1; w"#]), Ok(Some("a \"b\\".to_owned())));
    let bad =
        [&b"\"\""[..], b"", b"a b", b"\"a", &[b'x'; 256], b"\xff", b"\"\xc3\xa4\"", b"\"a\tb\""];
    let escapes = [&br#""a\"#[..], br#""a\b""#, br#""a"b""#, br#"a"b"#, br"a\b"];
    let parameters =
        [&b"\"a\";"[..], b"\"a\";V=1", b"\"a\";v=", b"\"a\" ;v", b"\"a\";v=\"", b"\"a\", \"b\""];
    for bad in bad.into_iter().chain(escapes).chain(parameters) {
        assert_eq!(parse_idempotency_key(&[bad]), Err(()), "{bad:?}");
    }
    assert_eq!(parse_idempotency_key(&[b"a", b"b"]), Err(()));
}
