//! Faults of whole processes: they are killed and stopped, and write down what they see.

#[path = "faults/accepted.rs"]
mod accepted;
#[path = "faults/failover.rs"]
mod failover;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/server.rs"]
mod server;

use std::{path::Path, time::Duration};

use lockgate::Store;
use lockgate_tests::{
    history::{Plan, Process, conduct},
    quota, shared_server, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockgate-faults");

/// A part of `cargo xtask faults`.
#[tokio::test]
async fn a_short_history_is_good() {
    let seed = u64::from(uuid::Uuid::new_v4().as_fields().0);
    let plan = Plan { program: PROGRAM.into(), time: Duration::from_secs(6), seed, soak: None };
    let verdict = conduct(&plan).await;
    assert!(verdict.wrong.is_empty(), "{verdict}");
    println!("{verdict}");
}

/// A part of `cargo xtask faults quota`: of no quota more is let in than it has.
#[tokio::test]
async fn quotas_hold_whatever_is_done() {
    let seed = u64::from(uuid::Uuid::new_v4().as_fields().0);
    // The last four seconds are without faults.
    let plan = Plan { program: PROGRAM.into(), time: Duration::from_secs(10), seed, soak: None };
    let verdict = quota::conduct(&plan).await;
    assert!(verdict.wrong.is_empty(), "{verdict}");
    println!("{verdict}");
}

struct Stopped {
    holder: Process,
    store: Store,
}

impl Stopped {
    async fn new() -> Self {
        let url = shared_server().await.url(&uuid::Uuid::new_v4().simple().to_string());
        let holder = Process::start(Path::new(PROGRAM), &["holder", &url]);
        let store = Store::builder(&url).deadline(Duration::from_secs(10)).connect().await;
        Self { holder, store: store.expect("the URL is right") }
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

/// Stopped past its lease, it finds on waking that the lock is lost, before it writes anything.
#[tokio::test]
async fn a_holder_that_was_stopped_past_its_lease_does_not_write_again() {
    let mut stopped = Stopped::new().await;
    stopped.holder.tell("hold").await;
    let fence = stopped.fence("holds").await;
    stopped.holder.tell("write").await;
    assert_eq!(stopped.says().await, "writes");
    stopped.holder.pause();
    let next = stopped.store.lock("x").wait(Duration::from_secs(10)).acquire().await;
    let next = next.expect("the lease ends");
    assert!(next.fence() > fence);
    // It hears all of this as it wakes.
    stopped.holder.tell("write").await;
    stopped.holder.tell("release").await;
    stopped.holder.resume();
    let mut said = vec![stopped.says().await, stopped.says().await, stopped.says().await];
    said.sort();
    assert_eq!(said[0], "AlreadyLost");
    assert!(said[1] == "lost" && said[2].starts_with("told "), "{said:?}");
    // Nothing of what it does late touches the next one's.
    assert!(stopped.store.as_another_process().lock("x").acquire().await.is_err());
    assert_eq!(next.release().await, lockgate::Released::Released);
}

/// Those who wait in a process that was stopped ask anew, and are served in their turn.
#[tokio::test]
async fn those_who_wait_in_a_stopped_process_are_served_when_it_goes_on() {
    let mut stopped = Stopped::new().await;
    stopped.holder.tell("hold").await;
    stopped.fence("holds").await;
    stopped.holder.tell("wait").await;
    stopped.holder.tell("write").await;
    assert_eq!(stopped.says().await, "writes");
    stopped.holder.pause();
    let next = stopped.store.lock("x").wait(Duration::from_secs(10)).acquire().await;
    let next = next.expect("the lease ends");
    let fence = next.fence();
    stopped.holder.resume();
    assert!(stopped.says().await.starts_with("told "));
    assert_eq!(next.release().await, lockgate::Released::Released);
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
    assert_eq!(stopped.says().await, "writes");
    stopped.holder.kill().await;
    let killed = std::time::Instant::now();
    let next = stopped.store.lock("x").wait(Duration::from_secs(10)).acquire().await;
    println!("figure: lock free after the kill {} ms", killed.elapsed().as_millis());
    // Its lease of a second, its place, and a look.
    assert!(killed.elapsed() < Duration::from_secs(4), "{:?}", killed.elapsed());
    let next = next.expect("the lease ends");
    assert!(next.fence() > fence);
    assert_eq!(next.release().await, lockgate::Released::Released);
}
