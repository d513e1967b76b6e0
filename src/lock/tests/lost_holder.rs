//! A waiter behind a holder that has gone, and names in the log.

use super::SECOND;
use crate::{
    key::Key,
    store::{CapturedLog, Store, acquire_as_killed_process},
};

const TAKEN_OVER: &str = "lock taken over: its last holder did not release it";

#[tokio::test(start_paused = true)]
async fn a_waiter_reports_a_holder_that_did_not_release_its_lock() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let held = store.as_another_process().lock("x").acquire().await.expect("free");
    let waiter = crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire());
    // Longer than a lease, which is renewed.
    tokio::time::sleep(25 * SECOND).await;
    held.release().await;
    waiter.await.unwrap().expect("it was released").release().await;
    assert!(!log.text().contains(TAKEN_OVER), "{}", log.text());

    acquire_as_killed_process(&store, Key::custom("x")).await;
    let guard = store.lock("x").wait(60 * SECOND).acquire().await.expect("the lease ends");
    guard.release().await;
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains(TAKEN_OVER)).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let name = Key::custom("x").log_hash().to_string();
    assert!(lines[0].contains(&format!("lock={name}")), "{lines:?}");
    // The first reply about the lease came before the queue task, which counts from its first poll.
    assert!(lines[0].contains("waited_ms=9") || lines[0].contains("waited_ms=10"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn log_names_shows_the_names_of_locks() {
    let (log, _reads) = CapturedLog::start_capture();
    for (store, shown) in [(Store::memory(), false), (Store::memory().log_names(true), true)] {
        let lock = || store.lock(Key::path_param("id", "alice")).acquire();
        lock().await.expect("free").release().await;
        drop(lock().await.expect("free"));
        assert!(store.shutdown(SECOND).await);
        let text = log.text();
        assert_eq!(text.contains("alice"), shown, "{text}");
        for event in ["lock granted", "lock released", "lock released in the background"] {
            let is_named = |line: &str| line.contains("lock=p:id::alice");
            let mut lines = text.lines().filter(|line| line.contains(event));
            assert_eq!(lines.any(is_named), shown, "{event} in\n{text}");
        }
    }
}
