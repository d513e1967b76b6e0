//! Behind sentinels.

use super::{Plan, World, fails_over};

#[tokio::test]
async fn a_master_that_is_killed_is_left_for_the_one_that_is_promoted() {
    fails_over(World::sentinels().await, Plan { replicas: 0, kills: true }).await;
}

#[tokio::test]
async fn with_a_replica_no_two_hold_a_lock_while_their_master_is_killed() {
    fails_over(World::sentinels().await, Plan { replicas: 1, kills: true }).await;
}

#[tokio::test]
async fn with_a_replica_no_two_hold_a_lock_while_their_master_stands_still() {
    fails_over(World::sentinels().await, Plan { replicas: 1, kills: false }).await;
}
