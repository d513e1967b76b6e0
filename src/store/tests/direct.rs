//! Requests under an idempotency record that run at once.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, ask, deferred, key, stranger},
};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, BeginDirectOutcome, DirectRunCommand, EnqueueCommand,
        EnqueueOutcome, JobId, JobState, LockMode, StorageLimits,
    },
};

on_every_store!(
    the_record_is_taken_once,
    its_response_is_kept,
    another_request_is_told_apart_when_it_has_ended,
    forgotten_it_may_run_again,
    only_what_began_is_ended,
    it_is_over_with_its_life,
    a_deferred_request_has_the_record,
    nobody_begins_without_the_lock,
    a_run_is_renewed,
    a_run_that_crashed_may_have_run,
    a_run_that_crashed_and_may_run_again_does,
    a_run_is_buried,
);

fn direct(key: &Key) -> DirectRunCommand {
    let (id, owner) = (JobId::new(key), "tenant 1".to_owned());
    let (key, me) = (key.clone(), stranger());
    DirectRunCommand {
        key,
        token: me,
        mode: LockMode::Exclusive,
        record_name: "idem".into(),
        id,
        owner,
        retention: LONG,
        lease: SHORT,
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    }
}

async fn ask_to_begin(rig: &Rig, call: &DirectRunCommand) -> BeginDirectOutcome {
    rig.backend().begin_direct(call.clone()).await.unwrap()
}

/// Begins under the lock; the job that has the record, if it is another one.
async fn begin(rig: &Rig, call: &DirectRunCommand) -> Option<JobId> {
    rig.hold(&call.key, &call.token).await;
    let began = ask_to_begin(rig, call).await;
    rig.release(&call.key, &call.token).await;
    match began {
        BeginDirectOutcome::Started => None,
        BeginDirectOutcome::RecordTaken(id) => Some(id),
        BeginDirectOutcome::LockLost => panic!("its lock is held"),
        BeginDirectOutcome::TooManyRecords(left) => panic!("there is room before {left:?}"),
    }
}

async fn end(rig: &Rig, call: &DirectRunCommand, response: Option<&'static str>) {
    let response = response.map(|text| Bytes::from_static(text.as_bytes()));
    rig.backend().finish_direct(call.clone(), response).await.unwrap();
}

fn keyed(key: &Key) -> EnqueueCommand {
    EnqueueCommand {
        idempotency_record: Some(("idem".into(), "print".into(), LONG)),
        ..deferred(key)
    }
}

async fn the_record_is_taken_once(rig: &Rig) {
    let (key, a) = (key(), stranger());
    let (one, two) = (direct(&key), direct(&key));
    for _ in 0..2 {
        assert_eq!(begin(rig, &one).await, None);
    }
    assert_eq!(begin(rig, &two).await, Some(one.id.clone()));
    assert_eq!(rig.job(&two.id).await, None);
    let job = rig.job(&one.id).await.unwrap();
    assert_eq!((job.state, job.attempts, job.position), (JobState::Running, 1, None));
    assert_eq!(job.owner, "tenant 1");
    // Nobody has told what the request was: it is taken for the same.
    assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Duplicate(one.id.clone()));
    let call = AcquireCommand { record_name: Some("idem".into()), ..ask(&key, &a) };
    assert_eq!(rig.acquire(call).await, AcquireReply::AlreadyAccepted);
    // It stands in no line, and can't be cancelled.
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    assert_eq!(rig.cancel(&one.id).await, Some(JobState::Running));
    rig.hold(&key, &a).await;
}

async fn its_response_is_kept(rig: &Rig) {
    let key = key();
    let call = direct(&key);
    begin(rig, &call).await;
    rig.pass(LONG / 2).await;
    for _ in 0..2 {
        end(rig, &call, Some("answer")).await;
    }
    end(rig, &call, None).await;
    rig.pass(LONG / 2).await;
    let job = rig.job(&call.id).await.unwrap();
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
    assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Duplicate(call.id));
}

