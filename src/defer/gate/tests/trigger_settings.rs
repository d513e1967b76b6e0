//! Settings of when a request is deferred: which of them replace each other.

use std::time::Duration;

use super::TestDeferLayer;
use crate::{
    gate::{
        Gate as _, InitialVerdict, LockInstruction, ParkingSlot, fake_request::FakeGateRequest,
        note_lock_layer,
    },
    lock::LockLayer,
    store::{CapturedLog, Store},
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

#[test]
fn wait_up_to_beside_background_is_warned_of() {
    const FIVE: Duration = Duration::from_secs(5);
    const WARNING: &str = "two settings exclude each other";
    // The log throttle counts per thread.
    let count_warnings = |build: fn() -> TestDeferLayer| {
        let count = move || {
            let (log, _reads) = CapturedLog::start_capture();
            drop(build());
            log.text().matches(WARNING).count()
        };
        std::thread::spawn(count).join().expect("it passes")
    };
    for (count, build) in [
        (1, (|| TestDeferLayer::new().background().wait_up_to(FIVE)) as fn() -> TestDeferLayer),
        (1, || TestDeferLayer::new().wait_up_to(FIVE).background()),
        (0, || TestDeferLayer::new().wait_up_to(FIVE).when_busy().background()),
        (0, || TestDeferLayer::new().background().when_busy().wait_up_to(FIVE)),
        (0, || TestDeferLayer::new().background().background()),
    ] {
        assert_eq!(count_warnings(build), count, "{:?}", build());
    }
}

/// The lock's own wait is that of requests that no outer layer defers.
#[test]
fn wait_of_a_lock_inside_a_defer_layer_is_warned_of() {
    const FIVE: Duration = Duration::from_secs(5);
    const WARNING: &str = "the wait of the LockLayer is ignored inside a DeferLayer";
    let (log, _reads) = CapturedLog::start_capture();
    let lock = LockLayer::<()>::by_header("order").store(&Store::memory());
    let waiting_lock = lock.clone().wait(FIVE);
    let send = |defer: Option<&TestDeferLayer>, lock: &LockLayer<()>| {
        let mut view = FakeGateRequest::new("POST");
        view.headers.push(("order", "7"));
        defer.into_iter().for_each(|defer| drop(defer.inspect(&mut view)));
        drop(lock.inspect(&mut view));
    };
    send(None, &waiting_lock);
    send(Some(&TestDeferLayer::new()), &lock);
    send(Some(&TestDeferLayer::new().wait_up_to(FIVE)), &waiting_lock);
    assert!(!log.text().contains(WARNING), "{}", log.text());
    for _ in 0..2 {
        send(Some(&TestDeferLayer::new()), &waiting_lock);
        assert_eq!(log.text().matches(WARNING).count(), 1, "{}", log.text());
    }
    log.assert_contains("set .wait_up_to(..) on the DeferLayer");
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
