//! What opens, and what does not.

use bytes::Bytes;

use super::{Keyring, SealContext, UnsealError, open, seal};
use crate::store::Store;

const PLACE: SealContext<'_> = SealContext { id: "id", parent_key: "c:lock", kind: "request" };

fn store(keys: Keyring) -> Store {
    Store::memory().with_keyring(keys)
}

fn plain() -> Bytes {
    Bytes::from_static(b"\x01secret body")
}

#[test]
fn what_is_sealed_opens_and_shows_nothing() {
    let store = store(Keyring::new("a", [1; 32]));
    let sealed = seal(&store, PLACE, plain());
    assert_eq!(open(&store, PLACE, &sealed), Ok(plain()));
    assert!(!sealed.windows(6).any(|part| part == b"secret"));
    assert_ne!(sealed, seal(&store, PLACE, plain()), "a nonce is never used again");
    // All clones are one handle, whenever they were made.
    let clone = store.clone();
    assert_eq!(open(&clone, PLACE, &sealed), Ok(plain()));
}

#[test]
fn bytes_that_are_changed_cut_or_moved_do_not_open() {
    let store = store(Keyring::new("a", [1; 32]));
    let sealed = seal(&store, PLACE, plain());
    for n in 0..sealed.len() {
        let mut changed = sealed.to_vec();
        changed[n] ^= 0x80;
        assert_ne!(open(&store, PLACE, &changed.into()), Ok(plain()), "{n}");
        assert!(open(&store, PLACE, &sealed.slice(..n)).is_err() || n == 0, "{n}");
    }
    let moved = [
        SealContext { id: "other", ..PLACE },
        SealContext { parent_key: "c:other", ..PLACE },
        SealContext { kind: "response", ..PLACE },
        SealContext { id: "idc", parent_key: ":lock", ..PLACE },
    ];
    for place in moved {
        assert_eq!(open(&store, place, &sealed), Err(UnsealError::Corrupt), "{place:?}");
    }
    let swapped = self::store(Keyring::new("a", [2; 32]));
    assert_eq!(open(&swapped, PLACE, &sealed), Err(UnsealError::Corrupt), "another key of this id");
}

#[test]
fn keys_change_without_a_job_that_nobody_opens() {
    let (old, new) = ([1; 32], [2; 32]);
    let first = store(Keyring::new("old", old));
    let second = store(Keyring::new("old", old).with_decryption_key("new", new));
    let third = store(Keyring::new("new", new).with_decryption_key("old", old));
    let last = store(Keyring::new("new", new));
    let of_old = seal(&second, PLACE, plain());
    let of_new = seal(&third, PLACE, plain());
    for store in [&first, &second, &third] {
        assert_eq!(open(store, PLACE, &of_old), Ok(plain()));
    }
    for store in [&second, &third, &last] {
        assert_eq!(open(store, PLACE, &of_new), Ok(plain()));
    }
    assert_eq!(open(&first, PLACE, &of_new), Err(UnsealError::UnknownKey));
    assert_eq!(open(&last, PLACE, &of_old), Err(UnsealError::UnknownKey));
    assert_eq!(open(&Store::memory(), PLACE, &of_new), Err(UnsealError::UnknownKey));
    let mut newer = of_new.to_vec();
    newer[1] = 2;
    let newer = Bytes::from(newer);
    assert_eq!(open(&last, PLACE, &newer), Err(UnsealError::NewerVersion));
    assert_eq!(open(&Store::memory(), PLACE, &newer), Err(UnsealError::NewerVersion));
}

#[test]
fn what_was_stored_before_is_read_unless_it_is_refused() {
    let ring = Keyring::new("a", [1; 32]);
    assert_eq!(open(&store(ring.clone()), PLACE, &plain()), Ok(plain()));
    let strict = store(ring.require_sealed());
    assert_eq!(open(&strict, PLACE, &plain()), Err(UnsealError::Corrupt));
    assert_eq!(open(&strict, PLACE, &seal(&strict, PLACE, plain())), Ok(plain()));
}

#[test]
fn a_keyring_tells_its_ids_and_not_its_keys() {
    let ring = Keyring::new("a", [77; 32]).with_decryption_key("b", [78; 32]);
    let told = format!("{ring:?}");
    assert_eq!(told, r#"Keyring { seals: "a", opens: ["a", "b"], only_sealed: false }"#);
    for id in ["", "a b", &"x".repeat(33), "ä"] {
        assert!(std::panic::catch_unwind(|| Keyring::new(id, [1; 32])).is_err(), "{id:?}");
    }
}
