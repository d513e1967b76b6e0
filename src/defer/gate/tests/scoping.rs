//! Settings that would let users share what is one user's.

use std::panic::catch_unwind;

use serde::{Deserialize, Serialize};

use super::Defer;
use crate::{defer::ExtensionSnapshot, gate::Gate as _};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct User(String);

impl ExtensionSnapshot for User {
    const NAME: &'static str = "user";
}

fn carried() -> Defer {
    Defer::new().carry_extension::<User>(|()| None)
}

fn named(gate: Defer) -> Defer {
    gate.carry_identity::<User>(|()| None, |user| user.0.clone())
}

/// The message with which a gate is refused where it is put around a service.
fn refused(gate: &Defer) -> String {
    let gate = std::panic::AssertUnwindSafe(gate);
    let panic = catch_unwind(|| gate.validate_settings()).expect_err("the settings are refused");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a text")
}

#[test]
fn a_layer_that_carries_shares_nothing_without_saying_so() {
    type Sharing = fn(Defer) -> Defer;
    let sharing: [(&str, Sharing); 3] = [
        ("first_wins", Defer::coalesce),
        ("last_wins", Defer::supersede),
        ("remember_direct", Defer::idempotent_direct),
    ];
    for (name, share) in sharing {
        // Whatever is said first.
        for gate in [share(carried()), share(Defer::new()).carry_extension::<User>(|()| None)] {
            let text = refused(&gate);
            let is_told = text.contains(name) && text.contains(".carry_as::<T>(..)");
            assert!(is_told, "{text}");
        }
        named(share(Defer::new())).validate_settings();
        share(carried()).owner(|()| None).validate_settings();
        share(carried()).share_across_owners().validate_settings();
        share(Defer::new()).validate_settings();
    }
    carried().validate_settings();
}

#[test]
fn an_owner_and_a_share_of_all_contradict_each_other() {
    for gate in [carried().owner(|()| None), named(Defer::new())] {
        let text = refused(&gate.share_across_owners());
        assert!(text.starts_with("DeferLayer::shared_by_all: "), "{text}");
    }
}

#[test]
fn two_identities_need_an_owner() {
    let two = named(named(Defer::new()));
    assert!(refused(&two).starts_with("DeferLayer::carry_as: "));
    two.owner(|()| None).validate_settings();
}

/// A client that is alone has half of the budget.
#[test]
fn limits_beyond_a_clients_share_of_the_budget_are_told() {
    let (log, _guard) = crate::store::Log::begin();
    Defer::new().validate_settings();
    assert!(!log.text().contains("never deferred"), "{}", log.text());
    Defer::new().body_limit(40 << 20).validate_settings();
    log.has("never deferred");
}
