//! What is set at a layer is what is asked for, as it is where a lock is asked for by hand.

use super::SECOND;
use crate::{
    gate::KeySource,
    lock::{LockGate, LockRequest},
    store::Store,
};

/// The part of it that is asked of the store and of the local line.
fn asking(debug: &str) -> &str {
    let text = &debug[debug.find("Asking {").expect("it shows what it asks for")..];
    let mut depth = 0;
    let ends = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == '}' && depth == 0
    };
    &text[..text.find(ends).expect("it ends")]
}

#[tokio::test]
async fn each_setting_of_a_layer_is_that_of_a_request() {
    type Set<T> = fn(T) -> T;
    let pairs: [(Set<LockGate<()>>, Set<LockRequest>); 7] = [
        (|gate| gate.lease(7 * SECOND), |request| request.lease(7 * SECOND)),
        (|gate| gate.lease_fixed(7 * SECOND), |request| request.lease_fixed(7 * SECOND)),
        (|gate| gate.max_hold(7 * SECOND), |request| request.max_hold(7 * SECOND)),
        (|gate| gate.hand_over(7, SECOND), |request| request.hand_over(7, SECOND)),
        (|gate| gate.linger(SECOND), |request| request.linger(SECOND)),
        (|gate| gate.replicas(7), |request| request.replicas(7)),
        (|gate| gate.max_waiters(7), |request| request.max_waiters(7)),
    ];
    let store = Store::memory();
    let gate = || LockGate::new(KeySource::<()>::function(|()| Some("x".to_owned())));
    let usual = format!("{:?}", store.lock("x"));
    assert_eq!(asking(&format!("{:?}", gate())), asking(&usual));
    for (n, (layer, request)) in pairs.into_iter().enumerate() {
        let by_hand = format!("{:?}", request(store.lock("x")));
        assert_ne!(asking(&by_hand), asking(&usual), "{n}: it sets nothing");
        assert_eq!(asking(&format!("{:?}", layer(gate()))), asking(&by_hand), "{n}");
    }
}
