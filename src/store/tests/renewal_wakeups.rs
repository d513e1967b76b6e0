//! What wakes the agent.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    clock::Clock,
    key::Key,
    store::{
        backend::{AcquireCommand, Backend as _, LockMode, LockToken, NodeId},
        hold_state::HoldState,
        lock_lease::{LeaseTerms, LockLease},
        memory::MemoryBackend,
        renewal_scheduler::RenewalScheduler,
        tests::faulty_store,
    },
};

fn new_lease(of: Duration) -> Arc<LockLease> {
    let terms = LeaseTerms {
        lease: of,
        renews: true,
        max_hold: Duration::from_secs(60),
        job: None,
        mode: LockMode::Exclusive,
    };
    let me = LockToken::new(&NodeId::new());
    LockLease::new(&Key::custom("x"), &me, Instant::now() + of, terms, 0, None)
}

/// Each waking is another thread's, and dearer than the call that it is about.
#[tokio::test(start_paused = true)]
async fn brief_locks_wake_agent_only_once() {
    let rounds = RenewalScheduler::new(Arc::new(MemoryBackend::new(Clock::system())));
    assert_eq!(rounds.next_wakeup(), None);
    let mut woken = 0;
    for _ in 0..100 {
        let held = new_lease(Duration::from_secs(10));
        rounds.track(&held);
        rounds.untrack(&held);
        tokio::time::advance(Duration::from_millis(1)).await;
        if tokio::time::timeout(Duration::ZERO, rounds.rescheduled()).await.is_ok() {
            woken += 1;
            // As the agent does, when what it was woken for has gone.
            rounds.next_wakeup();
        }
    }
    assert_eq!(woken, 1);
    // What is to be done sooner wakes it all the same.
    let short = new_lease(Duration::from_millis(300));
    rounds.track(&short);
    rounds.rescheduled().await;
    assert!(rounds.next_wakeup().is_some_and(|next| next <= Instant::now() + short.terms.lease));
}

fn paused_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// Whoever meets a server that may have lost it all may run where nothing else is ever polled.
#[test]
fn recheck_runs_on_runtime_of_agent() {
    let memory = Arc::new(MemoryBackend::new(Clock::system()));
    let backend: Arc<dyn crate::store::backend::Backend> = memory.clone();
    let rounds = Arc::new(RenewalScheduler::new(backend));
    let (home, still) = (paused_runtime(), paused_runtime());
    home.block_on(async {
        let held = new_lease(Duration::from_secs(30));
        let turn = HoldState::new(Arc::clone(&held), 1);
        assert!(held.begin_hold(&turn));
        let asked = AcquireCommand {
            key: held.key.clone(),
            token: held.token.clone(),
            mode: LockMode::Exclusive,
            lease: Duration::from_secs(600),
            max_wait: None,
            resume_seq: 0,
            record_name: None,
        };
        memory.acquire(asked).await.unwrap();
        rounds.track(&held);
        rounds.next_wakeup();
        std::thread::scope(|threads| {
            // Ready at once: what was spawned there stays as it is.
            threads.spawn(|| still.block_on(async { rounds.recheck_all() }));
        });
        rounds.rescheduled().await;
        assert!(rounds.next_wakeup().is_some_and(|next| next <= Instant::now()), "at once");
        let until = held.valid_until();
        tokio::time::advance(Duration::from_secs(1)).await;
        rounds.tick();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(held.valid_until() > until, "long before its time");
        assert!(rounds.next_wakeup().is_some_and(|next| next > Instant::now()), "once");
        drop(turn);
    });
}

/// A guard may outlive the runtime that its agent was on, and who meets the new server may need no agent himself.
#[test]
fn recheck_runs_after_agent_runtime_ended() {
    let (store, faults) = faulty_store();
    let guard = paused_runtime().block_on(store.lock("x").acquire()).expect("it is free");
    assert_eq!(faults.call_count("renew"), 0);
    paused_runtime().block_on(async {
        store.agent().recheck_leases();
        tokio::time::sleep(Duration::from_millis(1)).await;
    });
    assert_eq!(faults.call_count("renew"), 1);
    drop(guard);
}

/// The task of a renewal may be dropped before it was ever polled.
#[test]
fn renewal_dropped_with_runtime_runs_on_next_one() {
    for verify in [false, true] {
        let memory = Arc::new(MemoryBackend::new(Clock::system()));
        let backend: Arc<dyn crate::store::backend::Backend> = memory.clone();
        let rounds = Arc::new(RenewalScheduler::new(backend));
        let (held, _turn) = paused_runtime().block_on(async {
            let held = new_lease(Duration::from_secs(30));
            let turn = HoldState::new(Arc::clone(&held), 1);
            assert!(held.begin_hold(&turn));
            let asked = AcquireCommand {
                key: held.key.clone(),
                token: held.token.clone(),
                mode: LockMode::Exclusive,
                lease: Duration::from_secs(600),
                max_wait: None,
                resume_seq: 0,
                record_name: None,
            };
            memory.acquire(asked).await.unwrap();
            rounds.track(&held);
            tokio::time::advance(Duration::from_secs(11)).await;
            if verify {
                rounds.recheck_all();
            } else {
                rounds.tick();
            }
            (held, turn)
        });
        let until = held.valid_until();
        paused_runtime().block_on(async {
            tokio::time::advance(Duration::from_secs(15)).await;
            rounds.tick();
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
        assert!(held.valid_until() > until, "verify: {verify}");
    }
}
