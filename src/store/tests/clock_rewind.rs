//! The store's clock is put back by an hour. Deadlines move by an hour and never come sooner;
//! fences and sequences continue to grow.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, done_settlement, new_token,
        retryable_enqueue_command, settle_command, test_key, try_acquire_command, wait_command,
    },
};
use crate::{
    key::Key,
    store::backend::{
        AcquireCommand, AcquireReply, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId,
        JobPolicy, JobState, LeaseRenewal, LockMode, LockToken, ReleaseOutcome, SPARE_FENCES,
        Settlement,
    },
};

on_every_store!(
    clock_rewind_keeps_holder_and_growing_fences,
    clock_rewind_delays_lease_end_and_keeps_queue_order,
    reacquire_after_clock_rewind_joins_behind_waiter,
    renewal_after_clock_rewind_never_shortens_lease,
    shared_holds_and_permits_survive_clock_rewind,
    clock_rewind_keeps_job_order_and_extends_delays,
    clock_rewind_allows_no_second_concurrent_run,
);

const HOUR: Duration = Duration::from_secs(3600);

async fn clock_rewind_keeps_holder_and_growing_fences(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    let mut last = rig.acquire_exclusive(&key, &a).await;
    let seq = rig.join_queue(&key, &b).await;
    rig.rewind_clock(HOUR).await;
    assert!(rig.expect_busy(&key, &c).await > HOUR, "the rewind extends the lease");
    assert!(rig.join_queue(&key, &c).await > seq, "a later entry has a larger sequence");
    for (holder, next) in [(&a, &b), (&b, &c)] {
        rig.release(&key, holder).await;
        rig.expect_busy(&key, &new_token()).await;
        let fence = rig.acquire_exclusive(&key, next).await;
        assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
        last = fence;
    }
    rig.release(&key, &c).await;
    assert!(rig.acquire_exclusive(&key, &a).await > last + SPARE_FENCES);
}

/// By the rewound clock, the new arrival precedes the waiters that joined before.
async fn reacquire_after_clock_rewind_joins_behind_waiter(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire_exclusive(&key, &a).await;
    // The shard has a sequence from before the rewind.
    rig.join_queue(&key, &c).await;
    rig.release(&key, &c).await;
    rig.rewind_clock(HOUR).await;
    rig.join_queue(&key, &c).await;
    let refresh = rig.refresh_grant(&key, &a).await.expect("it holds it");
    assert!(refresh.server_us < refresh.contenders.first);
    let call = AcquireCommand { resume_seq: refresh.server_us, ..wait_command(&key, &b) };
    let (released, reply) = rig.release_and_reacquire(&a, LockMode::Exclusive, call).await;
    assert_eq!(released, ReleaseOutcome::Released);
    assert!(matches!(reply, AcquireReply::Busy { has_joined: true, .. }), "{reply:?}");
    rig.acquire_exclusive(&key, &c).await;
    rig.release(&key, &c).await;
    rig.acquire_exclusive(&key, &b).await;
}

async fn clock_rewind_delays_lease_end_and_keeps_queue_order(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    let held =
        rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &a) }).await;
    let AcquireReply::Granted { fence, .. } = held else { panic!("{held:?}") };
    rig.join_queue(&key, &b).await;
    rig.rewind_clock(HOUR).await;
    rig.advance_past(SHORT_TIME).await;
    assert!(rig.expect_busy(&key, &c).await > HOUR - SHORT_TIME, "its lease ends later");
    rig.advance_past(HOUR).await;
    // A try-acquire advances the queue but does not get the lock itself.
    rig.expect_busy(&key, &c).await;
    let next = rig.acquire_exclusive(&key, &b).await;
    assert!(next > fence + SPARE_FENCES, "{next} after {fence}");
}

/// Such a renewal looks the same as a late copy that arrives after an extension.
async fn renewal_after_clock_rewind_never_shortens_lease(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    rig.acquire_exclusive(&key, &a).await;
    rig.rewind_clock(HOUR).await;
    let (renewed_key, token) = (key.clone(), a.clone());
    let renewal = LeaseRenewal {
        key: renewed_key,
        token,
        mode: LockMode::Exclusive,
        lease: SHORT_TIME,
        job: None,
    };
    assert_eq!(rig.renew(vec![renewal]).await, [true]);
    assert!(rig.expect_busy(&key, &b).await > HOUR);
    rig.release(&key, &a).await;
    rig.acquire_exclusive(&key, &b).await;
}

