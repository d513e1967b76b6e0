//! Tests of sealing, opening and key rotation.

use bytes::Bytes;

use super::{Keyring, SealContext, UnsealError, open, seal};
use crate::store::Store;

const CONTEXT: SealContext<'_> = SealContext { id: "id", parent_key: "c:lock", kind: "request" };

fn store_with_keyring(keys: Keyring) -> Store {
    Store::memory().with_keyring(keys)
}

fn plaintext() -> Bytes {
    Bytes::from_static(b"\x01secret body")
}

#[test]
fn sealed_bytes_open_and_reveal_nothing() {
    let store = store_with_keyring(Keyring::new("a", [1; 32]));
    let sealed = seal(&store, CONTEXT, plaintext());
    assert_eq!(open(&store, CONTEXT, &sealed), Ok(plaintext()));
    assert!(!sealed.windows(6).any(|part| part == b"secret"));
    assert_ne!(sealed, seal(&store, CONTEXT, plaintext()), "a nonce is never used again");
    // A clone of the store shares its keyring.
    let clone = store.clone();
    assert_eq!(open(&clone, CONTEXT, &sealed), Ok(plaintext()));
}

#[test]
fn changed_truncated_or_moved_bytes_do_not_open() {
    let store = store_with_keyring(Keyring::new("a", [1; 32]));
    let sealed = seal(&store, CONTEXT, plaintext());
    for index in 0..sealed.len() {
        let mut changed = sealed.to_vec();
        changed[index] ^= 0x80;
        assert_ne!(open(&store, CONTEXT, &changed.into()), Ok(plaintext()), "{index}");
        assert!(open(&store, CONTEXT, &sealed.slice(..index)).is_err() || index == 0, "{index}");
    }
    let contexts = [
        SealContext { id: "other", ..CONTEXT },
        SealContext { parent_key: "c:other", ..CONTEXT },
        SealContext { kind: "response", ..CONTEXT },
        SealContext { id: "idc", parent_key: ":lock", ..CONTEXT },
    ];
    for context in contexts {
        assert_eq!(open(&store, context, &sealed), Err(UnsealError::Corrupt), "{context:?}");
    }
    let other_store = store_with_keyring(Keyring::new("a", [2; 32]));
    assert_eq!(
        open(&other_store, CONTEXT, &sealed),
        Err(UnsealError::Corrupt),
        "another key of this id"
    );
}

#[test]
fn keys_rotate_without_an_unreadable_job() {
    let (old, new) = ([1; 32], [2; 32]);
    let first = store_with_keyring(Keyring::new("old", old));
    let second = store_with_keyring(Keyring::new("old", old).with_decryption_key("new", new));
    let third = store_with_keyring(Keyring::new("new", new).with_decryption_key("old", old));
    let last = store_with_keyring(Keyring::new("new", new));
    let old_sealed = seal(&second, CONTEXT, plaintext());
    let new_sealed = seal(&third, CONTEXT, plaintext());
    for store in [&first, &second, &third] {
        assert_eq!(open(store, CONTEXT, &old_sealed), Ok(plaintext()));
    }
    for store in [&second, &third, &last] {
        assert_eq!(open(store, CONTEXT, &new_sealed), Ok(plaintext()));
    }
    assert_eq!(open(&first, CONTEXT, &new_sealed), Err(UnsealError::UnknownKey));
    assert_eq!(open(&last, CONTEXT, &old_sealed), Err(UnsealError::UnknownKey));
    assert_eq!(open(&Store::memory(), CONTEXT, &new_sealed), Err(UnsealError::UnknownKey));
    let mut newer_version = new_sealed.to_vec();
    newer_version[1] = 2;
    let newer_version = Bytes::from(newer_version);
    assert_eq!(open(&last, CONTEXT, &newer_version), Err(UnsealError::NewerVersion));
    assert_eq!(open(&Store::memory(), CONTEXT, &newer_version), Err(UnsealError::NewerVersion));
}

#[test]
fn plaintext_opens_unless_sealing_is_required() {
    let keyring = Keyring::new("a", [1; 32]);
    assert_eq!(open(&store_with_keyring(keyring.clone()), CONTEXT, &plaintext()), Ok(plaintext()));
    let strict = store_with_keyring(keyring.require_sealed());
    assert_eq!(open(&strict, CONTEXT, &plaintext()), Err(UnsealError::Corrupt));
    assert_eq!(open(&strict, CONTEXT, &seal(&strict, CONTEXT, plaintext())), Ok(plaintext()));
}

#[test]
fn keyring_debug_shows_ids_and_hides_keys() {
    let keyring = Keyring::new("a", [77; 32]).with_decryption_key("b", [78; 32]);
    let text = format!("{keyring:?}");
    assert_eq!(text, r#"Keyring { seals: "a", opens: ["a", "b"], only_sealed: false }"#);
    for id in ["", "a b", &"x".repeat(33), "ä"] {
        assert!(std::panic::catch_unwind(|| Keyring::new(id, [1; 32])).is_err(), "{id:?}");
    }
}

#[test]
fn invalid_key_ids_are_config_errors() {
    for result in [
        Keyring::try_new("a b", [1; 32]),
        Keyring::new("a", [1; 32]).try_with_decryption_key("", [2; 32]),
        Keyring::new("a", [1; 32]).try_with_decryption_key("a", [2; 32]),
    ] {
        assert_eq!(result.expect_err("refused").kind(), crate::ErrorKind::Config);
    }
    let keyring = Keyring::try_new("a", [1; 32]).expect("valid");
    assert!(keyring.try_with_decryption_key("b", [2; 32]).is_ok());
}
