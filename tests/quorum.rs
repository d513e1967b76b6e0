//! Quorum lock over five independent servers, which are killed and frozen.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::{AcquireError, ErrorKind, Quorum, QuorumGuard, ReleaseStatus, Store};
use lockgate_tests::{RedisServer, TEST_TIMEOUT, eventually, with_timeout};

/// Long enough for the call timeout of each server and for a validity time on a loaded machine.
const QUORUM_LEASE: Duration = Duration::from_secs(5);

struct QuorumServers {
    servers: Vec<RedisServer>,
    quorum: Quorum,
}

impl QuorumServers {
    async fn new() -> Self {
        let mut servers = Vec::new();
        for _ in 0..5 {
            servers.push(RedisServer::start().await);
        }
        let quorum = connect_quorum(&servers).await;
        Self { servers, quorum }
    }

    async fn acquire(&self) -> Result<QuorumGuard, AcquireError> {
        with_timeout("an answer", self.quorum.lock("x").lease(QUORUM_LEASE).acquire()).await
    }

    /// Acquires with a wait, so that a short stall of the machine does not matter.
    async fn acquire_with_wait(&self) -> QuorumGuard {
        let request = self.quorum.lock("x").lease(QUORUM_LEASE).wait(TEST_TIMEOUT);
        with_timeout("the lock", request.acquire()).await.expect("a majority is there")
    }

    /// Waits until the lock is busy. With three of five servers running, one stalled server denies
    /// the majority to both attempts.
    async fn wait_until_busy(&self) {
        eventually("it to be busy", async || {
            matches!(self.acquire().await, Err(AcquireError::Busy(_)))
        })
        .await;
    }

    /// Waits until these servers have no keys except those that are persistent by design.
    async fn wait_until_clean(&self, servers: &[usize]) {
        for index in servers {
            let server = &self.servers[*index];
            eventually("the node to be clean", async || {
                server.leftover_lock_keys("*").await.is_empty()
            })
            .await;
        }
    }
}