async fn shared_holds_and_permits_survive_clock_rewind(rig: &StoreHarness) {
    for (name, mode) in [("doc", LockMode::Shared), ("pool", LockMode::Permits(2))] {
        let (key, a, b, other) = (Key::custom(name), new_token(), new_token(), new_token());
        let command =
            |token: &LockToken| AcquireCommand { mode, ..try_acquire_command(&key, token) };
        for token in [&a, &b] {
            let held = rig.acquire(command(token)).await;
            assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        }
        rig.rewind_clock(HOUR).await;
        rig.expect_busy(&key, &other).await;
        if mode != LockMode::Shared {
            let third = rig.acquire(command(&other)).await;
            assert!(matches!(third, AcquireReply::Busy { .. }), "{third:?}");
        }
        rig.advance_past(LONG_TIME).await;
        rig.expect_busy(&key, &other).await;
        rig.advance_past(HOUR).await;
        rig.acquire_exclusive(&key, &other).await;
    }
}

/// Runs the job at the queue head, which must be `id`. Returns its fence.
async fn run_head_job(rig: &StoreHarness, key: &Key, id: &JobId, last: u64) -> u64 {
    assert_eq!(rig.heads(std::slice::from_ref(key)).await, [Some(id.clone())]);
    let token = new_token();
    let ClaimOutcome::Claimed(run) = rig.claim(claim_command(key, id, &token)).await else {
        panic!("no entry precedes the job")
    };
    assert!(run.fence > last, "{} after {last}", run.fence);
    assert!(rig.finish_run(key, id, &token).await);
    run.fence
}

async fn clock_rewind_keeps_job_order_and_extends_delays(rig: &StoreHarness) {
    let (key, token) = (test_key(), new_token());
    rig.register_worker().await;
    let (first, second) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    let late = retryable_enqueue_command(&Key::custom("late"));
    let late = EnqueueCommand { policy: JobPolicy { delay: SHORT_TIME, ..late.policy }, ..late };
    assert!(matches!(rig.enqueue(late.clone()).await, EnqueueOutcome::Stored { .. }));
    let ClaimOutcome::Claimed(run) = rig.claim(claim_command(&key, &first, &token)).await else {
        panic!("it is first")
    };
    rig.rewind_clock(HOUR).await;
    let third = rig.enqueue_job(&key).await;
    assert!(rig.finish_run(&key, &first, &token).await, "it is still its run");
    let fence = run_head_job(rig, &key, &second, run.fence).await;
    run_head_job(rig, &key, &third, fence).await;
    let claim = async || rig.claim(claim_command(&late.key, &late.id, &new_token())).await;
    rig.advance_past(SHORT_TIME).await;
    assert_ne!(rig.job_state(&late.id).await, Some(JobState::Done));
    let early = claim().await;
    assert!(!matches!(early, ClaimOutcome::Claimed(_)), "{early:?}");
    rig.advance_past(HOUR).await;
    rig.poll_due(late.key.shard(), 10).await;
    let after_delay = claim().await;
    assert!(matches!(after_delay, ClaimOutcome::Claimed(_)), "{after_delay:?}");
}

async fn clock_rewind_allows_no_second_concurrent_run(rig: &StoreHarness) {
    let (key, old, new) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let ClaimOutcome::Claimed(run) = rig.claim(claim_command(&key, &id, &old)).await else {
        panic!("it is first")
    };
    rig.rewind_clock(HOUR).await;
    rig.advance_past(LONG_TIME).await;
    let early = rig.claim(claim_command(&key, &id, &new)).await;
    assert!(matches!(early, ClaimOutcome::Busy(_)), "{early:?}");
    rig.advance_past(HOUR).await;
    let ClaimOutcome::Claimed(next) = rig.claim(claim_command(&key, &id, &new)).await else {
        panic!("its lease is over")
    };
    assert!(next.fence > run.fence, "{} after {}", next.fence, run.fence);
    assert!(
        !rig.settle(settle_command(&key, &id, &old, done_settlement())).await,
        "it is another one's"
    );
    let settlement = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
    assert!(rig.settle(settle_command(&key, &id, &new, settlement)).await);
    // A backoff that has begun becomes longer, too.
    rig.rewind_clock(HOUR).await;
    rig.advance_past(SHORT_TIME).await;
    let early = rig.claim(claim_command(&key, &id, &new_token())).await;
    assert!(!matches!(early, ClaimOutcome::Claimed(_)), "{early:?}");
    rig.advance_past(HOUR).await;
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 3);
}
