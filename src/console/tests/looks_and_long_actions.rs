//! Looks that are recorded or costly, and actions that take long.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};

use super::{HOST, JSON, PAUSE, SAME_ORIGIN, console, request, respond};
use crate::{
    admin::{AuditCursor, AuditOutcome, Permission},
    console::{check_slot::CheckSlot, snapshot_feed::SnapshotFeed},
    defer::tests::job_administration::make_dead_letters,
    store::{BackendFault, CapturedLog, Store, faulty_store},
};

/// A page of another origin can send a `GET` with the operator's credentials.
#[tokio::test]
async fn recorded_and_costly_looks_need_the_page_of_this_origin() {
    let (log, _guard) = CapturedLog::start_capture();
    let store = Store::memory();
    let console = console(&store, Permission::SeePayloads);
    let queue = store.queue::<String>("emails");
    let task = queue.push(&"<b>secret</b>".to_owned()).await.expect("there is room").into_id();
    let look = format!(r#"{{"action":"task-payload","queue":"emails","id":"{task}"}}"#);
    let check = r#"{"action":"check"}"#;
    for path in ["api/task-payload", "api/job-payload", "api/check"] {
        let reply = respond(&console, request("GET", &[HOST, SAME_ORIGIN]), path, b"").await;
        assert_eq!(reply.status, 404, "{path}");
    }
    let read = request("GET", &[HOST, SAME_ORIGIN]);
    assert_eq!(respond(&console, read, "api/actions", look.as_bytes()).await.status, 405);
    for body in [&*look, check] {
        for site in ["cross-site", "same-site", "none"] {
            let sent = request("POST", &[HOST, JSON, ("sec-fetch-site", site)]);
            let reply = respond(&console, sent, "api/actions", body.as_bytes()).await;
            assert_eq!(reply.status, 403, "{site}: {body}");
        }
    }
    let audit = store.audit(AuditCursor::default(), 10).await.expect("the store answers");
    assert!(audit.records.is_empty(), "{:?}", audit.records);
    log.assert_contains("an action was sent to the console by another page");

    for (body, shown) in [(&*look, "secret"), (check, "summary")] {
        let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
        let reply = respond(&console, sent, "api/actions", body.as_bytes()).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(reply.status == 200 && text.contains(shown), "{text}");
    }
}

#[tokio::test]
async fn second_check_at_once_is_refused() {
    let store = Store::memory();
    let consoles = [console(&store, Permission::Look), console(&store, Permission::Look)];
    let check = async |console| {
        let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
        respond(console, sent, "api/actions", br#"{"action":"check"}"#).await.status
    };
    let slot = store.extension::<CheckSlot>();
    let running = slot.0.lock().await;
    for console in &consoles {
        assert_eq!(check(console).await, 409);
    }
    drop(running);
    for console in &consoles {
        assert_eq!(check(console).await, 200);
    }
}

/// Like the consoles of actix-web's threads. Time stands still, so that no snapshot grows old.
#[tokio::test(start_paused = true)]
async fn consoles_of_one_store_share_a_snapshot() {
    let store = Store::memory();
    let snapshot_of = async |store: &Store| {
        let console = console(store, Permission::Look);
        let reply = respond(&console, request("GET", &[HOST]), "api/snapshot", b"").await;
        let snapshot: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        snapshot
    };
    let first = snapshot_of(&store).await;
    assert_eq!(first["jobs"]["paused"], false);
    store.deferred_jobs().pause().await.expect("the store answers");
    // Another inquiry would find the pause.
    assert_eq!(snapshot_of(&store.clone()).await, first);
    let mut events = SnapshotFeed::open_stream(store.clone());
    let event = events.next().await.expect("an event");
    assert!(String::from_utf8_lossy(&event).contains(&first.to_string()));

    let other = Store::memory();
    other.deferred_jobs().pause().await.expect("the store answers");
    assert_eq!(snapshot_of(&other).await["jobs"]["paused"], true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(snapshot_of(&store).await["jobs"]["paused"], true);
}

/// The answer comes after a second, and the last request follows after two.
#[tokio::test(start_paused = true)]
async fn bulk_redrive_goes_on_without_its_page() {
    let store = Store::memory();
    make_dead_letters(&store, 3).await;
    let send = async |store: &Store, permission, body: &str| {
        let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
        respond(&console(store, permission), sent, "api/actions", body.as_bytes()).await
    };
    let redrive = |per_second: u32| {
        format!(r#"{{"action":"redrive-dead-jobs","per_second":{per_second},"reason":"fixed"}}"#)
    };
    let wait_for_dead = async |count: u64| {
        let jobs = store.deferred_jobs();
        let wait = async {
            while jobs.stats().await.expect("the store answers").dead != count {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it goes on");
    };
    assert_eq!(send(&store, Permission::Look, &redrive(1)).await.status, 403);
    assert_eq!(send(&store, Permission::Act, &redrive(0)).await.status, 400);
    wait_for_dead(3).await;

    let reply = send(&store, Permission::Act, &redrive(1)).await;
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(reply.status == 200 && text.contains("goes on without this page"), "{text}");
    wait_for_dead(0).await;

    // The page is closed while it waits for the answer.
    make_dead_letters(&store, 3).await;
    assert!(send(&store, Permission::Act, &redrive(1)).now_or_never().is_none());
    wait_for_dead(0).await;

    let store = Store::memory();
    make_dead_letters(&store, 1).await;
    let purge = r#"{"action":"purge-dead-jobs","older_than_seconds":0,"reason":"useless"}"#;
    let reply = send(&store, Permission::Act, purge).await;
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(reply.status == 200 && text.contains("1 requests are deleted."), "{text}");
}

/// The page is closed while the store is slow.
#[tokio::test(start_paused = true)]
async fn record_of_an_action_is_ended_without_its_page() {
    let (store, faults) = faulty_store();
    faults.set("append_audit_record", BackendFault::SlowReply(Duration::from_secs(1)), 1);
    let console = console(&store, Permission::Act);
    let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
    let sent = respond(&console, sent, "api/actions", PAUSE);
    assert!(tokio::time::timeout(Duration::from_millis(100), sent).await.is_err());
    let is_ended = async || {
        let page = store.audit(AuditCursor::default(), 1).await.expect("the store answers");
        page.records.first().is_some_and(|record| record.outcome == AuditOutcome::Done)
    };
    let wait = async {
        while !is_ended().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the record is ended");
}
