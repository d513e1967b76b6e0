//! The store's clock is put back by an hour: what was to end ends later by that, and nothing sooner; fences and
//! sequences go on from where they were.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, ask, done, key, settled, stranger, visit, wait},
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
    a_holder_stays_the_only_one_and_the_next_fence_is_larger,
    a_dead_holder_is_followed_later_and_in_turn,
    who_passes_is_not_taken_for_the_first,
    a_renewal_shortens_nothing_and_a_release_does,
    readers_and_permits_keep_out_whom_they_kept_out,
    jobs_run_in_order_and_what_waited_waits_longer,
    a_run_that_is_open_is_not_begun_by_another_one,
);

const HOUR: Duration = Duration::from_secs(3600);

async fn a_holder_stays_the_only_one_and_the_next_fence_is_larger(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    let mut last = rig.hold(&key, &a).await;
    let seq = rig.join(&key, &b).await;
    rig.put_back(HOUR).await;
    assert!(rig.refused(&key, &c).await > HOUR, "it is held for as much longer");
    assert!(rig.join(&key, &c).await > seq, "who comes later stands behind");
    for (holder, next) in [(&a, &b), (&b, &c)] {
        rig.release(&key, holder).await;
        rig.refused(&key, &stranger()).await;
        let fence = rig.hold(&key, next).await;
        assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
        last = fence;
    }
    rig.release(&key, &c).await;
    assert!(rig.hold(&key, &a).await > last + SPARE_FENCES);
}

/// By the clock all who come now came before those who wait.
async fn who_passes_is_not_taken_for_the_first(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    // The shard has a sequence from before.
    rig.join(&key, &c).await;
    rig.release(&key, &c).await;
    rig.put_back(HOUR).await;
    rig.join(&key, &c).await;
    let told = rig.still(&key, &a).await.expect("it holds it");
    assert!(told.server_us < told.contenders.first);
    let call = AcquireCommand { resume_seq: told.server_us, ..wait(&key, &b) };
    let (gave_back, asked) = rig.hand_on(&a, LockMode::Exclusive, call).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { has_joined: true, .. }), "{asked:?}");
    rig.hold(&key, &c).await;
    rig.release(&key, &c).await;
    rig.hold(&key, &b).await;
}

async fn a_dead_holder_is_followed_later_and_in_turn(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    let held = rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, &a) }).await;
    let AcquireReply::Granted { fence, .. } = held else { panic!("{held:?}") };
    rig.join(&key, &b).await;
    rig.put_back(HOUR).await;
    rig.pass(SHORT).await;
    assert!(rig.refused(&key, &c).await > HOUR - SHORT, "its lease ends later");
    rig.pass(HOUR).await;
    // Whoever comes moves the line on, and is not let in himself.
    rig.refused(&key, &c).await;
    let next = rig.hold(&key, &b).await;
    assert!(next > fence + SPARE_FENCES, "{next} after {fence}");
}

/// Nobody can tell it from one that comes late, behind an extension.
async fn a_renewal_shortens_nothing_and_a_release_does(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    rig.hold(&key, &a).await;
    rig.put_back(HOUR).await;
    let (of, me) = (key.clone(), a.clone());
    let renewal =
        LeaseRenewal { key: of, token: me, mode: LockMode::Exclusive, lease: SHORT, job: None };
    assert_eq!(rig.renew(vec![renewal]).await, [true]);
    assert!(rig.refused(&key, &b).await > HOUR);
    rig.release(&key, &a).await;
    rig.hold(&key, &b).await;
}

