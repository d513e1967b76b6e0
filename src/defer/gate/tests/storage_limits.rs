//! Default storage limits of a layer.

use std::time::Duration;

use bytes::Bytes;

use super::{DeferCandidate, TestDeferLayer, parked_candidate};
use crate::{
    gate::{Gate as _, HttpRequestHead, LockInstruction, ParkingSlot},
    key::Key,
    store::Store,
};

/// Enqueues requests of one owner until one is refused; returns the number of enqueued ones.
async fn enqueue_until_full(store: &Store, key: &Key, owner: &str, body: &Bytes) -> usize {
    for enqueued in 0.. {
        let mut parked: DeferCandidate = parked_candidate(store);
        parked.parked.key = key.clone();
        parked.slot = ParkingSlot::new(LockInstruction::WaitFor(Duration::ZERO), None);
        owner.clone_into(&mut parked.owner);
        let head = HttpRequestHead::new("POST", "/7", Vec::new(), None);
        if TestDeferLayer::new().accept_parked(parked, head, Some(body.clone())).await.is_none() {
            return enqueued;
        }
    }
    unreachable!("the limits are finite")
}

#[tokio::test(start_paused = true)]
async fn full_resource_leaves_room_for_other_resources() {
    // 127 large requests with their metadata fill 8 MiB.
    let (small, large) = (Bytes::new(), Bytes::from(vec![0; 64 * 1024]));
    let hot = Key::custom("7");
    let other = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let other = other.into_iter().find(|key| *key != hot && key.shard() == hot.shard());
    let other = other.expect("there are many");
    for (body, most) in [(&small, 1000), (&large, 127)] {
        for owner in ["", "ada"] {
            let store = Store::memory();
            assert_eq!(enqueue_until_full(&store, &hot, owner, body).await, most, "{owner:?}");
            assert!(enqueue_until_full(&store, &other, "bob", body).await >= most / 8, "{owner:?}");
        }
    }
}
