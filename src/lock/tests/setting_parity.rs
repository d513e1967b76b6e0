//! Settings of a layer have the same effect as those of a request.

use std::time::Duration;

use super::SECOND;
use crate::{
    gate::KeySource,
    lock::{LockLayer, LockRequest, LockSetRequest},
    store::Store,
};

/// The `AcquireOptions` in a `Debug` output.
fn acquire_options_text(debug: &str) -> &str {
    let text = &debug[debug.find("AcquireOptions {").expect("the text has the acquire options")..];
    let mut depth = 0;
    let ends = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == '}' && depth == 0
    };
    &text[..text.find(ends).expect("it ends")]
}

#[tokio::test]
async fn layer_settings_equal_request_settings() {
    type SetterFn<T> = fn(T) -> T;
    /// Setters of a layer, of a request, and of a set request.
    type SettingSetters =
        (SetterFn<LockLayer<()>>, SetterFn<LockRequest>, SetterFn<LockSetRequest>);
    macro_rules! setting {
        ($name:ident($($value:expr),*)) => {
            (|it| it.$name($($value),*), |it| it.$name($($value),*), |it| it.$name($($value),*))
        };
    }
    let settings: [SettingSetters; 7] = [
        setting!(lease(7 * SECOND)),
        setting!(fixed_lease(7 * SECOND)),
        setting!(max_hold(7 * SECOND)),
        setting!(handover_limits(7, SECOND)),
        (
            |gate| gate.handover_limits(0, Duration::ZERO),
            LockRequest::strict_order,
            LockSetRequest::strict_order,
        ),
        setting!(min_replicas(7)),
        setting!(max_waiters(7)),
    ];
    let store = Store::memory();
    let gate = || LockLayer::by(KeySource::<()>::function(|()| Some("x".to_owned())));
    let defaults = format!("{:?}", store.lock("x"));
    assert_eq!(acquire_options_text(&format!("{:?}", gate())), acquire_options_text(&defaults));
    for (n, (layer, request, several)) in settings.into_iter().enumerate() {
        let by_hand = format!("{:?}", request(store.lock("x")));
        assert_ne!(
            acquire_options_text(&by_hand),
            acquire_options_text(&defaults),
            "{n}: it sets nothing"
        );
        assert_eq!(
            acquire_options_text(&format!("{:?}", layer(gate()))),
            acquire_options_text(&by_hand),
            "{n}"
        );
        let of_several = format!("{:?}", several(store.locks(["x", "y"])));
        assert_eq!(
            acquire_options_text(&of_several),
            acquire_options_text(&by_hand),
            "{n}: several"
        );
    }
}
