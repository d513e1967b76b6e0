//! Faults of whole processes, which are killed and paused and record their events.

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
fn assert_no_violations(report: &HistoryReport) {
    assert!(report.violations.is_empty(), "{report}");
    println!("{report}");
}

/// Short run of `cargo xtask faults locks`.
#[tokio::test]
async fn short_lock_fault_history_has_no_violations() {
    assert_no_violations(&run_history::<LockDomain>(&history_plan(6)).await);
}

/// Short run of `cargo xtask faults quota`: no quota admits more than its units. The last four
/// seconds are without faults.
#[tokio::test]
async fn quotas_hold_under_faults() {
    assert_no_violations(&run_history::<QuotaDomain>(&history_plan(10)).await);
}

/// Short run of `cargo xtask faults tasks`: each pushed task ends once.
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

    /// Starts a holder process in the namespace of another fixture.
    async fn in_same_namespace(other: &Self) -> Self {
        Self::in_namespace(other.namespace.clone()).await
    }

    async fn in_namespace(namespace: String) -> Self {
        let url = shared_server().await.url(&namespace);
        let holder = ChildProcess::start(Path::new(FAULTS_BINARY), &["holder", &url]);
        Self { holder, store: connect_with_long_timeout(&url).await, namespace }
    }

    /// Returns true if the lock was still held at its release. The process may report the lock loss
    /// first.
    async fn was_released(&mut self) -> bool {
        let mut line = self.next_line().await;
        if line.starts_with("reports ") {
            line = self.next_line().await;
        }
        line == "Released"
    }

    /// Returns keys of its locks that should not exist when idle.
    async fn leftover_keys(&self) -> Vec<String> {
        shared_server().await.leftover_lock_keys(&format!("lg:1:{}:*", self.namespace)).await
    }

    async fn next_line(&mut self) -> String {
        with_timeout("the holder to speak", self.holder.next_line()).await.expect("it lives")
    }

    async fn read_fence(&mut self, prefix: &str) -> u64 {
        let line = self.next_line().await;
        let fence = line.strip_prefix(prefix).and_then(|rest| rest.trim().parse().ok());
        fence.unwrap_or_else(|| panic!("expected {prefix}: {line}"))
    }
}

/// A paused holder detects its lock loss on resume, before the next write. The register rejects its
/// outstanding write, because the next holder wrote with a larger fence.
#[tokio::test]
async fn holder_paused_past_its_lease_does_not_write_again() {
    let mut paused = HolderFixture::new().await;
    let mut next = HolderFixture::in_same_namespace(&paused).await;
    paused.holder.send_line("hold").await;
    let fence = paused.read_fence("holds").await;
    paused.holder.send_line("write").await;
    assert_eq!(paused.next_line().await, "writes 1");
    paused.holder.pause();
    next.holder.send_line("hold").await;
    assert!(next.read_fence("holds").await > fence);
    next.holder.send_line("write").await;
    assert_eq!(next.next_line().await, "writes 2");
    // The process receives these commands when it resumes.
    for command in ["write", "late", "release"] {
        paused.holder.send_line(command).await;
    }
    let resumed = Instant::now();
    paused.holder.resume();
    let mut lines = Vec::new();
    for _ in 0..4 {
        lines.push(paused.next_line().await);
    }
    println!("figure: loss reported after resume {} ms", resumed.elapsed().as_millis());
    lines.sort();
    assert_eq!(lines[..3], ["AlreadyLost", "lost", "refused"], "{lines:?}");
    assert!(lines[3].starts_with("reports "), "{lines:?}");
    // The late operations of the old holder affect neither the lock nor the data of the next one.
    assert!(paused.store.as_another_process().lock("x").acquire().await.is_err());
    next.holder.send_line("write").await;
    assert_eq!(next.next_line().await, "writes 3");
    next.holder.send_line("release").await;
    assert!(next.was_released().await);
}

/// Waiters of a paused process poll again on resume and are served in order.
#[tokio::test]
async fn waiters_of_paused_process_are_served_after_resume() {
    let mut paused = HolderFixture::new().await;
    paused.holder.send_line("hold").await;
    paused.read_fence("holds").await;
    paused.holder.send_line("wait").await;
    paused.holder.send_line("write").await;
    assert_eq!(paused.next_line().await, "writes 1");
    paused.holder.pause();
    let next = paused.store.lock("x").wait(Duration::from_secs(20)).acquire().await;
    let next = next.expect("the lease ends");
    let fence = next.fence();
    paused.holder.resume();
    assert!(paused.next_line().await.starts_with("reports "));
    assert_eq!(next.release().await, lockgate::ReleaseStatus::Released);
    assert!(paused.read_fence("served").await > fence);
}

/// The holder is killed with the lock, with waiters, and in the middle of a write. The next waiter
/// gets the lock after the lease.
#[tokio::test]
async fn lock_of_killed_holder_is_free_after_lease() {
    let mut victim = HolderFixture::new().await;
    victim.holder.send_line("hold").await;
    let fence = victim.read_fence("holds").await;
    for _ in 0..3 {
        victim.holder.send_line("wait").await;
    }
    victim.holder.send_line("write").await;
    assert_eq!(victim.next_line().await, "writes 1");
    victim.holder.kill().await;
    let killed = Instant::now();
    let next = victim.store.lock("x").wait(Duration::from_secs(20)).acquire().await;
    println!("figure: lock free after the kill {} ms", killed.elapsed().as_millis());
    // The lease of 4 s, the expiry of the dead process's queue entry, and a poll.
    assert!(killed.elapsed() < Duration::from_secs(12), "{:?}", killed.elapsed());
    let next = next.expect("the lease ends");
    assert!(next.fence() > fence);
    assert_eq!(next.release().await, lockgate::ReleaseStatus::Released);
    eventually("nothing to be left", async || victim.leftover_keys().await.is_empty()).await;
    println!("figure: nothing left after the kill {} ms", killed.elapsed().as_millis());
}
