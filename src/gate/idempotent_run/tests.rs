//! Records whose calls come late, or whose ends meet a store that is away.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Begin, Begun, RunLimits};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Acquire, Acquired, Caps, Direct, Fault, Faults, JobId, JobState, Mode, Store, Token, faulty,
    },
};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

const LIMITS: RunLimits = RunLimits { most: 8, time: LEASE };

/// Beyond the longest pause of an undo that is said again, far within a lease.
const SOON: Duration = Duration::from_secs(4);

fn ask(store: &Store, record: Option<Arc<str>>) -> Acquire {
    let (key, me) = (Key::custom("x"), Token::new(store.node()));
    Acquire { key, me, mode: Mode::Exclusive, lease: LEASE, wait: None, old_seq: 0, record }
}

/// A request that has its lock, and is about to begin.
pub(in crate::gate) async fn locked(store: &Store) -> Direct {
    let call = ask(store, Some("idem".into()));
    let answer = store.backend().acquire(call.clone()).await.unwrap();
    assert!(matches!(answer, Acquired::Held { .. }), "{answer:?}");
    let Acquire { key, me, .. } = call;
    let (id, record, life) = (JobId::new(&key), "idem".into(), 60 * SECOND);
    let (mode, owner, print) = (Mode::Exclusive, String::new(), None);
    Direct {
        key,
        me,
        mode,
        record,
        id,
        owner,
        life,
        lease: LEASE,
        again: false,
        caps: Caps::NONE,
        print,
    }
}

pub(in crate::gate) async fn begun(store: &Store, call: &Direct) -> Begun {
    match Begun::begin(store, call.clone(), LIMITS).await.unwrap() {
        Begin::Begun(begun) => begun,
        Begin::Taken | Begin::Lost | Begin::Full | Begin::TooManyKeys(_) => {
            panic!("it is the first, and has its lock")
        }
    }
}

/// The lock is given back, and a retry under the same key is asked for.
async fn retried(store: &Store, call: &Direct) -> Acquired {
    let (key, me) = (call.key.clone(), call.me.clone());
    store.backend().release(key, me, Mode::Exclusive).await.unwrap();
    store.backend().acquire(ask(store, Some("idem".into()))).await.unwrap()
}

async fn a_retry_runs(store: &Store, call: &Direct, how: &str) {
    let told = retried(store, call).await;
    assert!(matches!(told, Acquired::Held { .. }), "{how}: {told:?}");
    assert_eq!(store.backend().job(call.id.clone()).await.unwrap(), None, "{how}");
}

async fn begin_is_late(store: &Store, faults: &Faults, call: &Direct) {
    faults.set("begin_direct", Fault::Stray(SECOND), 1);
    let error = Begun::begin(store, call.clone(), LIMITS).await.err().expect("no answer comes");
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_behind_its_undo_is_undone() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    begin_is_late(&store, &faults, &call).await;
    tokio::time::sleep(SOON).await;
    a_retry_runs(&store, &call, "the store answers").await;

    let (store, faults) = faulty();
    let call = locked(&store).await;
    faults.set("end_direct", Fault::Away, 6);
    begin_is_late(&store, &faults, &call).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(faults.left("end_direct"), 0);
    a_retry_runs(&store, &call, "the store is away at first").await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_comes_behind_its_undo_is_undone() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    faults.set("begin_direct", Fault::Copy(SECOND), 1);
    begun(&store, &call).await.forget().await;
    tokio::time::sleep(SOON).await;
    a_retry_runs(&store, &call, "copied").await;
}

/// A shutdown waits until what is known to be there is undone, and that is; what comes later is undone all the same.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_copy_of_what_has_ended() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    faults.set("begin_direct", Fault::Copy(SECOND), 1);
    begun(&store, &call).await.forget().await;
    shuts_down_at_once(&store).await;
    tokio::time::sleep(SOON).await;
    a_retry_runs(&store, &call, "copied").await;
}

/// Nothing of it is there.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_copy_of_what_has_not_begun() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    let (key, me) = (call.key.clone(), call.me.clone());
    store.backend().release(key, me, Mode::Exclusive).await.unwrap();
    faults.set("begin_direct", Fault::Copy(SECOND), 1);
    let begin = Begun::begin(&store, call, LIMITS).await;
    assert!(matches!(begin, Ok(Begin::Lost)), "it has no lock");
    shuts_down_at_once(&store).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(faults.seen("begin_direct"), 1);
    assert!(faults.seen("end_direct") > 0, "what may come is undone");
}