async fn another_request_is_told_apart_when_it_has_ended(rig: &Rig) {
    let key = key();
    let cases = [(Some("print"), true), (Some("other"), false), (None, true)];
    for (n, (print, answer)) in cases.into_iter().enumerate() {
        let record: Arc<str> = n.to_string().into();
        let call = DirectRunCommand { record_name: Arc::clone(&record), ..direct(&key) };
        let keyed = |key: &Key| {
            let record = Some((Arc::clone(&record), "print".into(), LONG));
            EnqueueCommand { idempotency_record: record, ..deferred(key) }
        };
        begin(rig, &call).await;
        assert_eq!(
            rig.enqueue(keyed(&key)).await,
            EnqueueOutcome::Duplicate(call.id.clone()),
            "not yet"
        );
        let ended = DirectRunCommand { fingerprint: print.map(str::to_owned), ..call.clone() };
        end(rig, &ended, Some("answer")).await;
        let expected = if answer {
            EnqueueOutcome::Duplicate(call.id.clone())
        } else {
            EnqueueOutcome::FingerprintMismatch
        };
        assert_eq!(rig.enqueue(keyed(&key)).await, expected, "{print:?}");
    }
}

async fn forgotten_it_may_run_again(rig: &Rig) {
    let key = key();
    let (one, two) = (direct(&key), direct(&key));
    begin(rig, &one).await;
    end(rig, &one, None).await;
    assert_eq!(rig.job(&one.id).await, None);
    assert_eq!(begin(rig, &two).await, None);
    end(rig, &one, None).await;
    assert_eq!(begin(rig, &one).await, Some(two.id.clone()), "the other one's was not touched");
    assert_eq!(rig.state(&two.id).await, Some(JobState::Running));
}

async fn only_what_began_is_ended(rig: &Rig) {
    let key = key();
    let call = direct(&key);
    end(rig, &call, Some("answer")).await;
    assert_eq!(rig.job(&call.id).await, None);
    // One that stands in a line is none of these, whatever the id says.
    let queued = keyed(&key);
    assert_eq!(rig.enqueue(queued.clone()).await, EnqueueOutcome::Stored { position: 1 });
    let call = DirectRunCommand { id: queued.id.clone(), ..call };
    for response in [Some("answer"), None] {
        end(rig, &call, response).await;
        assert_eq!(rig.state(&queued.id).await, Some(JobState::Queued));
    }
    assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Duplicate(queued.id));
}

async fn it_is_over_with_its_life(rig: &Rig) {
    let key = key();
    let call = DirectRunCommand { retention: SHORT, ..direct(&key) };
    begin(rig, &call).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.job(&call.id).await, None);
    let next = direct(&key);
    assert_eq!(begin(rig, &next).await, None);
    end(rig, &call, Some("answer")).await;
    assert_eq!(rig.job(&call.id).await, None);
    assert_eq!(rig.state(&next.id).await, Some(JobState::Running));
}

async fn a_deferred_request_has_the_record(rig: &Rig) {
    let key = key();
    let queued = keyed(&key);
    rig.enqueue(queued.clone()).await;
    assert_eq!(begin(rig, &direct(&key)).await, Some(queued.id));
}

/// It is a copy that was under way for too long: whoever sent it has ended the record by then.
async fn nobody_begins_without_the_lock(rig: &Rig) {
    let (key, other) = (key(), stranger());
    let call = direct(&key);
    assert_eq!(ask_to_begin(rig, &call).await, BeginDirectOutcome::LockLost, "never held");
    begin(rig, &call).await;
    end(rig, &call, None).await;
    assert_eq!(ask_to_begin(rig, &call).await, BeginDirectOutcome::LockLost, "given back");
    rig.hold(&key, &call.token).await;
    rig.pass(LONG).await;
    assert_eq!(ask_to_begin(rig, &call).await, BeginDirectOutcome::LockLost, "its lease is over");
    rig.hold(&key, &other).await;
    assert_eq!(ask_to_begin(rig, &call).await, BeginDirectOutcome::LockLost, "somebody else's");
    rig.release(&key, &other).await;
    assert_eq!(rig.job(&call.id).await, None);
    let retry = AcquireCommand { record_name: Some("idem".into()), ..ask(&key, &other) };
    let told = rig.acquire(retry).await;
    assert!(matches!(told, AcquireReply::Granted { .. }), "a retry runs: {told:?}");
    rig.release(&key, &other).await;
    // The same call again finds what it has taken, whatever has become of its lock since.
    begin(rig, &call).await;
    assert_eq!(ask_to_begin(rig, &call).await, BeginDirectOutcome::Started);
}

