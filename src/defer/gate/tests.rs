//! Replies to parked requests when the store fails.

mod missing_lock;
mod owner_scoping;
mod status_paths;
mod storage_limits;
mod trace_link;
mod trigger_settings;

#[cfg(feature = "redis")]
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use bytes::Bytes;

use super::{DeferCandidate, DeferLayer, applied_preferences::AppliedPreferences};
#[cfg(feature = "redis")]
use crate::store::{ScriptedProxy, reply_script};
use crate::{
    defer::{
        extension_snapshot::{RequestSnapshots, SavedSnapshots},
        run_label::RunLabel,
    },
    durations::MAX_DURATION,
    gate::{
        BusyLockContext, Gate as _, HttpRequestHead, IdempotencyLookup, InitialVerdict,
        LockInstruction, ParkingSlot, fake_request::FakeGateRequest,
    },
    key::Key,
    reply::Reply,
    store::{
        AcquireCommand, AcquireReply, BackendFault, BeginDirectOutcome, DirectRunCommand,
        FaultSchedule, JobId, JobState, LockMode, LockToken, NodeId, StorageLimits, Store,
        faulty_store,
    },
};

type TestDeferLayer = DeferLayer<()>;

/// Candidate that its lock has parked, with an idempotency record.
fn parked_candidate(store: &Store) -> DeferCandidate {
    let record = IdempotencyLookup { record_name: "same".into(), direct_terms: None };
    let parked = BusyLockContext {
        store: store.clone(),
        key: Key::custom("7"),
        busy_status: 409,
        typical_hold: Duration::ZERO,
        is_recorded: false,
        is_not_deferrable: false,
    };
    DeferCandidate {
        parked,
        slot: ParkingSlot::new(LockInstruction::WaitFor(Duration::ZERO), Some(record)),
        owner: String::new(),
        applied_preferences: AppliedPreferences::default(),
        snapshots: RequestSnapshots::default(),
        saved_snapshots: SavedSnapshots::new(),
        lookup_only: false,
        label: RunLabel::default(),
    }
}

async fn try_accept(gate: &TestDeferLayer, store: &Store) -> Option<Reply> {
    let head = HttpRequestHead::new("POST", "/7", Vec::new(), None);
    gate.accept_parked(parked_candidate(store), head, Some(Bytes::from_static(b"body"))).await
}

async fn accept(gate: &TestDeferLayer, store: &Store) -> Reply {
    try_accept(gate, store).await.expect("an answer")
}

/// Acquires the lock and begins a direct run under the same idempotency key.
async fn begin_direct_run(store: &Store) -> DirectRunCommand {
    let (key, me, lease) =
        (Key::custom("7"), LockToken::new(&NodeId::new()), Duration::from_secs(600));
    let held = AcquireCommand {
        key: key.clone(),
        token: me.clone(),
        mode: LockMode::Exclusive,
        lease,
        max_wait: None,
        resume_seq: 0,
        record_name: None,
    };
    let held = store.backend().acquire(held).await;
    assert!(matches!(held, Ok(AcquireReply::Granted { .. })), "{held:?}");
    let (id, owner) = (JobId::new(&key), String::new());
    let call = DirectRunCommand {
        key,
        token: me,
        mode: LockMode::Exclusive,
        record_name: "same".into(),
        id,
        owner,
        retention: lease,
        lease: Duration::from_secs(600),
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    };
    let began = store.backend().begin_direct(call.clone()).await;
    assert!(matches!(began, Ok(BeginDirectOutcome::Started)), "{began:?}");
    call
}

fn location(reply: &Reply) -> &str {
    let found = reply.headers.iter().find(|(name, _)| name == "location");
    &found.expect("a location").1
}

