//! Faults of whole processes: they are killed and stopped, and write down what they see.

#[path = "faults/accepted.rs"]
mod accepted;
#[path = "faults/crowd.rs"]
mod crowd;
#[path = "faults/disks.rs"]
mod disks;
#[path = "faults/eight.rs"]
mod eight;
#[path = "faults/failover.rs"]
mod failover;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/server.rs"]
mod server;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockgate::Store;
use lockgate_tests::{
    eventually,
    fleet::{Plan, Process, Verdict, conduct},
    history::Locks,
    patient_store,
    quota::Limits,
    shared_server,
    tasks::Tasks,
    within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockgate-faults");

fn plan(seconds: u64) -> Plan {
    let seed = u64::from(uuid::Uuid::new_v4().as_fields().0);
    Plan { program: PROGRAM.into(), time: Duration::from_secs(seconds), seed, soak: None }
}

#[track_caller]
fn is_good(verdict: &Verdict) {
    assert!(verdict.wrong.is_empty(), "{verdict}");
    println!("{verdict}");
}

/// A part of `cargo xtask faults`.
#[tokio::test]
async fn a_short_history_is_good() {
    is_good(&conduct::<Locks>(&plan(6)).await);
}

/// A part of `cargo xtask faults quota`: of no quota more is let in than it has. The last four seconds are without faults.
#[tokio::test]
async fn quotas_hold_whatever_is_done() {
    is_good(&conduct::<Limits>(&plan(10)).await);
}

/// A part of `cargo xtask faults tasks`: each task that was pushed ends once.
#[tokio::test]
async fn tasks_end_once_whatever_is_done() {
    is_good(&conduct::<Tasks>(&plan(6)).await);
}

struct Stopped {
    holder: Process,
    store: Store,
    namespace: String,
}

impl Stopped {
    async fn new() -> Self {
        Self::of(uuid::Uuid::new_v4().simple().to_string()).await
    }

    /// Another process.
    async fn beside(other: &Self) -> Self {
        Self::of(other.namespace.clone()).await
    }

    async fn of(namespace: String) -> Self {
        let url = shared_server().await.url(&namespace);
        let holder = Process::start(Path::new(PROGRAM), &["holder", &url]);
        Self { holder, store: patient_store(&url).await, namespace }
    }

    /// Whether its release was one: it may be told of the end of its lock before.
    async fn released(&mut self) -> bool {
        let mut said = self.says().await;
        if said.starts_with("told ") {
            said = self.says().await;
        }
        said == "Released"
    }

    /// Keys of its locks that should not be there at rest.
    async fn left(&self) -> Vec<String> {
        shared_server().await.keys_left(&format!("lg:1:{}:*", self.namespace)).await
    }

    async fn says(&mut self) -> String {
        within("the holder to speak", self.holder.says()).await.expect("it lives")
    }

    async fn fence(&mut self, what: &str) -> u64 {
        let said = self.says().await;
        let fence = said.strip_prefix(what).and_then(|rest| rest.trim().parse().ok());
        fence.unwrap_or_else(|| panic!("expected {what}: {said}"))
    }
}

/// Stopped past its lease, it finds on waking that the lock is lost, before it writes anything; and of what was on its
/// way when it was stopped the register takes nothing, because another has written with a larger fence.
#[tokio::test]
async fn a_holder_that_was_stopped_past_its_lease_does_not_write_again() {
    let mut stopped = Stopped::new().await;
    let mut next = Stopped::beside(&stopped).await;
    stopped.holder.tell("hold").await;
    let fence = stopped.fence("holds").await;
    stopped.holder.tell("write").await;
    assert_eq!(stopped.says().await, "writes 1");
    stopped.holder.pause();
    next.holder.tell("hold").await;
    assert!(next.fence("holds").await > fence);
    next.holder.tell("write").await;
    assert_eq!(next.says().await, "writes 2");
    // It hears all of this as it wakes.
    for word in ["write", "late", "release"] {
        stopped.holder.tell(word).await;
    }
    let woke = Instant::now();
    stopped.holder.resume();
    let mut said = Vec::new();
    for _ in 0..4 {
        said.push(stopped.says().await);
    }
    println!("figure: told of the loss after waking {} ms", woke.elapsed().as_millis());
    said.sort();
    assert_eq!(said[..3], ["AlreadyLost", "lost", "refused"], "{said:?}");
    assert!(said[3].starts_with("told "), "{said:?}");
    // Nothing of what it does late touches the next one's: neither the lock nor what was written under it.
    assert!(stopped.store.as_another_process().lock("x").acquire().await.is_err());
    next.holder.tell("write").await;
    assert_eq!(next.says().await, "writes 3");
    next.holder.tell("release").await;
    assert!(next.released().await);
}

/// Those who wait in a process that was stopped ask anew, and are served in their turn.
#[tokio::test]
async fn those_who_wait_in_a_stopped_process_are_served_when_it_goes_on() {
    let mut stopped = Stopped::new().await;
    stopped.holder.tell("hold").await;
    stopped.fence("holds").await;
    stopped.holder.tell("wait").await;
    stopped.holder.tell("write").await;
    assert_eq!(stopped.says().await, "writes 1");
    stopped.holder.pause();
    let next = stopped.store.lock("x").wait(Duration::from_secs(20)).acquire().await;
    let next = next.expect("the lease ends");
    let fence = next.fence();
    stopped.holder.resume();
    assert!(stopped.says().await.starts_with("told "));
    assert_eq!(next.release().await, lockgate::ReleaseStatus::Released);
    assert!(stopped.fence("served").await > fence);
}

/// Killed with the lock, with waiters, and in the middle of what it sends: the next one has it after a lease.
#[tokio::test]
async fn a_killed_holder_costs_a_lease() {
    let mut stopped = Stopped::new().await;
    stopped.holder.tell("hold").await;
    let fence = stopped.fence("holds").await;
    for _ in 0..3 {
        stopped.holder.tell("wait").await;
    }
    stopped.holder.tell("write").await;
    assert_eq!(stopped.says().await, "writes 1");
    stopped.holder.kill().await;
    let killed = Instant::now();
    let next = stopped.store.lock("x").wait(Duration::from_secs(20)).acquire().await;
    println!("figure: lock free after the kill {} ms", killed.elapsed().as_millis());
    // Its lease of 4 s, its place, and a look.
    assert!(killed.elapsed() < Duration::from_secs(12), "{:?}", killed.elapsed());
    let next = next.expect("the lease ends");
    assert!(next.fence() > fence);
    assert_eq!(next.release().await, lockgate::ReleaseStatus::Released);
    eventually("nothing to be left", async || stopped.left().await.is_empty()).await;
    println!("figure: nothing left after the kill {} ms", killed.elapsed().as_millis());
}
