//! A master dies with what its replica has not got: row 14 of locks, row 9 of quotas.
//!
//! The replica hears nothing more of its master before that is written. So what must be lost is known one by one, and so
//! is what must not: all that a replica was known to have.

use super::{
    super::{
        super::{eventually, granted},
        charge, insist, is_clean,
    },
    GOES, SECOND, Scene,
};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{backend::SPARE_FENCES, key_names::KeyNames, tests::cluster::signal as tell},
};

/// The replica of [`GOES`].
const REPLICA: usize = GOES + 3;

const LIMIT: u64 = 20;

impl Scene {
    /// From now on the replica hears nothing; how it is woken.
    async fn cut_off(&self) -> String {
        // It answers nothing once it stands still.
        let replica = self.cluster.process(REPLICA).await;
        tell(&replica, "-STOP");
        self.cluster.command(GOES, &["CLIENT", "KILL", "TYPE", "replica"]).await;
        replica
    }

    /// The master dies, and the replica wakes and takes over.
    async fn fails_over(&self, replica: &str) {
        let wakes = async {
            tokio::time::sleep(SECOND / 10).await;
            tell(replica, "-CONT");
        };
        tokio::join!(self.goes(), wakes);
    }

    async fn have(&self, key: &Key) -> u32 {
        let since = self.store.backend().server_generation();
        self.store.backend().wait_for_replicas(key.shard(), 1, since).await.unwrap_or(0)
    }
}

/// The clock of the master is a minute ahead: as far as its last grants tell.
#[tokio::test]
async fn fences_grow_where_the_clock_of_the_replica_is_behind() {
    let scene = Scene::new(5 * SECOND).await;
    let key = scene.of[GOES][4].clone();
    let pass = async || insist(async || scene.pass(&key).await).await.expect("it is free");
    pass().await;
    let f = KeyNames::new("death").clustered().shard_key(key.shard(), "f");
    let (seconds, _): (u64, u64) = scene.cluster.ask(GOES, &["TIME"]).await;
    // The namespace is minutes old: fences are no further than the clock.
    let now = (seconds * 1_000_000).to_string();
    scene.cluster.command(GOES, &["HSET", &f, "fence", &now]).await;
    pass().await;
    eventually("its replica to have it", async || scene.have(&key).await == 1).await;
    let replica = scene.cut_off().await;
    scene.cluster.command(GOES, &["HINCRBY", &f, "fence", "60000000"]).await;
    let mut last = 0;
    for _ in 0..50 {
        last = pass().await;
    }
    scene.fails_over(&replica).await;
    let next = pass().await;
    assert!(next > last + SPARE_FENCES, "{next} after {last}");
    // By no other process a second time.
    let before: u64 = scene.cluster.ask(REPLICA, &["HGET", &f, "fence"]).await;
    let other = scene.cluster.builder("death").call_timeout(5 * SECOND).connect().await;
    let other = granted(&other.expect("the URL is right").lock(key.clone())).await;
    assert_eq!(before + SPARE_FENCES + 1, other.fence());
}

impl Scene {
    /// So many charges, if the quota has as many: how many were let in, and of how many nobody knows.
    async fn charges(&self, key: &Key, number: u64) -> (u64, u64) {
        let (mut admitted, mut perhaps) = (0, 0);
        while admitted < number {
            match self.store.backend().charge(charge(key, LIMIT)).await {
                Ok(charged) if charged.admitted == 0 => break,
                Ok(_) => admitted += 1,
                Err(error) if error.kind() == ErrorKind::Timeout => perhaps += 1,
                // Nobody is let in, and nothing is charged.
                Err(_) => tokio::time::sleep(SECOND / 100).await,
            }
        }
        (admitted, perhaps)
    }
}

#[tokio::test]
async fn of_a_quota_no_more_is_let_in_than_a_dead_master_alone_had() {
    // A machine that has other things to do is no fault here.
    let scene = Scene::new(5 * SECOND).await;
    let key = scene.of[GOES][4].clone();
    let (with, without) = (LIMIT / 2, LIMIT / 4);
    assert_eq!(scene.charges(&key, with).await, (with, 0));
    eventually("its replica to have it", async || scene.have(&key).await == 1).await;
    let replica = scene.cut_off().await;
    assert_eq!(scene.charges(&key, without).await, (without, 0));
    scene.fails_over(&replica).await;
    let (after, perhaps) = scene.charges(&key, LIMIT).await;
    println!("figure: let in beyond a quota {}", (with + without + after).saturating_sub(LIMIT));
    // What the replica had is kept, and what it had not is let in again: not one more, nor less.
    assert!((LIMIT - with - perhaps..=LIMIT - with).contains(&after), "{after}, {perhaps} perhaps");
    is_clean(&scene.store).await;
}