async fn shuts_down_at_once(store: &Store) {
    let asked = Instant::now();
    assert!(store.shutdown(SOON).await, "it waits for what may never come");
    assert!(asked.elapsed() < SECOND / 2, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_end_reaches_a_store_that_was_away() {
    for how in ["forgotten", "dropped"] {
        let (store, faults) = faulty();
        let call = locked(&store).await;
        let begun = begun(&store, &call).await;
        faults.set("end_direct", Fault::Away, 6);
        match how {
            "forgotten" => begun.forget().await,
            _ => drop(begun),
        }
        assert!(store.shutdown(SOON).await, "it waits for that");
        assert_eq!(faults.left("end_direct"), 0, "{how}");
        a_retry_runs(&store, &call, how).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_it_was_answered_reaches_a_store_that_was_away() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    faults.set("end_direct", Fault::Away, 6);
    begun.keep(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    assert!(store.shutdown(SOON).await, "it waits for that");
    assert_eq!(retried(&store, &call).await, Acquired::Known);
    let job = store.backend().job(call.id.clone()).await.unwrap().expect("it is kept");
    assert_eq!((job.state, job.response), (JobState::Done, Some(Bytes::from_static(b"answer"))));
}

/// No more calls than needed: nothing is in doubt.
#[tokio::test(start_paused = true)]
async fn where_nothing_is_in_doubt_it_is_ended_once() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    begun(&store, &call).await.forget().await;
    let call = Direct { id: JobId::new(&call.key), ..call };
    drop(begun(&store, &call).await);
    let call = Direct { id: JobId::new(&call.key), ..call };
    tokio::time::sleep(SOON).await;
    begun(&store, &call).await.keep(SECOND, Bytes::new(), None).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!((faults.seen("begin_direct"), faults.seen("end_direct")), (3, 3));
}

/// The handler was called, and has not come to its end.
#[tokio::test(start_paused = true)]
async fn what_was_dropped_in_the_middle_may_have_run() {
    for again in [false, true] {
        let (store, faults) = faulty();
        let call = Direct { again, ..locked(&store).await };
        let mut begun = begun(&store, &call).await;
        begun.start();
        faults.set("bury_direct", Fault::Away, 3);
        drop(begun);
        assert!(store.shutdown(SOON).await);
        if again {
            a_retry_runs(&store, &call, "again").await;
            continue;
        }
        assert_eq!(retried(&store, &call).await, Acquired::Known);
        let job = store.backend().job(call.id.clone()).await.unwrap().expect("it is kept");
        let reason = job.reason.as_deref();
        assert_eq!((job.state, reason), (JobState::Dead, Some("stopped, may have run")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_renewed_for_as_long_as_it_lasts() {
    let (store, faults) = faulty();
    let call = locked(&store).await;
    let begun = begun(&store, &call).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(faults.seen("renew_direct"), 2);
    tokio::time::sleep(3 * LEASE).await;
    let job = store.backend().job(call.id.clone()).await.unwrap().expect("it is there");
    assert_eq!(job.state, JobState::Running);
    begun.keep(600 * SECOND, Bytes::new(), None).await;
    let renewed = faults.seen("renew_direct");
    tokio::time::sleep(LEASE).await;
    assert_eq!(faults.seen("renew_direct"), renewed);
}

#[tokio::test(start_paused = true)]
async fn runs_are_bounded_and_waited_for() {
    let (store, _) = faulty();
    let call = locked(&store).await;
    let first = begun(&store, &call).await;
    let one = RunLimits { most: 1, time: LEASE };
    let full = async || {
        Begun::begin(&store, Direct { id: JobId::new(&call.key), ..call.clone() }, one).await
    };
    assert!(matches!(full().await, Ok(Begin::Full)));
    assert!(!store.finish_remembered(SECOND).await, "it runs");
    crate::store::spawn(async move {
        tokio::time::sleep(SECOND).await;
        first.keep(600 * SECOND, Bytes::from_static(b"answer"), None).await;
    });
    assert!(store.finish_remembered(2 * SECOND).await);
    assert!(matches!(full().await, Ok(Begin::Taken)), "there is room");
}
