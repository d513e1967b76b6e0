//! The audit log: order, pages, the end of an action, and its capacity.

use futures_util::future::join_all;

use super::{on_every_store, store_harness::StoreHarness};
use crate::store::inspection::AUDIT_CAPACITY;

on_every_store!(
    records_are_read_newest_first_in_pages,
    record_is_replaced_only_as_it_was_appended,
    oldest_record_is_removed_beyond_the_capacity,
);

async fn append(rig: &StoreHarness, record: &str) -> u64 {
    rig.backend().append_audit_record(record.to_owned()).await.expect("the store answers")
}

async fn read(rig: &StoreHarness, before: u64, max_records: usize) -> Vec<(u64, String)> {
    let page = rig.backend().read_audit_records(before, max_records).await;
    let entries = page.expect("the store answers").into_iter();
    entries.map(|entry| (entry.number, entry.record)).collect()
}

async fn records_are_read_newest_first_in_pages(rig: &StoreHarness) {
    assert_eq!(read(rig, 0, 10).await, []);
    for record in ["one", "two with blanks", "three"] {
        append(rig, record).await;
    }
    let page = read(rig, 0, 2).await;
    assert_eq!(page, [(3, "three".to_owned()), (2, "two with blanks".to_owned())]);
    assert_eq!(read(rig, 2, 2).await, [(1, "one".to_owned())]);
    assert_eq!(read(rig, 1, 2).await, []);
}

async fn record_is_replaced_only_as_it_was_appended(rig: &StoreHarness) {
    let replace = async |number, initial: &str, finished: &str| {
        let backend = rig.backend();
        backend.replace_audit_record(number, initial.to_owned(), finished.to_owned()).await
    };
    let number = append(rig, "begun").await;
    assert!(!replace(number, "other", "ended").await.expect("the store answers"));
    assert!(!replace(number + 1, "begun", "ended").await.expect("the store answers"));
    assert!(replace(number, "begun", "ended").await.expect("the store answers"));
    assert!(!replace(number, "begun", "again").await.expect("the store answers"));
    assert_eq!(read(rig, 0, 10).await, [(number, "ended".to_owned())]);
}

async fn oldest_record_is_removed_beyond_the_capacity(rig: &StoreHarness) {
    for _ in 0..AUDIT_CAPACITY / 100 {
        join_all((0..100).map(|_| append(rig, "record"))).await;
    }
    assert_eq!(read(rig, 2, 10).await, [(1, "record".to_owned())]);
    assert_eq!(append(rig, "one more").await, AUDIT_CAPACITY + 1);
    assert_eq!(read(rig, 2, 10).await, []);
    assert_eq!(read(rig, 3, 10).await, [(2, "record".to_owned())]);
    let backend = rig.backend();
    let replaced = backend.replace_audit_record(1, "record".to_owned(), "ended".to_owned()).await;
    assert!(!replaced.expect("the store answers"));
}
