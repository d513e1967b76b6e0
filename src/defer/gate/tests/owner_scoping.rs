//! Settings that would share the jobs of one user with other users.

use std::panic::catch_unwind;

use serde::{Deserialize, Serialize};

use super::TestDeferLayer;
use crate::{defer::ExtensionSnapshot, gate::Gate as _};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CarriedUser(String);

impl ExtensionSnapshot for CarriedUser {
    const NAME: &'static str = "user";
}

fn gate_with_extension() -> TestDeferLayer {
    TestDeferLayer::new().carry_extension::<CarriedUser>()
}

fn with_identity(gate: TestDeferLayer) -> TestDeferLayer {
    gate.carry_identity::<CarriedUser>(|user| user.0.clone())
}

/// Panic message of `validate_settings`.
fn validation_error(gate: &TestDeferLayer) -> String {
    let gate = std::panic::AssertUnwindSafe(gate);
    let panic = catch_unwind(|| gate.validate_settings()).expect_err("the settings are refused");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a text")
}

#[test]
fn carried_extensions_are_shared_only_when_declared() {
    type SharingSetter = fn(TestDeferLayer) -> TestDeferLayer;
    let sharing: [(&str, SharingSetter); 3] = [
        ("coalesce", TestDeferLayer::coalesce),
        ("supersede", TestDeferLayer::supersede),
        ("idempotent_direct", TestDeferLayer::idempotent_direct),
    ];
    for (name, share) in sharing {
        // The order of the settings does not matter.
        for gate in [
            share(gate_with_extension()),
            share(TestDeferLayer::new()).carry_extension::<CarriedUser>(),
        ] {
            let text = validation_error(&gate);
            let names_both = text.contains(name) && text.contains(".carry_identity::<T>(..)");
            assert!(names_both, "{text}");
        }
        with_identity(share(TestDeferLayer::new())).validate_settings();
        share(gate_with_extension()).owner(|()| None).validate_settings();
        share(gate_with_extension()).share_across_owners().validate_settings();
        share(TestDeferLayer::new()).validate_settings();
    }
    gate_with_extension().validate_settings();
}

#[test]
fn owner_with_share_across_owners_is_refused() {
    for gate in [gate_with_extension().owner(|()| None), with_identity(TestDeferLayer::new())] {
        let text = validation_error(&gate.share_across_owners());
        assert!(text.starts_with("DeferLayer::share_across_owners: "), "{text}");
    }
}

#[test]
fn two_identities_need_an_owner() {
    let two = with_identity(with_identity(TestDeferLayer::new()));
    assert!(validation_error(&two).starts_with("DeferLayer::carry_identity: "));
    two.owner(|()| None).validate_settings();
}

/// A single client may use half of the body budget.
#[test]
fn body_limit_beyond_the_client_share_is_logged() {
    let (log, _guard) = crate::store::CapturedLog::start_capture();
    TestDeferLayer::new().validate_settings();
    assert!(!log.text().contains("never deferred"), "{}", log.text());
    TestDeferLayer::new().body_limit(40 << 20).validate_settings();
    log.assert_contains("never deferred");
}
