//! Warnings at the start of a worker or a server, before a job has shown what is missing.

use super::*;
#[cfg(feature = "serve")]
use crate::defer::warn_unrestricted_mount;

#[test]
fn worker_with_a_user_that_no_layer_carries_is_warned_of() {
    const UNCARRIED: &str = "the worker restores a snapshot that no DeferLayer of this process";
    on_new_thread(|| async {
        let (log, _reads) = CapturedLog::start_capture();
        let store = Store::memory();
        let start = async || {
            let worker = worker_without_user(&store).for_user::<CarriedUser>();
            let worker = SpawnedWorker::spawn_worker(worker);
            let_tasks_settle().await;
            worker.stop().await;
        };
        start().await;
        assert!(!log.text().contains(UNCARRIED), "the layers are in another process");
        let plain = DeferLayer::<()>::new();
        plain.validate_settings();
        {
            let _layer = user_layer();
            start().await;
            assert!(!log.text().contains(UNCARRIED), "{}", log.text());
        }
        start().await;
        assert_eq!(log.text().matches(UNCARRIED).count(), 1, "{}", log.text());
        log.assert_contains("snapshot=\"user\"");
        log.assert_contains("add .for_user::<U>()");
    });
}

/// At the start of a server, before any job is shown.
#[cfg(feature = "serve")]
#[test]
fn unrestricted_status_routes_beside_a_user_are_warned_of() {
    const UNRESTRICTED_MOUNT: &str = "the status routes show every job, and a DeferLayer";
    on_new_thread(|| async {
        let (log, _reads) = CapturedLog::start_capture();
        let routes = StatusResource::<()>::new();
        let restricted = routes.clone().for_user::<(), CarriedUser>().mounted_at("/own");
        let _layer = user_layer();
        warn_unrestricted_mount();
        assert!(!log.text().contains(UNRESTRICTED_MOUNT), "{}", log.text());
        let _open = routes.mounted_at("/deferred");
        warn_unrestricted_mount();
        assert_eq!(log.text().matches(UNRESTRICTED_MOUNT).count(), 1, "{}", log.text());
        log.assert_contains("add .for_user::<U>() or .visible_to(..)");
        drop(restricted);
    });
}
