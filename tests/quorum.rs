//! A lock over five independent servers, while they are killed and frozen.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::{AcquireError, ErrorKind, Quorum, QuorumGuard, ReleaseStatus, Store};
use lockgate_tests::{RedisServer, TEST_TIMEOUT, eventually, with_timeout};

/// Long enough for a node's share of it, and for a holder to be sure of it, on a machine that does much else.
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

    /// With some patience: a machine that stands still for a moment is no matter here.
    async fn acquire_with_wait(&self) -> QuorumGuard {
        let request = self.quorum.lock("x").lease(QUORUM_LEASE).wait(TEST_TIMEOUT);
        with_timeout("the lock", request.acquire()).await.expect("a majority is there")
    }

    /// Somebody else has it. Where three of five live, one that stands still for a moment is no majority for either.
    async fn wait_until_busy(&self) {
        eventually("it to be busy", async || {
            matches!(self.acquire().await, Err(AcquireError::Busy(_)))
        })
        .await;
    }

    /// Nothing is left on the servers that run, but for what lasts by design.
    async fn wait_until_clean(&self, alive: &[usize]) {
        for at in alive {
            let server = &self.servers[*at];
            eventually("the node to be clean", async || {
                server.leftover_lock_keys("*").await.is_empty()
            })
            .await;
        }
    }
}

