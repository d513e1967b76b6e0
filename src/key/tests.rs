use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Texts of letters that separate or escape the parts of keys, and some long ones.
fn collision_prone_text() -> impl Strategy<Value = String> {
    let letters = vec![
        'a', 'b', ':', '@', '+', '%', '~', '-', '.', ',', ' ', '/', '\n', '{', '}', '検', '登',
    ];
    let short = prop::collection::vec(prop::sample::select(letters), 0..4);
    let short = short.prop_map(String::from_iter);
    prop_oneof![9 => short.clone(), 1 => short.prop_map(|text| text + &"x".repeat(100))]
}

/// Kind, name, scopes and value. An empty scope is none.
type KeyTemplate = (u8, String, Vec<String>, String);

fn key_template() -> impl Strategy<Value = KeyTemplate> {
    let scope =
        collision_prone_text().prop_filter("an empty scope is none", |scope| !scope.is_empty());
    (0..5u8, collision_prone_text(), prop::collection::vec(scope, 0..3), collision_prone_text())
}

fn key_from_template((kind, name, scopes, value): &KeyTemplate) -> Key {
    let key = match kind {
        0 => Key::path_param(name, value),
        1 => Key::header(name, value.as_bytes()),
        2 => Key::extension(name, value),
        3 => Key::custom(value).named(name),
        _ => Key::route(value).named(name),
    };
    scopes.iter().fold(key, |key, scope| key.scope(scope))
}

proptest! {
    // Each case compares each of up to 60 sources with all others.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn distinct_parts_give_distinct_keys(sources in prop::collection::vec(key_template(), 2..60)) {
        let mut seen = HashMap::new();
        for source in &sources {
            let first = *seen.entry(key_from_template(source)).or_insert(source);
            prop_assert_eq!(first, source);
        }
        // The same holds for keys of two parts.
        let mut pairs = HashMap::new();
        for pair in sources.windows(2) {
            let key = key_from_template(&pair[0]).and(&key_from_template(&pair[1]));
            let first = *pairs.entry(key).or_insert(pair);
            prop_assert_eq!(first, pair);
        }
    }
}

#[test]
fn unusual_values_give_short_ascii_keys() {
    let long = "x".repeat(10_000);
    for value in ["a/b", "a\0b", "ä", " ", "~", "*", &long] {
        let key = Key::path_param("id", value);
        assert!(key.as_str().len() < 120, "{key}");
        assert!(key.as_str().bytes().all(|b| b.is_ascii_graphic()), "{key}");
    }
    assert_ne!(Key::custom(&long), Key::custom(&format!("{long}x")));
}

#[test]
fn webhook_key_lies_in_the_shard_of_its_job() {
    for shard in 0..SHARD_COUNT {
        for job in ["", "00ff", "3f0123456789abcdef0123456789abcdef"] {
            let key = Key::for_webhook(job, shard);
            assert_eq!(key.shard(), shard, "{key}");
            assert!(key.is_webhook() && key.as_str().len() < 50, "{key}");
        }
    }
}

#[test]
fn addresses_are_normalised() {
    let ip = |s: &str| Key::ip(s.parse().unwrap());
    assert_eq!(ip("::ffff:192.0.2.1"), ip("192.0.2.1"));
    assert_eq!(ip("2001:db8:1:2:3::4"), ip("2001:db8:1:2::"));
    assert_ne!(ip("2001:db8:1:3::"), ip("2001:db8:1:2::"));
    assert_eq!(ip("64:ff9b::192.0.2.1"), ip("192.0.2.1"), "NAT64");
    assert_ne!(ip("64:ff9b::192.0.2.1"), ip("64:ff9b::192.0.2.2"));
    assert_ne!(ip("64:ff9b:1::192.0.2.1"), ip("64:ff9b:1::192.0.2.2"));
    assert_ne!(ip("64:ff9b:1::192.0.2.1"), ip("192.0.2.1"), "the format is not defined");
    assert_eq!(ip("64:ff9b:0:0:1::1"), ip("64:ff9b:0:0:2::1"), "neither of them");
}

#[test]
fn stripe_numbers_are_stable_wire_layout() {
    // Processes of different versions must agree on these numbers.
    let stripe = |value: &str, n| Key::path_param("id", value).stripe(n).as_str().to_owned();
    assert_eq!(stripe("7", 64), "s:p.id::64.10");
    assert_eq!(stripe("8", 64), "s:p.id::64.18");
    assert_eq!(stripe("7", 65_536), "s:p.id::65536.53962");
    assert_eq!(stripe("7", 1), "s:p.id::1.0");
}

#[test]
fn stripes_differ_from_all_other_keys() {
    let key = Key::path_param("id", "7");
    let one = |key: &Key| key.stripe(1);
    assert_eq!(one(&key), one(&Key::path_param("id", "8")), "they share the only one");
    assert_ne!(key.stripe(2), key.stripe(4));
    assert_ne!(one(&key), one(&key.scope("x")));
    assert_ne!(one(&key), one(&Key::path_param("p.id", "7")));
    assert_ne!(one(&key), one(&Key::header("id", b"7")));
    assert_ne!(one(&Key::custom("a").named("s")), one(&one(&Key::custom("a"))));
    for forged in [one(&key).as_str(), "s:p.id::1.0", "1.0"] {
        assert_ne!(Key::custom(forged), one(&key));
        assert_ne!(Key::path_param("id", forged), one(&key));
    }
}

#[test]
fn stripes_are_used_evenly() {
    let mut used = [0u32; 64];
    for id in 0..6_400 {
        let key = Key::path_param("id", &id.to_string()).stripe(64);
        let number = key.as_str().rsplit_once('.').unwrap().1.parse::<usize>().unwrap();
        used[number] += 1;
    }
    assert!(used.iter().all(|n| (50..150).contains(n)), "{used:?}");
}

#[test]
fn invalid_stripe_count_is_refused() {
    for n in [0, 65_537, u32::MAX] {
        assert!(std::panic::catch_unwind(|| Key::custom("a").stripe(n)).is_err());
        let error = Key::custom("a").try_stripe(n).expect_err("out of range");
        assert_eq!(error.kind(), crate::ErrorKind::Config);
    }
}

#[test]
fn shard_numbers_are_stable_wire_layout() {
    // Processes of different versions must agree on these numbers.
    assert_eq!(Key::path_param("id", "7").shard(), 51);
    assert_eq!(Key::path_param("id", "8").shard(), 10);
}

/// Keys are visible to every client of the store.
#[test]
fn credential_key_hides_the_credential() {
    for name in [
        "authorization",
        "Proxy-Authorization",
        "Cookie",
        "X-API-Key",
        "X-Auth-Token",
        "Private-Token",
    ] {
        let key = Key::header(name, b"Bearer xyzzy").scope("shop");
        assert!(!key.as_str().contains("xyzzy"), "{key}");
        assert_ne!(key, Key::header(name, b"Bearer xyzzz").scope("shop"));
    }
    assert_eq!(Key::header("x-account", b"xyzzy").as_str(), "h:x-account::xyzzy");
    let key_of = |value: &str| Key::header("authorization", value.as_bytes());
    for same in ["bearer xyzzy", "BEARER  xyzzy", " Bearer xyzzy "] {
        assert_eq!(key_of(same), key_of("Bearer xyzzy"), "RFC 9110, section 11");
    }
    assert_ne!(key_of("Bearer Xyzzy"), key_of("Bearer xyzzy"));
    assert_ne!(key_of("Basic xyzzy"), key_of("Bearer xyzzy"));
    assert_eq!(key_of("xyzzy"), key_of("xyzzy"));
}