/// The store computes with these durations, so an unbounded one would overflow.
#[tokio::test(start_paused = true)]
async fn unbounded_layer_durations_are_capped() {
    let endless = Duration::MAX;
    let gate = TestDeferLayer::new().wait_up_to(endless).max_preferred_wait(endless).delay(endless);
    let gate = gate.expires_after(endless).idempotency_ttl(endless);
    let settings = &gate.0;
    // `max_wait` is visible to clients, so it is capped at the longest wait of a lock.
    assert_eq!(settings.trigger.max_wait, Duration::from_secs(600));
    let all = [
        settings.trigger.lock_wait,
        settings.run.delay,
        settings.run.deadline.expect("there is one"),
        settings.idempotency.ttl,
    ];
    assert_eq!(all, [MAX_DURATION; 4]);
    let store = Store::memory();
    assert_eq!(accept(&gate, &store).await.status, 202);
    assert_eq!(accept(&gate, &store).await.status, 202, "by its record");
}

/// A `Prefer: wait` may not shorten the wait of the route either.
#[test]
fn prefer_wait_is_ignored_with_zero_max_preferred_wait() {
    let lock_wait = Duration::from_secs(5);
    let gate = TestDeferLayer::new().wait_up_to(lock_wait).max_preferred_wait(Duration::ZERO);
    for preference in ["wait=0", "wait=20"] {
        let mut view = FakeGateRequest::new("POST");
        view.headers.push(("prefer", preference));
        assert!(matches!(gate.inspect(&mut view), InitialVerdict::PassLight(_)), "{preference}");
        let slot = ParkingSlot::take_from(&mut view).expect("the gate has left a parking slot");
        assert_eq!(slot.instruction(), LockInstruction::WaitFor(lock_wait), "{preference}");
    }
}

