//! Failovers to a replica that lacks the last grants and has another clock than its master. Fences
//! of the successor exceed all earlier ones, spare ones included.

use futures_util::future::join_all;

use super::{
    MAX_WAIT, SECOND, acquire_with_retries,
    sentinel::{fake_sentinel::FakeSentinel, wait_until_replicated},
    server_process::ServerProcess,
    wait_for, wait_until, wait_until_usable,
};
use crate::{
    LockGuard,
    key::Key,
    lock::ReleaseStatus,
    store::{SPARE_FENCES, Store, key_names::KeyNames},
};

/// Lead of fences over the clock after a failover, in µs.
const FENCE_LEAD_US: u64 = 600_000_000;

/// Number of grants that the replica lacks.
const LOST_GRANTS: usize = 50;

/// Leads of the replica's clock over the master's, in seconds.
const REPLICA_CLOCKS: [i64; 4] = [0, -5, -60, 60];

fn fence_key() -> String {
    KeyNames::new("test").shard_key(Key::custom("x").shard(), "f")
}

async fn last_fence(server: &ServerProcess) -> u64 {
    server.query(&["HGET", &fence_key(), "fence"]).await
}

/// Returns the time of the server, in µs.
async fn server_time_us(server: &ServerProcess) -> u64 {
    let (seconds, us): (u64, u64) = server.query(&["TIME"]).await;
    seconds * 1_000_000 + us
}

/// A master that a sentinel names, and a process that uses it.
struct FenceScenario {
    master: ServerProcess,
    sentinel: FakeSentinel,
    store: Store,
}

impl FenceScenario {
    /// Creates a scenario in which fences do not exceed the clock, as in a namespace that is
    /// minutes old.
    async fn new() -> Self {
        let scene = Self::with_new_namespace().await;
        let now = server_time_us(&scene.master).await;
        scene.master.command(&["HSET", &fence_key(), "fence", &now.to_string()]).await;
        scene
    }

    async fn with_new_namespace() -> Self {
        let master = ServerProcess::start_with_clock_lead(0).await;
        let sentinel = FakeSentinel::monitoring(master.port()).await;
        let store = connect_process(&sentinel).await;
        drop(acquire_with_retries(&store.lock("x")).await);
        Self { master, sentinel, store }
    }

    /// Fails over to a replica with this clock, which lacks the last grants. Returns the largest
    /// fence granted before, spare ones included, and its guard, which is not released.
    async fn fail_over(&mut self, clock_lead: i64) -> (u64, LockGuard) {
        let replica = ServerProcess::start_with_clock_lead(clock_lead).await;
        replica.command(&["REPLICAOF", "127.0.0.1", &self.master.port().to_string()]).await;
        wait_until_replicated(&replica).await;
        wait_until("the replica to have all", async || {
            last_fence(&replica).await == last_fence(&self.master).await
        })
        .await;
        // Stops replication.
        replica.command(&["REPLICAOF", "NO", "ONE"]).await;
        for _ in 0..LOST_GRANTS {
            acquire_with_retries(&self.store.lock("x")).await.release().await;
        }
        let held = acquire_with_retries(&self.store.lock("x").lease(60 * SECOND)).await;
        self.sentinel.set_master(replica.port());
        self.master.kill();
        self.master = replica;
        (held.fence() + SPARE_FENCES, held)
    }
}

async fn connect_process(sentinel: &FakeSentinel) -> Store {
    let builder = Store::builder(&sentinel.url()).call_timeout(10 * SECOND);
    builder.connect().await.expect("the URL is right")
}

/// Asserts that fences grow: with the next holder in `first`, then with another one in `then`.
async fn assert_fences_grow(
    before: u64,
    lost: LockGuard,
    first: &Store,
    then: &Store,
    context: &str,
) {
    // A process checks its leases at its first call to the new server.
    wait_until_usable(first).await;
    wait_until_usable(then).await;
    wait_for("the loss to be reported", lost.lost()).await;
    let mut last = before;
    for store in [first, then] {
        let next = acquire_with_retries(&store.lock("x")).await;
        assert!(next.fence() > last, "{context}: {} after {last}", next.fence());
        last = next.fence() + SPARE_FENCES;
        assert_eq!(next.release().await, ReleaseStatus::Released);
    }
    assert_eq!(lost.release().await, ReleaseStatus::AlreadyLost);
}

