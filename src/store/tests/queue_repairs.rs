//! Order of the queue: skipped jobs are served in time, and damaged data is repaired.

use super::{
    on_every_store,
    store_harness::{StoreHarness, claim_command, new_token, test_key},
};
use crate::store::backend::{ClaimOutcome, OFFER_TIMEOUT};

on_every_store!(live_acquires_do_not_delay_skipped_job, later_waiter_queues_behind_earlier_ones,);

/// An offer to the job has lapsed, and live requests keep the lock busy. The worker's poll stays
/// due, because it ends the overtaking.
async fn live_acquires_do_not_delay_skipped_job(rig: &StoreHarness) {
    let (key, first, run) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &first).await;
    let id = rig.enqueue_job(&key).await;
    rig.release(&key, &first).await;
    rig.let_offer_expire().await;
    for round in 0..5 {
        let live = new_token();
        rig.acquire_exclusive(&key, &live).await;
        let due = rig.poll_due(key.shard(), 10).await.locks;
        assert_eq!(due, std::slice::from_ref(&key), "put off by number {round}");
        rig.release(&key, &live).await;
    }
    let live = new_token();
    rig.acquire_exclusive(&key, &live).await;
    let outcome = rig.claim(claim_command(&key, &id, &run)).await;
    assert!(matches!(outcome, ClaimOutcome::Busy(_)), "{outcome:?}");
    // The claim has ended the overtaking: the next offer goes to the job.
    rig.release(&key, &live).await;
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
}

async fn later_waiter_queues_behind_earlier_ones(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire_exclusive(&key, &a).await;
    let one = rig.join_queue(&key, &b).await;
    assert!(one < rig.join_queue(&key, &c).await);
    rig.release(&key, &a).await;
    rig.expect_busy(&key, &c).await;
    rig.acquire_exclusive(&key, &b).await;
}

#[cfg(feature = "redis")]
mod deleted_keys {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        Key,
        store::{
            backend::{AcquireReply, NodeId},
            tests::{
                on_redis,
                store_harness::{LONG_TIME, SHORT_TIME, wait_command},
            },
        },
    };

    on_redis!(
        invalid_shard_watch_counts_as_free,
        queue_order_survives_lost_shard_counters,
        deleted_job_queue_leaves_no_keys,
        queue_entry_of_unknown_mode_keeps_its_position,
    );

    fn shard_key_name(key: &Key, kind: &str) -> String {
        format!("{{{}}}:{kind}", key.shard())
    }

    fn lock_key_name(key: &Key, kind: &str) -> String {
        format!("{{{}}}:{kind}:{key}", key.shard())
    }

    async fn invalid_shard_watch_counts_as_free(rig: &StoreHarness) {
        let watch = shard_key_name(&test_key(), "watch");
        rig.server().key_command::<()>("SET", &watch, &["nobody"]).await;
        let id = rig.enqueue_job(&test_key()).await;
        rig.acquire_exclusive(&test_key(), &new_token()).await;
        assert!(!rig.job_view(&id).await.unwrap().is_watched);
        assert_eq!(rig.heartbeat(&NodeId::new(), SHORT_TIME).await.own_shards.len(), 64);
        assert!(rig.job_view(&id).await.unwrap().is_watched);
    }

    async fn queue_order_survives_lost_shard_counters(rig: &StoreHarness) {
        let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
        rig.register_worker().await;
        let fence = rig.acquire_exclusive(&key, &a).await;
        rig.join_queue(&key, &b).await;
        let job = rig.enqueue_job(&key).await;
        let shard_fields = shard_key_name(&key, "f");
        assert_eq!(rig.server().key_command::<i64>("DEL", &shard_fields, &[]).await, 1);
        rig.join_queue(&key, &c).await;
        rig.release(&key, &a).await;
        rig.expect_busy(&key, &c).await;
        assert!(rig.acquire_exclusive(&key, &b).await > fence, "fences grow all the same");
        rig.release(&key, &b).await;
        rig.expect_busy(&key, &c).await;
        let run = new_token();
        assert_eq!(rig.start_run(&key, &job, &run).await, 1, "b, the job, then c");
        assert!(rig.finish_run(&key, &job, &run).await);
        rig.acquire_exclusive(&key, &c).await;
    }

    async fn deleted_job_queue_leaves_no_keys(rig: &StoreHarness) {
        let (key, a) = (test_key(), new_token());
        rig.register_worker().await;
        rig.acquire_exclusive(&key, &a).await;
        let id = rig.enqueue_job(&key).await;
        let job_queue = lock_key_name(&key, "g");
        assert_eq!(rig.server().key_command::<i64>("DEL", &job_queue, &[]).await, 1);
        rig.release(&key, &a).await;
        rig.advance_past(LONG_TIME).await;
        let due = rig.poll_due(key.shard(), 10).await.locks;
        assert_eq!(due, std::slice::from_ref(&key));
        let outcome = rig.claim(claim_command(&key, &id, &new_token())).await;
        assert_eq!(outcome, ClaimOutcome::QueueEmpty);
        let due = rig.poll_due(key.shard(), 10).await;
        assert_eq!((due.locks.len(), due.next_due_in), (0, None));
        rig.advance_past(LONG_TIME).await;
        let leftover = rig.server().key_names().await;
        assert!(!leftover.contains(&lock_key_name(&key, "l")), "{leftover:?}");
        // The lock itself still works.
        rig.acquire_exclusive(&key, &new_token()).await;
    }

    /// An entry as a later version may write it, with another mode.
    async fn queue_entry_of_unknown_mode_keeps_its_position(rig: &StoreHarness) {
        let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
        rig.acquire_exclusive(&key, &a).await;
        let unix_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let deadline = (unix_time.unwrap() + LONG_TIME).as_millis();
        let entry = format!("{deadline}:z:{}", new_token().as_str());
        let (queue_key, seq) = (lock_key_name(&key, "q"), "7");
        let added: i64 = rig.server().key_command("ZADD", &queue_key, &[seq, &entry]).await;
        assert_eq!(added, 1);
        rig.join_queue(&key, &b).await;
        rig.release(&key, &a).await;
        // The lock is free, but neither a try-acquire nor a waiter may overtake the unknown entry.
        for _ in 0..3 {
            rig.expect_busy(&key, &c).await;
            let reply = rig.acquire(wait_command(&key, &b)).await;
            assert!(matches!(reply, AcquireReply::Busy { .. }), "{reply:?}");
            rig.let_offer_expire().await;
        }
        let first: Vec<String> = rig.server().key_command("ZRANGE", &queue_key, &["0", "0"]).await;
        assert!(first[0].contains(":z:"), "it was dropped: {first:?}");
        // The entry expires at its own deadline. Then `b`, which has rejoined, is first.
        rig.advance_past(LONG_TIME).await;
        rig.acquire_exclusive(&key, &b).await;
    }
}
