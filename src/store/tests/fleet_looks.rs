//! Inquiries of operators, and how long they wait for answers.

use std::time::Duration;

use tokio::time::Instant;

use super::{BackendFault, faulty_store, on_every_store, store_harness::StoreHarness};
use crate::store::{Store, inspection::MAX_REPORTS};

on_every_store!(reports_are_read_once);

async fn reports_are_read_once(rig: &StoreHarness) {
    let read = async |skipped| rig.backend().read_reports("a".to_owned(), skipped).await.unwrap();
    assert_eq!(read(0).await, [""; 0]);
    for report in ["1", "2", "3"] {
        rig.backend().append_report("a".to_owned(), report.to_owned()).await.unwrap();
    }
    rig.backend().append_report("b".to_owned(), "4".to_owned()).await.unwrap();
    assert_eq!(read(0).await, ["1", "2", "3"]);
    assert_eq!(read(2).await, ["3"]);
    assert_eq!(read(3).await, [""; 0]);
}

/// Returns the number of processes that answer, and the time of the look.
async fn look(store: &Store) -> (usize, Duration) {
    let started_at = Instant::now();
    let fleet = store.fleet().await.expect("the store answers");
    (fleet.processes.len(), started_at.elapsed())
}

#[tokio::test(start_paused = true)]
async fn process_that_hangs_delays_only_the_first_look() {
    const MOST: Duration = Duration::from_millis(500);
    let (store, faults) = faulty_store();
    let other = store.as_another_process();
    let _guards = [
        store.lock("order:7").acquire().await.expect("it is free"),
        other.lock("order:8").acquire().await.expect("it is free"),
    ];
    let (count, time) = look(&store).await;
    assert!(count == 2 && time < MOST / 10, "{count} in {time:?}");

    faults.set("append_report", BackendFault::Unavailable, 1);
    let (count, time) = look(&store).await;
    assert!(count == 1 && time >= MOST, "{count} in {time:?}");
    let reads = faults.call_count("read_reports");
    faults.set("append_report", BackendFault::Unavailable, 1);
    let (count, time) = look(&store).await;
    assert!(count == 1 && time < MOST / 5, "{count} in {time:?}");
    assert!(faults.call_count("read_reports") - reads < 8);

    // It answers again, and another one has started.
    let third = store.as_another_process();
    let _guard = third.lock("order:9").acquire().await.expect("it is free");
    let (count, time) = look(&store).await;
    assert!(count == 3 && time < MOST / 5, "{count} in {time:?}");
}

#[tokio::test(start_paused = true)]
async fn report_says_that_processes_may_be_missing() {
    let store = Store::memory();
    let mut guards = Vec::new();
    for number in 0..MAX_REPORTS + 4 {
        let process = store.as_another_process();
        let guard = process.lock(format!("order:{number}")).acquire().await.expect("it is free");
        guards.push((process, guard));
    }
    // Those of the first look are in the way of the second.
    for _ in 0..2 {
        let fleet = store.fleet().await.expect("the store answers");
        assert_eq!((fleet.processes.len() as u64, fleet.truncated), (MAX_REPORTS, true));
    }
    guards.truncate(3);
    let fleet = store.fleet().await.expect("the store answers");
    assert_eq!((fleet.processes.len(), fleet.truncated), (3, false));
}
