//! What operators may do to jobs of which something has vanished: none of it is in the way of others, and nothing of
//! it counts for ever.

use super::{
    rig::{Rig, deferred, key, stranger, visit},
    vanished::{called, counted, stored, vanishes},
};
use crate::store::backend::{Claimed, JobState};

/// Its request is there still, so it may be put back; what else its facts said is nobody's any more.
#[tokio::test]
async fn a_lost_job_that_is_put_back_runs() {
    let rig = Rig::redis().await;
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let lost = stored(&rig, called(deferred(&key))).await;
    vanishes(&rig, &key, &format!("j:{lost}")).await;
    assert_eq!(rig.claim(visit(&key, &lost, &stranger())).await, Claimed::Dead(lost.clone()));
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    let next = stored(&rig, deferred(&key)).await;
    assert_eq!(rig.start(&key, &lost, &run).await, 1);
    // The answer was lost on the way.
    assert!(matches!(rig.claim(visit(&key, &lost, &run)).await, Claimed::Claimed(_)));
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