/// `valid_for_s` is the idempotency TTL with a key and one minute without, less the elapsed time
/// and an allowance for the reply's transfer.
#[tokio::test(start_paused = true)]
async fn uncertain_enqueue_reports_how_long_its_advice_holds() {
    let (store, faults) = faulty_store();
    let gate = TestDeferLayer::new().idempotency_ttl(Duration::from_secs(600));
    for (keyed, seconds) in [(true, 589), (false, 49)] {
        faults.set("enqueue", BackendFault::ReplyTimeout, 1);
        let mut parked = parked_candidate(&store);
        if !keyed {
            parked.slot = ParkingSlot::new(LockInstruction::WaitFor(Duration::ZERO), None);
        }
        let head = HttpRequestHead::new("POST", "/7", Vec::new(), None);
        let reply = gate.accept_parked(parked, head, Some(Bytes::new())).await.expect("an answer");
        let problem: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!(
            (reply.status, problem["valid_for_s"].as_u64()),
            (503, Some(seconds)),
            "{problem}"
        );
        let detail = problem["detail"].as_str().expect("a text");
        assert_eq!(detail.contains("same Idempotency-Key"), keyed, "{detail}");
        // The location stays valid that long, even if the job is cancelled and purged.
        let id = JobId::parse(location(&reply).trim_start_matches("/deferred/")).expect("an id");
        assert!(store.deferred_jobs().cancel(&id).await.expect("the store is there").is_some());
        assert!(store.deferred_jobs().purge(&id).await.expect("the store is there"));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert!(store.deferred_jobs().get(&id).await.expect("the store is there").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn enqueue_and_retry_without_replicas_are_uncertain() {
    let (store, faults) = faulty_store();
    let gate = TestDeferLayer::new().min_replicas(1);
    faults.set("replicated", BackendFault::Unavailable, 2);
    let doubtful = accept(&gate, &store).await;
    assert_eq!(doubtful.status, 503);
    // The job is queued despite the 503.
    let id = JobId::parse(location(&doubtful).trim_start_matches("/deferred/")).expect("an id");
    let job =
        store.backend().job_view(id).await.expect("the store is there").expect("it is stored");
    assert_eq!(job.state, JobState::Queued);
    for status in [503, 202, 202] {
        let again = accept(&gate, &store).await;
        assert_eq!((again.status, location(&again)), (status, location(&doubtful)));
    }
    assert_eq!(faults.call_count("replicated"), 4);
}

/// Retries while the first run's record is removed between the lookup of the record and the read of
/// its job.
async fn retry_while_record_is_forgotten(
    store: &Store,
    faults: &FaultSchedule,
) -> (DirectRunCommand, Option<Reply>) {
    let first = begin_direct_run(store).await;
    let gate = TestDeferLayer::new().idempotent_direct();
    faults.set("job", BackendFault::SlowCall(Duration::from_secs(1)), 1);
    let forget_record = async {
        while faults.remaining("job") > 0 {
            tokio::task::yield_now().await;
        }
        let ended = store.backend().finish_direct(first.clone(), None).await;
        assert!(ended.expect("the store is there"));
    };
    let (reply, ()) = tokio::join!(try_accept(&gate, store), forget_record);
    (first, reply)
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_run_forgotten_meanwhile_is_enqueued() {
    let (store, faults) = faulty_store();
    let (first, reply) = retry_while_record_is_forgotten(&store, &faults).await;
    let reply = reply.expect("an answer");
    assert_eq!(reply.status, 202, "{reply:?}");
    let id = JobId::parse(location(&reply).trim_start_matches("/deferred/")).expect("an id");
    assert_ne!(id, first.id);
    let job =
        store.backend().job_view(id).await.expect("the store is there").expect("it is stored");
    assert_eq!(job.state, JobState::Queued);
}

/// An unreadable job may be a direct run if the layer has `idempotent_direct`; then it is unknown
/// whether the request is stored.
#[tokio::test(start_paused = true)]
async fn retry_with_unreadable_job_is_uncertain() {
    let (store, faults) = faulty_store();
    let _first = begin_direct_run(&store).await;
    for (gate, status) in
        [(TestDeferLayer::new().idempotent_direct(), 503), (TestDeferLayer::new(), 202)]
    {
        faults.set("job", BackendFault::Unavailable, 1);
        assert_eq!(accept(&gate, &store).await.status, status);
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_are_not_queried_without_min_replicas() {
    let (store, faults) = faulty_store();
    assert_eq!(accept(&TestDeferLayer::new(), &store).await.status, 202);
    assert_eq!(faults.call_count("replicated"), 0);
}

/// With `replicas_on_disk`, an acknowledgement of a replica does not replace the fsync of the
/// master.
#[cfg(feature = "redis")]
#[tokio::test]
async fn enqueue_not_on_the_masters_disk_is_uncertain() {
    let synced = Arc::<AtomicBool>::default();
    let on_disk = Arc::clone(&synced);
    let proxy = ScriptedProxy::start(move |call| match call.args {
        ["INFO", ..] => {
            reply_script(r"'redis_version:7.2.4\r\nrole:master\r\nrun_id:a\r\naof_enabled:1\r\n'")
        }
        ["WAITAOF", "1", "1", _] if on_disk.load(Ordering::SeqCst) => reply_script("{1, 1}"),
        ["WAITAOF", "1", "1", _] => reply_script("{0, 1}"),
        _ => None,
    })
    .await;
    let url = format!("redis://127.0.0.1:{}/?ns=test", proxy.port());
    let builder = Store::builder(&url).call_timeout(Duration::from_secs(10)).replicas_on_disk(true);
    let (store, gate) = (builder.connect().await.expect("the URL is right"), TestDeferLayer::new());
    let gate = gate.min_replicas(1);
    let doubtful = accept(&gate, &store).await;
    assert_eq!(doubtful.status, 503);
    let id = JobId::parse(location(&doubtful).trim_start_matches("/deferred/")).expect("an id");
    assert!(store.backend().job_view(id).await.expect("the store is there").is_some());
    synced.store(true, Ordering::SeqCst);
    let again = accept(&gate, &store).await;
    assert_eq!((again.status, location(&again)), (202, location(&doubtful)));
}

#[test]
fn status_path_invalid_in_a_header_is_refused() {
    for path in ["/auftr\u{e4}ge", "/a b", "/a?b", "/a#b", "/a\r\nb"] {
        let result = std::panic::catch_unwind(|| TestDeferLayer::new().status_path(path));
        let panic = result.expect_err(path);
        let message = panic.downcast_ref::<String>().expect("a sentence");
        assert!(message.contains("is not a path such as /deferred"), "{message}");
    }
    let _ = TestDeferLayer::new().status_path("/a/%C3%A4/b~c");
}
