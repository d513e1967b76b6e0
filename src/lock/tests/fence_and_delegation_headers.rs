//! Fence and delegation headers that a layer sets, trusts, or removes.

use super::{
    SECOND,
    lock_gate::{new_gate, pass_gate},
};
use crate::{
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, KeySource, REPLAY_HEADER, ServiceOutcome,
        Verdict, fake_request::FakeGateRequest,
    },
    lock::{AcquireError, HeldLock, LockLayer, SharedSecret},
    outage::LockOutage,
    store::{BackendFault, Store, faulty_store},
};

fn secret(byte: u8) -> SharedSecret {
    SharedSecret::new([byte; 32])
}

#[tokio::test(start_paused = true)]
async fn fence_header_replaces_that_of_the_client() {
    let (store, faults) = faulty_store();
    let lock = new_gate(&store).fence_header("X-Fence");
    for method in ["GET", "POST"] {
        let mut view = FakeGateRequest::new(method);
        view.headers.extend([
            ("x-fence", "18446744073709551615"),
            ("x-fence", "1"),
            ("x-other", "1"),
            // A proxy would remove a header that `Connection` names.
            ("connection", "close, X-Fence"),
        ]);
        match lock.inspect(&mut view) {
            InitialVerdict::Skip | InitialVerdict::PassLight(_) => {
                assert!(
                    view.header_values("x-fence").is_empty(),
                    "a request without a lock has no fence"
                );
            }
            InitialVerdict::Enter(context) => {
                let Verdict::Pass(ticket) = lock.enter(context).await else { panic!("it is free") };
                lock.annotate_request(&ticket, &mut view);
                let fence = view.extension::<HeldLock>().unwrap().fence().unwrap().to_string();
                assert_eq!(view.header_values("x-fence"), [fence.as_bytes()]);
                assert_eq!(view.header_values("connection"), [b"close"]);
                lock.leave(ticket, ServiceOutcome::Answered(200)).await;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(view.header_values("x-other").len(), 1);
    }
    faults.set("acquire", BackendFault::Unavailable, 1);
    let mut view = FakeGateRequest::new("POST");
    view.headers.push(("x-fence", "1"));
    let _ticket = pass_gate(&lock.on_outage(LockOutage::Admit), &mut view).await;
    assert!(view.header_values("x-fence").is_empty(), "without a lock there is none");
    let both = || ["x", "y"].map(str::to_owned).to_vec();
    let several = LockLayer::by(KeySource::functions(move |()| both())).store(&store);
    let _ticket = pass_gate(&several.fence_header("x-fence"), &mut view).await;
    let fences = String::from_utf8(view.header_values("x-fence")[0].to_vec()).unwrap();
    assert_eq!(fences.split(", ").count(), 2);
    assert!(
        std::panic::catch_unwind(|| new_gate(&Store::memory()).fence_header("X Fence")).is_err()
    );
}

/// Internal headers from clients are removed, whether or not the layer takes a lock.
#[tokio::test(start_paused = true)]
async fn untrusted_internal_headers_are_removed() {
    let store = Store::memory();
    let other = store.as_another_process();
    let guard = store.lock("y").acquire().await.unwrap();
    let (name, header) =
        guard.held_lock().delegation_header(&store, &secret(1)).expect("it is held");
    let header: &'static str = header.leak();
    for method in ["POST", "GET"] {
        for trust in [None, Some(2), Some(1)] {
            let lock = match trust {
                Some(byte) => new_gate(&other).trust_delegation(&secret(byte)),
                None => new_gate(&other),
            };
            let mut view = FakeGateRequest::new(method);
            view.headers.push((REPLAY_HEADER, "1;forged"));
            let mut delegated_view = view.clone();
            delegated_view.headers.push((name, header));
            for (view, is_trusted) in [(&mut view, false), (&mut delegated_view, trust == Some(1))]
            {
                let verdict = lock.inspect(view);
                assert!(
                    matches!(verdict, InitialVerdict::Enter(_) | InitialVerdict::Skip),
                    "{verdict:?}"
                );
                assert!(view.header_values(name).is_empty(), "{method} {trust:?}");
                let run = view.header_values(REPLAY_HEADER);
                assert_eq!(run.is_empty(), !is_trusted, "{method} {trust:?}: {run:?}");
                // An inner layer finds the same headers, whatever it trusts.
                let _ = new_gate(&other).inspect(view);
                assert_eq!(
                    view.header_values(REPLAY_HEADER).is_empty(),
                    !is_trusted,
                    "{method} {trust:?}"
                );
            }
            // A trusting inner layer finds the delegation behind a layer that does not trust it.
            let _ = new_gate(&other).trust_delegation(&secret(1)).inspect(&mut delegated_view);
            assert_eq!(
                delegated_view.header_values(REPLAY_HEADER),
                ["1;forged".as_bytes()],
                "{method} {trust:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn delegated_shared_lock_does_not_cover_a_writer() {
    let store = Store::memory();
    let other = store.as_another_process();
    let guard = store.lock("x").shared().acquire().await.unwrap();
    let (name, header) = guard.held_lock().delegation_header(&store, &secret(1)).unwrap();
    let mut view = FakeGateRequest::new("POST");
    view.headers.push((name, header.leak()));
    let lock = new_gate(&other).trust_delegation(&secret(1));
    assert!(
        matches!(lock.inspect(&mut view.clone()), InitialVerdict::Answer(reply) if reply.status == 500)
    );
    view.method = "GET";
    let lock = lock.read_write();
    let ticket = pass_gate(&lock, &mut view).await;
    let upgrade = lock.request_scope(&ticket).run(other.lock("x").acquire()).await;
    assert!(matches!(upgrade, Err(AcquireError::WouldDeadlock)));
}

/// An expired delegation does not count: an acquire calls the store, and a running handler is
/// cancelled.
#[tokio::test(start_paused = true)]
async fn expired_delegation_no_longer_counts() {
    let store = Store::memory();
    let other = store.as_another_process();
    let guard = store.lock("x").fixed_lease(SECOND).acquire().await.unwrap();
    let (name, header) = guard.held_lock().delegation_header(&store, &secret(1)).unwrap();
    let mut view = FakeGateRequest::new("POST");
    view.headers.push((name, header.leak()));
    let lock = new_gate(&other).trust_delegation(&secret(1));
    let ticket = pass_gate(&lock, &mut view).await;
    let held = view.extension::<HeldLock>().unwrap();
    lock.cancellation(&ticket).await;
    assert!(held.loss().is_some());
    let anew =
        lock.request_scope(&ticket).run(other.lock("x").wait(SECOND).acquire()).await.unwrap();
    assert!(anew.fence() > guard.fence());
}

/// An inner layer that takes no lock for this method keeps the fence of the outer layer.
#[tokio::test(start_paused = true)]
async fn fence_header_of_an_outer_layer_stays() {
    let (store, faults) = faulty_store();
    let key = |name: &'static str| KeySource::function(move |()| Some(name.to_owned()));
    let inner = || LockLayer::by(key("y")).store(&store).fence_header("x-fence");
    let outer = new_gate(&store).fence_header("X-Fence");
    let forged = || {
        let mut view = FakeGateRequest::new("POST");
        view.headers.push(("x-fence", "18446744073709551615"));
        view
    };
    let mut view = forged();
    let ticket = pass_gate(&outer, &mut view).await;
    let fence = view.extension::<HeldLock>().unwrap().fence().unwrap().to_string();
    assert!(matches!(inner().methods(["PUT"]).inspect(&mut view), InitialVerdict::Skip));
    assert_eq!(view.header_values("x-fence"), [fence.as_bytes()]);
    // With its own lock, the inner layer sets that lock's fence. Admitted without the lock, it
    // removes the header.
    let own = pass_gate(&inner(), &mut view).await;
    let own_fence = view.extension::<HeldLock>().unwrap().fence().unwrap().to_string();
    assert_eq!(view.header_values("x-fence"), [own_fence.as_bytes()]);
    drop((own, ticket));
    faults.set("acquire", BackendFault::Unavailable, 1);
    let _admitted = pass_gate(&inner().on_outage(LockOutage::Admit), &mut view).await;
    assert!(view.header_values("x-fence").is_empty());
    // If the outer layer sets no fence, or in another header, the value is still the client's.
    for outer in [new_gate(&store), new_gate(&store).fence_header("x-other")] {
        let mut view = forged();
        let _ticket = pass_gate(&outer, &mut view).await;
        assert!(matches!(inner().methods(["PUT"]).inspect(&mut view), InitialVerdict::Skip));
        assert!(view.header_values("x-fence").is_empty());
    }
}
