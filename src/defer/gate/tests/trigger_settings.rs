//! Settings of when a request is deferred: which of them replace each other.

use std::time::Duration;

use super::TestDeferLayer;
use crate::gate::{
    Gate as _, InitialVerdict, LockInstruction, ParkingSlot, fake_request::FakeGateRequest,
    note_lock_layer,
};

/// Returns how the lock of a request with this preference is tried.
#[track_caller]
fn lock_instruction(layer: &TestDeferLayer, prefer: Option<&'static str>) -> LockInstruction {
    // As of a `LockLayer` inside; without any, `background` refuses the request.
    note_lock_layer();
    let mut view = FakeGateRequest::new("POST");
    view.headers.extend(prefer.map(|prefer| ("prefer", prefer)));
    assert!(matches!(layer.inspect(&mut view), InitialVerdict::PassLight(_)));
    ParkingSlot::take_from(&mut view).expect("the lock finds it").instruction()
}

#[test]
fn last_of_when_busy_wait_up_to_and_background_applies() {
    const FIVE: Duration = Duration::from_secs(5);
    let layer = TestDeferLayer::new;
    let (at_once, waits) =
        (LockInstruction::WaitFor(Duration::ZERO), LockInstruction::WaitFor(FIVE));
    for (layer, instruction) in [
        (layer(), at_once),
        (layer().when_busy(), at_once),
        (layer().wait_up_to(FIVE), waits),
        (layer().background(), LockInstruction::ParkOrRefuse),
        (layer().background().when_busy(), at_once),
        (layer().wait_up_to(FIVE).when_busy(), at_once),
        (layer().background().wait_up_to(FIVE), waits),
        (layer().wait_up_to(FIVE).background(), LockInstruction::ParkOrRefuse),
    ] {
        assert_eq!(lock_instruction(&layer, None), instruction, "{layer:?}");
    }
}

/// It is no fourth of them: it concerns clients that ask.
#[test]
fn respond_async_is_added_to_the_other_conditions() {
    const FIVE: Duration = Duration::from_secs(5);
    let preference = Some("respond-async");
    for layer in [
        TestDeferLayer::new().respond_async().wait_up_to(FIVE),
        TestDeferLayer::new().wait_up_to(FIVE).respond_async(),
    ] {
        assert_eq!(lock_instruction(&layer, preference), LockInstruction::ParkImmediately);
        assert_eq!(lock_instruction(&layer, None), LockInstruction::WaitFor(FIVE));
    }
    let layer = TestDeferLayer::new().respond_async().when_busy();
    assert_eq!(lock_instruction(&layer, preference), LockInstruction::ParkImmediately);
    let layer = TestDeferLayer::new().wait_up_to(FIVE);
    assert_eq!(
        lock_instruction(&layer, preference),
        LockInstruction::WaitFor(FIVE),
        "the layer does not honor it"
    );
}