async fn readers_and_permits_keep_out_whom_they_kept_out(rig: &Rig) {
    for (name, mode) in [("doc", LockMode::Shared), ("pool", LockMode::Permits(2))] {
        let (key, a, b, other) = (Key::custom(name), stranger(), stranger(), stranger());
        let asks = |me: &LockToken| AcquireCommand { mode, ..ask(&key, me) };
        for me in [&a, &b] {
            let held = rig.acquire(asks(me)).await;
            assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        }
        rig.put_back(HOUR).await;
        rig.refused(&key, &other).await;
        if mode != LockMode::Shared {
            let third = rig.acquire(asks(&other)).await;
            assert!(matches!(third, AcquireReply::Busy { .. }), "{third:?}");
        }
        rig.pass(LONG).await;
        rig.refused(&key, &other).await;
        rig.pass(HOUR).await;
        rig.hold(&key, &other).await;
    }
}

/// Of the first one in line, which is this one.
async fn runs(rig: &Rig, key: &Key, id: &JobId, last: u64) -> u64 {
    assert_eq!(rig.heads(std::slice::from_ref(key)).await, [Some(id.clone())]);
    let me = stranger();
    let ClaimOutcome::Claimed(run) = rig.claim(visit(key, id, &me)).await else {
        panic!("nobody stands before it")
    };
    assert!(run.fence > last, "{} after {last}", run.fence);
    assert!(rig.finish(key, id, &me).await);
    run.fence
}

async fn jobs_run_in_order_and_what_waited_waits_longer(rig: &Rig) {
    let (key, me) = (key(), stranger());
    rig.worker().await;
    let (first, second) = (rig.put_off(&key).await, rig.put_off(&key).await);
    let late = again(&Key::custom("late"));
    let late = EnqueueCommand { policy: JobPolicy { delay: SHORT, ..late.policy }, ..late };
    assert!(matches!(rig.enqueue(late.clone()).await, EnqueueOutcome::Stored { .. }));
    let ClaimOutcome::Claimed(run) = rig.claim(visit(&key, &first, &me)).await else {
        panic!("it is first")
    };
    rig.put_back(HOUR).await;
    let third = rig.put_off(&key).await;
    assert!(rig.finish(&key, &first, &me).await, "it is still its run");
    let fence = runs(rig, &key, &second, run.fence).await;
    runs(rig, &key, &third, fence).await;
    let visits = async || rig.claim(visit(&late.key, &late.id, &stranger())).await;
    rig.pass(SHORT).await;
    assert_ne!(rig.state(&late.id).await, Some(JobState::Done));
    let early = visits().await;
    assert!(!matches!(early, ClaimOutcome::Claimed(_)), "{early:?}");
    rig.pass(HOUR).await;
    rig.due(late.key.shard(), 10).await;
    let then = visits().await;
    assert!(matches!(then, ClaimOutcome::Claimed(_)), "{then:?}");
}

async fn a_run_that_is_open_is_not_begun_by_another_one(rig: &Rig) {
    let (key, old, new) = (key(), stranger(), stranger());
    rig.worker().await;
    let call = again(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let ClaimOutcome::Claimed(run) = rig.claim(visit(&key, &id, &old)).await else {
        panic!("it is first")
    };
    rig.put_back(HOUR).await;
    rig.pass(LONG).await;
    let early = rig.claim(visit(&key, &id, &new)).await;
    assert!(matches!(early, ClaimOutcome::Busy(_)), "{early:?}");
    rig.pass(HOUR).await;
    let ClaimOutcome::Claimed(next) = rig.claim(visit(&key, &id, &new)).await else {
        panic!("its lease is over")
    };
    assert!(next.fence > run.fence, "{} after {}", next.fence, run.fence);
    assert!(!rig.settle(settled(&key, &id, &old, done())).await, "it is another one's");
    let verdict = Settlement::Retry { delay: SHORT, reason: "status 500" };
    assert!(rig.settle(settled(&key, &id, &new, verdict)).await);
    // A backoff that has begun is longer, too.
    rig.put_back(HOUR).await;
    rig.pass(SHORT).await;
    let early = rig.claim(visit(&key, &id, &stranger())).await;
    assert!(!matches!(early, ClaimOutcome::Claimed(_)), "{early:?}");
    rig.pass(HOUR).await;
    assert_eq!(rig.start(&key, &id, &stranger()).await, 3);
}
