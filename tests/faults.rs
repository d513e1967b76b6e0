//! Faults of whole processes: they are killed and paused, and record their events.

#[path = "faults/disk_acknowledgement.rs"]
mod disk_acknowledgement;
#[path = "faults/failover.rs"]
mod failover;
#[path = "faults/fault_proxy.rs"]
mod fault_proxy;
#[path = "faults/job_failover.rs"]
mod job_failover;
#[path = "faults/lock_contention.rs"]
mod lock_contention;
#[path = "faults/quota_spenders.rs"]
mod quota_spenders;
#[path = "faults/server_faults.rs"]
mod server_faults;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockgate::Store;
use lockgate_tests::{
    connect_with_long_timeout, eventually,
    fleet::{ChildProcess, HistoryPlan, HistoryReport, run_history},
    history::LockDomain,
    quota::QuotaDomain,
    shared_server,
    tasks::TaskDomain,
    with_timeout,
};

const FAULTS_BINARY: &str = env!("CARGO_BIN_EXE_lockgate-faults");

fn history_plan(seconds: u64) -> HistoryPlan {
    let seed = u64::from(uuid::Uuid::new_v4().as_fields().0);
    HistoryPlan {
        program: FAULTS_BINARY.into(),
        duration: Duration::from_secs(seconds),
        seed,
        soak_interval: None,
    }
}

#[track_caller]
fn assert_no_violations(verdict: &HistoryReport) {
    assert!(verdict.violations.is_empty(), "{verdict}");
    println!("{verdict}");
}

/// A part of `cargo xtask faults`.
#[tokio::test]
async fn short_lock_fault_history_has_no_violations() {
    assert_no_violations(&run_history::<LockDomain>(&history_plan(6)).await);
}

/// A part of `cargo xtask faults quota`: of no quota more is let in than it has. The last four seconds are without faults.
#[tokio::test]
async fn quotas_hold_under_faults() {
    assert_no_violations(&run_history::<QuotaDomain>(&history_plan(10)).await);
}

/// A part of `cargo xtask faults tasks`: each task that was pushed ends once.
#[tokio::test]
async fn tasks_settle_once_under_faults() {
    assert_no_violations(&run_history::<TaskDomain>(&history_plan(6)).await);
}

struct HolderFixture {
    holder: ChildProcess,
    store: Store,
    namespace: String,
}

impl HolderFixture {
    async fn new() -> Self {
        Self::in_namespace(uuid::Uuid::new_v4().simple().to_string()).await
    }

    /// Another process.
    async fn in_same_namespace(other: &Self) -> Self {
        Self::in_namespace(other.namespace.clone()).await
    }

    async fn in_namespace(namespace: String) -> Self {
        let url = shared_server().await.url(&namespace);
        let holder = ChildProcess::start(Path::new(FAULTS_BINARY), &["holder", &url]);
        Self { holder, store: connect_with_long_timeout(&url).await, namespace }
    }

    /// Whether its release was one: it may be told of the end of its lock before.
    async fn was_released(&mut self) -> bool {
        let mut said = self.next_line().await;
        if said.starts_with("told ") {
            said = self.next_line().await;
        }
        said == "Released"
    }

    /// Keys of its locks that should not be there at rest.
    async fn leftover_keys(&self) -> Vec<String> {
        shared_server().await.leftover_lock_keys(&format!("lg:1:{}:*", self.namespace)).await
    }

    async fn next_line(&mut self) -> String {
        with_timeout("the holder to speak", self.holder.next_line()).await.expect("it lives")
    }

    async fn read_fence(&mut self, what: &str) -> u64 {
        let said = self.next_line().await;
        let fence = said.strip_prefix(what).and_then(|rest| rest.trim().parse().ok());
        fence.unwrap_or_else(|| panic!("expected {what}: {said}"))
    }
}

/// Stopped past its lease, it finds on waking that the lock is lost, before it writes anything; and of what was on its
/// way when it was stopped the register takes nothing, because another has written with a larger fence.
#[tokio::test]
async fn holder_paused_past_its_lease_does_not_write_again() {
    let mut stopped = HolderFixture::new().await;
    let mut next = HolderFixture::in_same_namespace(&stopped).await;
    stopped.holder.send_line("hold").await;
    let fence = stopped.read_fence("holds").await;
    stopped.holder.send_line("write").await;
    assert_eq!(stopped.next_line().await, "writes 1");
    stopped.holder.pause();
    next.holder.send_line("hold").await;
    assert!(next.read_fence("holds").await > fence);
    next.holder.send_line("write").await;
    assert_eq!(next.next_line().await, "writes 2");
    // It hears all of this as it wakes.
    for word in ["write", "late", "release"] {
        stopped.holder.send_line(word).await;
    }
    let woke = Instant::now();
    stopped.holder.resume();
    let mut said = Vec::new();
    for _ in 0..4 {
        said.push(stopped.next_line().await);
    }
    println!("figure: told of the loss after waking {} ms", woke.elapsed().as_millis());
    said.sort();
    assert_eq!(said[..3], ["AlreadyLost", "lost", "refused"], "{said:?}");
    assert!(said[3].starts_with("told "), "{said:?}");
    // Nothing of what it does late touches the next one's: neither the lock nor what was written under it.
    assert!(stopped.store.as_another_process().lock("x").acquire().await.is_err());
    next.holder.send_line("write").await;
    assert_eq!(next.next_line().await, "writes 3");
    next.holder.send_line("release").await;
    assert!(next.was_released().await);
}

/// Those who wait in a process that was stopped ask anew, and are served in their turn.
#[tokio::test]
async fn waiters_of_paused_process_are_served_after_resume() {
    let mut stopped = HolderFixture::new().await;
    stopped.holder.send_line("hold").await;
    stopped.read_fence("holds").await;
    stopped.holder.send_line("wait").await;
    stopped.holder.send_line("write").await;
    assert_eq!(stopped.next_line().await, "writes 1");
    stopped.holder.pause();
    let next = stopped.store.lock("x").wait(Duration::from_secs(20)).acquire().await;
    let next = next.expect("the lease ends");
    let fence = next.fence();
    stopped.holder.resume();
    assert!(stopped.next_line().await.starts_with("told "));
    assert_eq!(next.release().await, lockgate::ReleaseStatus::Released);
    assert!(stopped.read_fence("served").await > fence);
}

/// Killed with the lock, with waiters, and in the middle of what it sends: the next one has it after a lease.
#[tokio::test]
async fn lock_of_killed_holder_is_free_after_lease() {
    let mut stopped = HolderFixture::new().await;
    stopped.holder.send_line("hold").await;
    let fence = stopped.read_fence("holds").await;
    for _ in 0..3 {
        stopped.holder.send_line("wait").await;
    }
    stopped.holder.send_line("write").await;
    assert_eq!(stopped.next_line().await, "writes 1");
    stopped.holder.kill().await;
    let killed = Instant::now();
    let next = stopped.store.lock("x").wait(Duration::from_secs(20)).acquire().await;
    println!("figure: lock free after the kill {} ms", killed.elapsed().as_millis());
    // Its lease of 4 s, its place, and a look.
    assert!(killed.elapsed() < Duration::from_secs(12), "{:?}", killed.elapsed());
    let next = next.expect("the lease ends");
    assert!(next.fence() > fence);
    assert_eq!(next.release().await, lockgate::ReleaseStatus::Released);
    eventually("nothing to be left", async || stopped.leftover_keys().await.is_empty()).await;
    println!("figure: nothing left after the kill {} ms", killed.elapsed().as_millis());
}
