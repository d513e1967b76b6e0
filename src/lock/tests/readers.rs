//! Layers whose requests share a lock.

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    SECOND, busy, free,
    seam::{enter, gate},
};
use crate::{
    defer::DeferGate,
    gate::{Asked, Gate as _, Outcome, Parting, Verdict, fake::FakeView},
    lock::{LockGate, LockTicket},
    store::Store,
};

async fn pass(gate: &LockGate<()>, method: &'static str) -> Option<LockTicket> {
    match enter(gate, &mut FakeView::new(method)).await {
        Verdict::Pass(ticket) => Some(ticket),
        Verdict::Busy(..) => None,
        Verdict::Answer(reply) => panic!("{reply:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_writers_do_not() {
    let store = Store::memory();
    let elsewhere = store.as_another_process();
    let (lock, other) = (gate(&store).read_write(), gate(&elsewhere).read_write());
    let readers = [pass(&lock, "GET").await, pass(&other, "HEAD").await, pass(&lock, "GET").await];
    assert!(readers.iter().all(Option::is_some));
    for method in ["POST", "PUT", "DELETE", "PATCH", "PROPFIND"] {
        assert!(pass(&other, method).await.is_none(), "{method}");
    }
    assert!(pass(&gate(&store), "POST").await.is_none(), "as for a layer that knows no readers");
    drop(readers);
    assert!(elsewhere.shutdown(SECOND).await);
    free(&store).await.release().await;
    let writer = pass(&lock, "POST").await.expect("it is free");
    assert!(pass(&other, "GET").await.is_none() && pass(&lock, "POST").await.is_none());
    for method in ["OPTIONS", "TRACE"] {
        assert!(matches!(lock.ask(&mut FakeView::new(method)), Asked::Skip), "{method}");
    }
    drop(writer);
    assert!(store.shutdown(SECOND).await);
    let all = lock.all_methods();
    let _reader = pass(&other, "GET").await.expect("it is free");
    assert!(pass(&all, "OPTIONS").await.is_none(), "if it is asked for");
}

#[tokio::test(start_paused = true)]
async fn so_many_permits_and_no_more() {
    let store = Store::memory();
    let (lock, other) = (gate(&store).permits(2), gate(&store.as_another_process()).permits(2));
    let first = pass(&lock, "POST").await.expect("one");
    let second = pass(&other, "POST").await.expect("two");
    assert!(pass(&lock, "POST").await.is_none() && pass(&gate(&store), "POST").await.is_none());
    lock.leave(first, Outcome::Answered(200)).await;
    let third = pass(&other, "PUT").await.expect("one has gone");
    assert!(pass(&other, "POST").await.is_none());
    drop((second, third));
    assert!(std::panic::catch_unwind(|| gate(&Store::memory()).permits(0)).is_err());
    assert!(std::panic::catch_unwind(|| Store::memory().lock("x").permits(0)).is_err());
}

/// A job runs under one lock that it has alone. What asks for less gets the plain busy answer, after its
/// own wait, since nobody takes it over.
#[tokio::test(start_paused = true)]
async fn what_would_share_is_not_deferred() {
    let store = Store::memory();
    let _held = store.lock("x").acquire().await.unwrap();
    let several = || ["x", "y"].map(str::to_owned).to_vec();
    let several = crate::gate::KeySource::functions(move |()| several());
    let several = LockGate::new(several).store(&store);
    for lock in [gate(&store).permits(2), several] {
        let (defer, lock) = (DeferGate::<()>::new(), lock.wait(2 * SECOND));
        let mut view = FakeView::new("POST");
        let Verdict::Pass(deferral) = enter(&defer, &mut view).await else {
            panic!("deferral lets everything in");
        };
        defer.show(&deferral, &mut view);
        let started = Instant::now();
        assert!(matches!(enter(&lock, &mut view).await, Verdict::Busy(..)));
        assert_eq!(started.elapsed().as_secs(), 2);
        let parting = defer.leave(deferral, Outcome::Answered(409)).await;
        assert!(matches!(parting, Parting::Fields(_)));
    }
}

/// It stands first, and keeps out those who could go in beside the holder: not for as long as it would have waited.
#[tokio::test]
async fn a_writer_that_has_died_in_line_is_not_waited_for() {
    let store = Store::memory();
    let reads = store.lock("x").shared().acquire().await.expect("nobody has it");
    let backend = store.clone();
    let dies = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let process = backend.as_another_process();
            let mut writes = Box::pin(process.lock("x").wait(60 * SECOND).acquire());
            assert!((&mut writes).now_or_never().is_none(), "it waits");
            // It does not leave: nobody hears of it any more.
            std::mem::forget((writes, process));
        });
        std::mem::forget(runtime);
    });
    dies.join().expect("it stood in line");
    assert_eq!(busy(store.lock("x").shared().acquire().await).line, 1);
    let started = Instant::now();
    let also = store.lock("x").shared().wait(60 * SECOND).acquire().await.expect("it reads, too");
    assert!(started.elapsed() < 20 * SECOND, "{:?}", started.elapsed());
    drop((reads, also));
}
