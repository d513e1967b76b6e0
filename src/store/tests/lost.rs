//! What operators may do to jobs of which something has vanished: none of it is in the way of others, and nothing of
//! it counts for ever.

use std::time::Duration;

use super::{
    rig::{LONG, Rig, SHORT, deferred, key, neighbours, settled, stranger, visit},
    vanished::{called, counted, late, stored, vanishes},
};
use crate::{
    Key,
    store::backend::{
        ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobState, Settlement, StorageLimits,
    },
};

/// Its request is there still, so it may be put back; what else its facts said is nobody's any more.
#[tokio::test]
async fn a_lost_job_that_is_put_back_runs() {
    let rig = Rig::redis().await;
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let lost = stored(&rig, called(deferred(&key))).await;
    vanishes(&rig, &key, &format!("j:{lost}")).await;
    assert_eq!(rig.claim(visit(&key, &lost, &stranger())).await, ClaimOutcome::Ended(lost.clone()));
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    let next = stored(&rig, deferred(&key)).await;
    assert_eq!(rig.start(&key, &lost, &run).await, 1);
    // The answer was lost on the way.
    assert!(matches!(rig.claim(visit(&key, &lost, &run)).await, ClaimOutcome::Claimed(_)));
    assert!(rig.finish(&key, &lost, &run).await);
    let run = stranger();
    assert_eq!(rig.start(&key, &next, &run).await, 1);
    assert!(rig.finish(&key, &next, &run).await);
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    // The same, and it is not run any more.
    let lost = stored(&rig, deferred(&key)).await;
    vanishes(&rig, &key, &format!("j:{lost}")).await;
    rig.claim(visit(&key, &lost, &stranger())).await;
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    assert_eq!(rig.cancel(&lost).await, Some(JobState::Cancelled));
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
}

#[tokio::test]
async fn late_jobs_of_a_lock_are_counted_as_they_are_when_one_has_vanished() {
    let rig = Rig::redis().await;
    let [one, two] = neighbours::<2>();
    let caps = StorageLimits { resource_jobs: 2, ..StorageLimits::NONE };
    let call = |key: &Key, delay| EnqueueCommand { limits: caps, ..late(key, delay, None) };
    let lost = stored(&rig, call(&one, SHORT)).await;
    let waits = stored(&rig, call(&one, LONG)).await;
    let other = stored(&rig, call(&two, LONG)).await;
    vanishes(&rig, &one, &format!("j:{lost}")).await;
    rig.pass(SHORT).await;
    rig.due(one.shard(), 10).await;
    stored(&rig, call(&one, LONG)).await;
    assert_eq!(
        rig.enqueue(call(&one, LONG)).await,
        EnqueueOutcome::Full,
        "those that are there count"
    );
    stored(&rig, call(&two, LONG)).await;
    assert_eq!(rig.enqueue(call(&two, LONG)).await, EnqueueOutcome::Full);
    for id in [waits, other] {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    stored(&rig, call(&one, LONG)).await;
    stored(&rig, call(&two, LONG)).await;
    assert_eq!(rig.enqueue(call(&one, LONG)).await, EnqueueOutcome::Full);
}

/// Runs all that is due in the shard, until nothing is.
async fn all_run(rig: &Rig, shard: u16) {
    for _ in 0..20 {
        rig.miss_the_window().await;
        let due = rig.due(shard, 10).await.names;
        if due.is_empty() {
            return;
        }
        for key in due {
            let Some(id) = rig.heads(std::slice::from_ref(&key)).await.remove(0) else { continue };
            let run = stranger();
            if let ClaimOutcome::Claimed(_) = rig.claim(visit(&key, &id, &run)).await {
                assert!(rig.finish(&key, &id, &run).await);
            }
        }
    }
    panic!("there is no end to it");
}

/// What is counted of those that have ended is what the books say of each, for as long as there are any.
async fn books(rig: &Rig, key: &Key, kind: &str) {
    let name = |name: &str| format!("{{{}}}:{name}", key.shard());
    if rig.server().raw::<i64>("EXISTS", &name(kind), &[]).await == 0 {
        return;
    }
    let sum = format!("{kind}_bytes");
    let sum: Vec<Option<i64>> = rig.server().raw("HMGET", &name("f"), &[sum.as_str()]).await;
    let each: Vec<String> = rig.server().raw("HVALS", &name(&format!("{kind}bytes")), &[]).await;
    let bytes = |text: &String| text.split(' ').next().unwrap().parse::<i64>().unwrap();
    assert_eq!(sum[0].unwrap_or(0), each.iter().map(bytes).sum::<i64>(), "{kind}");
}

#[tokio::test]
async fn whatever_has_vanished_is_in_nobodys_way_when_somebody_sees_to_it() {
    let rig = Rig::redis().await;
    rig.worker().await;
    let key = key();
    for vanished in ["j", "b", "t"] {
        for state in ["in line", "late", "running", "dead"] {
            for verb in ["redrive", "cancel", "purge"] {
                let case = format!("{verb} of what is {state} without {vanished}");
                let delay = if state == "late" { SHORT } else { Duration::ZERO };
                let owner = "ada".into();
                let id =
                    stored(&rig, called(EnqueueCommand { owner, ..late(&key, delay, None) })).await;
                if matches!(state, "running" | "dead") {
                    let run = stranger();
                    rig.start(&key, &id, &run).await;
                    if state == "dead" {
                        let verdict = Settlement::Dead { reason: "auth", retention: LONG };
                        assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
                    }
                }
                vanishes(&rig, &key, &format!("{vanished}:{id}")).await;
                for _ in 0..2 {
                    let _ = match verb {
                        "redrive" => rig.redrive(&id).await.is_some(),
                        "cancel" => rig.cancel(&id).await.is_some(),
                        _ => rig.purge(&id).await,
                    };
                }
                let next = rig.put_off(&key).await;
                rig.pass(2 * LONG).await;
                rig.worker().await;
                all_run(&rig, key.shard()).await;
                assert_eq!(rig.state(&next).await, Some(JobState::Done), "{case}");
                assert_eq!(counted(&rig, &key).await, ["0", "0"], "{case}");
                // Once more, when it has ended.
                let _ = rig.redrive(&id).await;
                all_run(&rig, key.shard()).await;
                let _ = rig.purge(&id).await;
                assert_eq!(rig.state(&id).await, None, "{case}");
                assert_eq!(counted(&rig, &key).await, ["0", "0"], "{case}");
                for kind in ["done", "dead"] {
                    books(&rig, &key, kind).await;
                }
            }
        }
    }
}