/// Connects like another process.
async fn connect_quorum(servers: &[RedisServer]) -> Quorum {
    let mut stores = Vec::new();
    for server in servers {
        stores.push(Store::connect(&server.url("quorum")).await.expect("the URL is right"));
    }
    Store::quorum(stores).expect("five stores")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_survives_two_dead_nodes_and_fails_with_three() {
    let mut cluster = QuorumServers::new().await;
    let mut last_fence = 0;
    for index in [4, 0] {
        let guard = cluster.acquire_with_wait().await;
        assert!(guard.fence() > last_fence);
        last_fence = guard.fence();
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        cluster.servers[index].kill();
    }
    let guard = cluster.acquire_with_wait().await;
    assert!(guard.fence() > last_fence);
    cluster.wait_until_busy().await;
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    cluster.servers[2].kill();
    let started = Instant::now();
    let request =
        cluster.quorum.lock("x").lease(QUORUM_LEASE * 10).wait(Duration::from_millis(500));
    let Err(AcquireError::Fault(error)) = request.acquire().await else {
        panic!("two of five are no majority")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let refused_after = started.elapsed();
    println!("figure: refused without a majority after {} ms", refused_after.as_millis());
    assert!(refused_after < Duration::from_secs(10), "{refused_after:?}");
    // Long before the leases of the failed attempts would have ended.
    cluster.wait_until_clean(&[1, 3]).await;
    let clean_after = started.elapsed();
    println!("figure: votes released after {} ms", clean_after.as_millis());
    assert!(clean_after < QUORUM_LEASE * 5, "{clean_after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_frozen_nodes_are_tolerated_and_three_refuse_acquire() {
    let cluster = QuorumServers::new().await;
    drop(cluster.acquire_with_wait().await);
    cluster.servers[0].pause();
    cluster.servers[3].pause();
    let guard = cluster.acquire_with_wait().await;
    cluster.wait_until_busy().await;
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    cluster.servers[1].pause();
    let started = Instant::now();
    assert!(matches!(cluster.acquire().await, Err(AcquireError::Fault(_))));
    let refused_after = started.elapsed();
    println!("figure: refused by frozen nodes after {} ms", refused_after.as_millis());
    assert!(refused_after < Duration::from_secs(10), "{refused_after:?}");
    for index in [0, 1, 3] {
        cluster.servers[index].resume();
    }
    // Calls in the sockets of the frozen servers are granted now, without a caller, and undone.
    cluster.wait_until_clean(&[0, 1, 2, 3, 4]).await;
    drop(cluster.acquire_with_wait().await);
    cluster.wait_until_clean(&[0, 1, 2, 3, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_survives_two_nodes_and_is_lost_with_the_third() {
    let mut site = QuorumServers::new().await;
    let guard = site.acquire_with_wait().await;
    let count_leases = async |site: &QuorumServers| {
        let mut lease_count = 0;
        for server in &site.servers {
            let Ok(store) = Store::connect(&server.url("quorum")).await else { continue };
            lease_count +=
                usize::from(matches!(store.lock("x").acquire().await, Err(AcquireError::Busy(_))));
        }
        lease_count
    };
    eventually("all to have granted it", async || count_leases(&site).await == 5).await;
    site.servers[1].kill();
    site.servers[4].pause();
    tokio::time::sleep(QUORUM_LEASE * 5 / 4).await;
    assert_eq!(guard.loss(), None);
    // The server restarts empty and is asked for the lease again, so the holder regains its margin.
    site.servers[1].restart().await;
    eventually("the restarted one to have granted it", async || count_leases(&site).await == 4)
        .await;
    site.servers[0].kill();
    tokio::time::sleep(QUORUM_LEASE * 5 / 4).await;
    assert_eq!(guard.loss(), None);
    let started = Instant::now();
    site.servers[2].kill();
    with_timeout("the loss", guard.lost()).await;
    assert!(started.elapsed() <= QUORUM_LEASE + Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    site.servers[4].resume();
    site.wait_until_clean(&[1, 3, 4]).await;
}

/// Covers the case that the only server common to two majorities received the fence but did not
/// grant it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_across_majorities_and_data_loss() {
    let mut site = QuorumServers::new().await;
    // The fence of the first server is far ahead of its clock and of all others.
    drop(site.acquire_with_wait().await);
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
    let mut connection = site.servers[0].connection().await;
    let fence_keys: Vec<String> =
        redis::cmd("KEYS").arg("*}:f").query_async(&mut connection).await.expect("it answers");
    let far_fence: u64 = 2_000_000_000_000_000;
    for fence_key in &fence_keys {
        let mut set = redis::cmd("HSET");
        set.arg(fence_key).arg("fence").arg(far_fence);
        let _: () = set.query_async(&mut connection).await.expect("it answers");
    }
    let mut last_fence = 0;
    for round in 0..5 {
        for paused in [[3, 4], [0, 1], [1, 2], [2, 4], [0, 3]] {
            paused.iter().for_each(|index: &usize| site.servers[*index].pause());
            let guard = site.acquire_with_wait().await;
            assert!(guard.fence() > last_fence, "round {round} without {paused:?}");
            assert!(guard.fence() > far_fence);
            last_fence = guard.fence();
            assert_eq!(guard.release().await, ReleaseStatus::Released);
            paused.iter().for_each(|index| site.servers[*index].resume());
        }
    }
    // Data loss on one server does not lower the fence: a majority still has it.
    site.servers[0].kill();
    site.servers[0].restart().await;
    site.servers[1].kill();
    let guard = site.acquire_with_wait().await;
    assert!(guard.fence() > last_fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_are_released_on_all_nodes() {
    let site = QuorumServers::new().await;
    drop(site.acquire_with_wait().await);
    site.servers[2].pause();
    for micros in (0..3_000).step_by(60) {
        let acquire = site.quorum.lock("x").lease(QUORUM_LEASE * 12).acquire();
        let _ = tokio::time::timeout(Duration::from_micros(micros), acquire).await;
    }
    site.servers[2].resume();
    // Without the undo, the leases would last a minute.
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
}

/// Interval in which a holder was certain of its lock: from the grant to the release, or to the
/// last check before a loss.
struct HeldInterval {
    from: Instant,
    to: Instant,
    fence: u64,
}

async fn record_holds(quorum: Quorum, until: Instant) -> Vec<HeldInterval> {
    let mut holds = Vec::new();
    while Instant::now() < until {
        let request = quorum.lock("x").lease(Duration::from_secs(1)).wait(Duration::from_secs(1));
        let Ok(guard) = request.acquire().await else { continue };
        let (from, mut certain_until) = (Instant::now(), Instant::now());
        // Some holds outlast the lease.
        let max_hold = Duration::from_millis(if holds.len() % 5 == 4 { 1_500 } else { 20 });
        while guard.loss().is_none() && from.elapsed() < max_hold {
            let now = Instant::now();
            certain_until = now + guard.remaining();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let hold =
            HeldInterval { from, to: certain_until.min(Instant::now()), fence: guard.fence() };
        // A loss that is detected only by the release makes the interval too long, so it is not
        // counted.
        let release_status =
            if guard.loss().is_some() { ReleaseStatus::Released } else { guard.release().await };
        if release_status != ReleaseStatus::AlreadyLost {
            holds.push(hold);
        }
    }
    holds
}

/// Servers are frozen and killed in turn, at most two at a time. A killed server, which loses its
/// data, restarts after one lease, as the documentation demands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_never_overlap_while_nodes_restart() {
    let mut site = QuorumServers::new().await;
    let until = Instant::now() + Duration::from_secs(9);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(tokio::spawn(record_holds(connect_quorum(&site.servers).await, until)));
    }
    let mut round = 0;
    while Instant::now() < until {
        let (frozen, killed) = (round % 5, (round * 2 + 1) % 5);
        site.servers[frozen].pause();
        if killed != frozen {
            site.servers[killed].kill();
        }
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        site.servers[frozen].resume();
        if killed != frozen {
            site.servers[killed].restart().await;
        }
        // All servers: otherwise three of them could lack recent grants.
        tokio::time::sleep(Duration::from_millis(300)).await;
        round += 1;
    }
    let mut holds = Vec::new();
    for task in tasks {
        holds.extend(with_timeout("the last hold", task).await.expect("no holder panics"));
    }
    println!("figure: fewest holds while stores restart {}", holds.len());
    assert!(holds.len() > 10, "only {} holds", holds.len());
    holds.sort_by_key(|hold| hold.from);
    for pair in holds.windows(2) {
        assert!(pair[0].to <= pair[1].from, "two at once: {} and {}", pair[0].fence, pair[1].fence);
        assert!(pair[0].fence < pair[1].fence, "{} came after {}", pair[1].fence, pair[0].fence);
    }
    let site = Arc::new(site);
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
}