/// Also if fences are still ahead of the clock after the first failover, and the second sets the
/// clock back once more.
#[tokio::test]
async fn fences_grow_over_two_failovers_without_adding_their_leads() {
    let clocks = [(0, 0), (-5, -10), (-60, -120), (-60, 0), (60, 0)];
    join_all(clocks.map(async |(first, second)| {
        let context = format!("{first} s, then {second} s");
        let mut scene = FenceScenario::new().await;
        let (before, lost) = scene.fail_over(first).await;
        let other = connect_process(&scene.sentinel).await;
        assert_fences_grow(before, lost, &other, &scene.store, &context).await;
        let (before, lost) = scene.fail_over(second).await;
        assert_fences_grow(
            before,
            lost,
            &connect_process(&scene.sentinel).await,
            &scene.store,
            &context,
        )
        .await;
        // The first failover may have raised fences further than the second, by the difference of
        // the clocks.
        let clock_difference =
            u64::try_from((first - second).max(0)).expect("not below 0") * 1_000_000;
        let (last, now) = (last_fence(&scene.master).await, server_time_us(&scene.master).await);
        assert!(
            last < now + clock_difference + FENCE_LEAD_US + 3_000_000,
            "{context}: {} us beyond the server time",
            last - now
        );
    }))
    .await;
}

#[tokio::test]
async fn fences_grow_over_failover_and_data_loss() {
    join_all(REPLICA_CLOCKS.map(async |clock_lead| {
        let mut scene = FenceScenario::new().await;
        let (before, lost) = scene.fail_over(clock_lead).await;
        let other = connect_process(&scene.sentinel).await;
        // The process that held the lock acquires first here. After two failovers, another one
        // does.
        assert_fences_grow(before, lost, &scene.store, &other, &format!("{clock_lead} s")).await;
        let held = acquire_with_retries(&scene.store.lock("x")).await;
        scene.master.command(&["FLUSHALL"]).await;
        // Once over an existing connection, and once over a new one.
        let next = acquire_with_retries(&other.lock("x")).await;
        let (fence, before) = (next.fence(), held.fence() + SPARE_FENCES);
        assert!(fence > before, "{clock_lead} s: {fence} after {before}");
        assert_eq!(next.release().await, ReleaseStatus::Released);
        let third = acquire_with_retries(&connect_process(&scene.sentinel).await.lock("x")).await;
        assert!(third.fence() > fence + SPARE_FENCES, "{clock_lead} s: {}", third.fence());
    }))
    .await;
}

/// Fences of a new namespace are still ahead of the clock.
#[tokio::test]
async fn fences_grow_over_failover_of_new_namespace() {
    let mut scene = FenceScenario::with_new_namespace().await;
    let (before, lost) = scene.fail_over(-60).await;
    let other = connect_process(&scene.sentinel).await;
    assert_fences_grow(before, lost, &other, &scene.store, "young").await;
}

/// Each connection of many processes meets a new server.
#[tokio::test]
async fn failover_raises_fences_only_once() {
    let mut scene = FenceScenario::new().await;
    let (before, lost) = scene.fail_over(-5).await;
    let connect_many = async || {
        let stores = join_all((0..8).map(|_| connect_process(&scene.sentinel))).await;
        // Each lane connects at its first use.
        join_all(stores.iter().flat_map(|store| {
            (0..8).map(async |n: u32| {
                drop(acquire_with_retries(&store.lock(n.to_string()).wait(MAX_WAIT)).await);
            })
        }))
        .await;
        last_fence(&scene.master).await
    };
    let floor = connect_many().await;
    assert!(
        floor > before && floor <= server_time_us(&scene.master).await + FENCE_LEAD_US,
        "{floor}"
    );
    assert_eq!(connect_many().await, floor);
    drop(lost);
}