async fn a_run_is_renewed(rig: &Rig) {
    let key = key();
    // Its record is to live for less time than it runs.
    let call = DirectRunCommand { retention: SHORT / 2, ..direct(&key) };
    begin(rig, &call).await;
    for _ in 0..3 {
        rig.pass(SHORT * 3 / 4).await;
        assert!(rig.backend().renew_direct(call.clone()).await.unwrap());
        assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Duplicate(call.id.clone()));
        assert_eq!(rig.state(&call.id).await, Some(JobState::Running));
    }
    end(rig, &call, Some("answer")).await;
    assert!(!rig.backend().renew_direct(call.clone()).await.unwrap(), "it has ended");
    assert_eq!(rig.state(&call.id).await, Some(JobState::Done));
}

/// A retry under the key of a run that began as this, and was not renewed.
async fn a_retry_takes_the_lock(rig: &Rig, key: &Key) -> bool {
    let me = stranger();
    let retry = AcquireCommand { record_name: Some("idem".into()), ..ask(key, &me) };
    let told = rig.acquire(retry).await;
    rig.release(key, &me).await;
    matches!(told, AcquireReply::Granted { .. })
}

async fn a_run_that_crashed_may_have_run(rig: &Rig) {
    let key = key();
    let call = direct(&key);
    begin(rig, &call).await;
    rig.pass(SHORT).await;
    assert!(!a_retry_takes_the_lock(rig, &key).await);
    for _ in 0..2 {
        assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Duplicate(call.id.clone()));
        assert_eq!(begin(rig, &direct(&key)).await, Some(call.id.clone()));
        let job = rig.job(&call.id).await.unwrap();
        assert_eq!(job.state, JobState::Dead);
        assert_eq!(job.reason.as_deref(), Some("crashed, may have run"));
    }
    assert_eq!(rig.tally(key.shard()).await.dead, 1);
    // It was only slow: its end is void, as that of a deferred run is.
    assert!(!rig.backend().finish_direct(call.clone(), Some("answer".into())).await.unwrap());
    assert!(!rig.backend().mark_direct_dead(call.clone(), "stopped").await.unwrap());
    assert_eq!(rig.state(&call.id).await, Some(JobState::Dead));
    rig.pass(LONG).await;
    assert!(a_retry_takes_the_lock(rig, &key).await, "its record is over");
}

async fn a_run_that_crashed_and_may_run_again_does(rig: &Rig) {
    for how in ["acquire", "enqueue", "begin"] {
        let key = Key::custom(how);
        let call = DirectRunCommand { retry_after_crash: true, ..direct(&key) };
        begin(rig, &call).await;
        assert!(!a_retry_takes_the_lock(rig, &key).await);
        rig.pass(SHORT).await;
        match how {
            "acquire" => assert!(a_retry_takes_the_lock(rig, &key).await),
            "enqueue" => {
                assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Stored { position: 1 });
            }
            _ => assert_eq!(begin(rig, &direct(&key)).await, None),
        }
        assert_eq!(rig.job(&call.id).await, None, "{how}");
        assert!(!rig.backend().renew_direct(call.clone()).await.unwrap(), "{how}");
    }
}

async fn a_run_is_buried(rig: &Rig) {
    let key = key();
    let call = direct(&key);
    let bury = || rig.backend().mark_direct_dead(call.clone(), "stopped, may have run");
    assert!(!bury().await.unwrap(), "nothing has begun");
    begin(rig, &call).await;
    assert!(bury().await.unwrap());
    assert!(!bury().await.unwrap(), "once");
    end(rig, &call, None).await;
    let job = rig.job(&call.id).await.unwrap();
    assert_eq!(job.state, JobState::Dead);
    assert_eq!(job.reason.as_deref(), Some("stopped, may have run"));
    assert_eq!(rig.enqueue(keyed(&key)).await, EnqueueOutcome::Duplicate(call.id));
}
