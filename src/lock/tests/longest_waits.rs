//! The longest local queues in the report of the fleet.

use std::time::Duration;

use crate::store::{Store, WaitReport};

/// Asks the fleet until its waits have these locks and numbers of waiters.
async fn wait_for_report(store: &Store, expected: &[(&str, u64)]) -> Vec<WaitReport> {
    let reported = async {
        loop {
            let waits = store.fleet().await.expect("the store answers").longest_waits();
            let found = waits.iter().map(|wait| (wait.lock.as_str(), wait.waiters));
            if found.eq(expected.iter().copied()) {
                return waits;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reported).await.expect("they are reported")
}

#[tokio::test(start_paused = true)]
async fn queues_of_all_processes_are_merged_without_departed_waiters() {
    let store = Store::memory();
    let other = store.as_another_process();
    let guards = [
        store.lock("order:7").acquire().await.expect("it is free"),
        store.lock("order:8").acquire().await.expect("it is free"),
    ];
    let wait = |store: &Store, lock: &'static str, shared: bool| {
        let request = store.lock(lock).wait(Duration::from_secs(3_600));
        let request = if shared { request.shared() } else { request };
        tokio::spawn(async move { drop(request.acquire().await) })
    };
    let first = wait(&store, "order:7", false);
    wait_for_report(&store, &[("order:7", 1)]).await;
    let _others = [wait(&store, "order:7", true), wait(&other, "order:7", false)];
    let waits = wait_for_report(&store, &[("order:7", 3)]).await;
    let lock = other.lock("order:7").inspect().await.expect("the store answers");
    let by_process = lock.waiting_processes.iter().map(|process| (&*process.node, process.waiters));
    let mut by_process: Vec<_> = by_process.collect();
    by_process.sort_by_key(|(_, waiters)| *waiters);
    assert_eq!(by_process, [(other.node().as_str(), 1), (store.node().as_str(), 2)]);
    assert!(lock.to_string().contains("; 2 processes wait with 3 requests"), "{lock}");
    assert!(waits[0].longest_ms > 0, "{waits:?}");
    first.abort();
    wait(&other, "order:8", false);
    tokio::time::sleep(Duration::from_millis(1)).await;
    wait_for_report(&store, &[("order:7", 2), ("order:8", 1)]).await;
    drop(guards);
    wait_for_report(&store, &[]).await;
}