/// As another process has it.
async fn connect_quorum(servers: &[RedisServer]) -> Quorum {
    let mut stores = Vec::new();
    for server in servers {
        stores.push(Store::connect(&server.url("quorum")).await.expect("the URL is right"));
    }
    Store::quorum(stores).expect("five stores")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_survives_two_dead_nodes_and_fails_with_three() {
    let mut site = QuorumServers::new().await;
    let mut last = 0;
    for dead in [4, 0] {
        let guard = site.acquire_with_wait().await;
        assert!(guard.fence() > last);
        last = guard.fence();
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        site.servers[dead].kill();
    }
    let guard = site.acquire_with_wait().await;
    assert!(guard.fence() > last);
    site.wait_until_busy().await;
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    site.servers[2].kill();
    let started = Instant::now();
    let request = site.quorum.lock("x").lease(QUORUM_LEASE * 10).wait(Duration::from_millis(500));
    let Err(AcquireError::Fault(error)) = request.acquire().await else {
        panic!("two of five are no majority")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let refused = started.elapsed();
    println!("figure: refused without a majority after {} ms", refused.as_millis());
    assert!(refused < Duration::from_secs(10), "{refused:?}");
    // Long before the leases of what they had granted would have ended.
    site.wait_until_clean(&[1, 3]).await;
    let clean = started.elapsed();
    println!("figure: votes given back after {} ms", clean.as_millis());
    assert!(clean < QUORUM_LEASE * 5, "{clean:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_frozen_nodes_are_tolerated_and_three_refuse_acquire() {
    let site = QuorumServers::new().await;
    drop(site.acquire_with_wait().await);
    site.servers[0].pause();
    site.servers[3].pause();
    let guard = site.acquire_with_wait().await;
    site.wait_until_busy().await;
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    site.servers[1].pause();
    let started = Instant::now();
    assert!(matches!(site.acquire().await, Err(AcquireError::Fault(_))));
    let refused = started.elapsed();
    println!("figure: refused by frozen nodes after {} ms", refused.as_millis());
    assert!(refused < Duration::from_secs(10), "{refused:?}");
    for at in [0, 1, 3] {
        site.servers[at].resume();
    }
    // What lay in their sockets is granted now, to nobody, and given back.
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
    drop(site.acquire_with_wait().await);
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_survives_two_nodes_and_is_lost_with_the_third() {
    let mut site = QuorumServers::new().await;
    let guard = site.acquire_with_wait().await;
    let all = async |site: &QuorumServers| {
        let mut taken = 0;
        for server in &site.servers {
            let Ok(store) = Store::connect(&server.url("quorum")).await else { continue };
            taken +=
                usize::from(matches!(store.lock("x").acquire().await, Err(AcquireError::Busy(_))));
        }
        taken
    };
    eventually("all to have granted it", async || all(&site).await == 5).await;
    site.servers[1].kill();
    site.servers[4].pause();
    tokio::time::sleep(QUORUM_LEASE * 5 / 4).await;
    assert_eq!(guard.loss(), None);
    // It comes back empty, and is asked again: the holder is as safe as before.
    site.servers[1].restart().await;
    eventually("the restarted one to have granted it", async || all(&site).await == 4).await;
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

/// Also when the one node that two majorities have in common was told of the fence, and did not give it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_across_majorities_and_data_loss() {
    let mut site = QuorumServers::new().await;
    // What the first node has given is far ahead of its clock, and of all others.
    drop(site.acquire_with_wait().await);
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
    let mut connection = site.servers[0].connection().await;
    let marks: Vec<String> =
        redis::cmd("KEYS").arg("*}:f").query_async(&mut connection).await.expect("it answers");
    let far: u64 = 2_000_000_000_000_000;
    for mark in &marks {
        let mut set = redis::cmd("HSET");
        set.arg(mark).arg("fence").arg(far);
        let _: () = set.query_async(&mut connection).await.expect("it answers");
    }
    let mut last = 0;
    for round in 0..5 {
        for down in [[3, 4], [0, 1], [1, 2], [2, 4], [0, 3]] {
            down.iter().for_each(|at: &usize| site.servers[*at].pause());
            let guard = site.acquire_with_wait().await;
            assert!(guard.fence() > last, "round {round} without {down:?}");
            assert!(guard.fence() > far);
            last = guard.fence();
            assert_eq!(guard.release().await, ReleaseStatus::Released);
            down.iter().for_each(|at| site.servers[*at].resume());
        }
    }
    // A node that loses its data does not take it back: a majority knows still.
    site.servers[0].kill();
    site.servers[0].restart().await;
    site.servers[1].kill();
    let guard = site.acquire_with_wait().await;
    assert!(guard.fence() > last);
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
    // Their leases would be a minute.
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
}

/// When somebody was sure to have it: from the grant until it was given back, or until the last moment of
/// which he knew that it was his.
struct HeldInterval {
    from: Instant,
    to: Instant,
    fence: u64,
}

async fn record_holds(quorum: Quorum, until: Instant) -> Vec<HeldInterval> {
    let mut turns = Vec::new();
    while Instant::now() < until {
        let request = quorum.lock("x").lease(Duration::from_secs(1)).wait(Duration::from_secs(1));
        let Ok(guard) = request.acquire().await else { continue };
        let (from, mut sure) = (Instant::now(), Instant::now());
        // Now and then for longer than a lease.
        let longest = Duration::from_millis(if turns.len() % 5 == 4 { 1_500 } else { 20 });
        while guard.loss().is_none() && from.elapsed() < longest {
            let now = Instant::now();
            sure = now + guard.remaining();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let turn = HeldInterval { from, to: sure.min(Instant::now()), fence: guard.fence() };
        // A loss may come to light with the release alone; then the turn says too much.
        let released =
            if guard.loss().is_some() { ReleaseStatus::Released } else { guard.release().await };
        if released != ReleaseStatus::AlreadyLost {
            turns.push(turn);
        }
    }
    turns
}

/// Nodes are frozen and killed one after the other, up to two at a time; one that was killed, and forgets, is
/// started again after a lease, as the docs demand.
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
        // All of them: else three may be behind with what they have granted.
        tokio::time::sleep(Duration::from_millis(300)).await;
        round += 1;
    }
    let mut turns = Vec::new();
    for task in tasks {
        turns.extend(with_timeout("the last turn", task).await.expect("no holder panics"));
    }
    println!("figure: fewest turns while nodes come and go {}", turns.len());
    assert!(turns.len() > 10, "only {} turns", turns.len());
    turns.sort_by_key(|turn| turn.from);
    for pair in turns.windows(2) {
        assert!(pair[0].to <= pair[1].from, "two at once: {} and {}", pair[0].fence, pair[1].fence);
        assert!(pair[0].fence < pair[1].fence, "{} came after {}", pair[1].fence, pair[0].fence);
    }
    let site = Arc::new(site);
    site.wait_until_clean(&[0, 1, 2, 3, 4]).await;
}
