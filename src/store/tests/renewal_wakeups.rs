//! Wake-ups of the lease agent.

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

fn new_lease(lease: Duration) -> Arc<LockLease> {
    let terms = LeaseTerms {
        lease,
        renews: true,
        max_hold: Duration::from_secs(60),
        job: None,
        mode: LockMode::Exclusive,
    };
    let token = LockToken::new(&NodeId::new());
    LockLease::new(&Key::custom("x"), &token, Instant::now() + lease, terms, 0, None)
}

/// A wake-up crosses threads and costs more than the call that it is for.
#[tokio::test(start_paused = true)]
async fn brief_locks_wake_agent_only_once() {
    let scheduler = RenewalScheduler::new(Arc::new(MemoryBackend::new(Clock::system())));
    assert_eq!(scheduler.next_wakeup(), None);
    let mut wakeup_count = 0;
    for _ in 0..100 {
        let lease = new_lease(Duration::from_secs(10));
        scheduler.track(&lease);
        scheduler.untrack(&lease);
        tokio::time::advance(Duration::from_millis(1)).await;
        if tokio::time::timeout(Duration::ZERO, scheduler.rescheduled()).await.is_ok() {
            wakeup_count += 1;
            // The agent does this when the lease that woke it is gone.
            scheduler.next_wakeup();
        }
    }
    assert_eq!(wakeup_count, 1);
    // An earlier deadline still wakes it.
    let short = new_lease(Duration::from_millis(300));
    scheduler.track(&short);
    scheduler.rescheduled().await;
    assert!(scheduler.next_wakeup().is_some_and(|next| next <= Instant::now() + short.terms.lease));
}

fn paused_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// A task that detects a data loss may run on a runtime where nothing else is polled.
#[test]
fn recheck_runs_on_runtime_of_agent() {
    let memory = Arc::new(MemoryBackend::new(Clock::system()));
    let backend: Arc<dyn crate::store::backend::Backend> = memory.clone();
    let scheduler = Arc::new(RenewalScheduler::new(backend));
    let (agent_runtime, other_runtime) = (paused_runtime(), paused_runtime());
    agent_runtime.block_on(async {
        let lease = new_lease(Duration::from_secs(30));
        let hold = HoldState::new(Arc::clone(&lease), 1);
        assert!(lease.begin_hold(&hold));
        let command = AcquireCommand {
            key: lease.key.clone(),
            token: lease.token.clone(),
            mode: LockMode::Exclusive,
            lease: Duration::from_secs(600),
            max_wait: None,
            resume_seq: 0,
            record_name: None,
        };
        memory.acquire(command).await.unwrap();
        scheduler.track(&lease);
        scheduler.next_wakeup();
        std::thread::scope(|threads| {
            // Ready at once, so tasks spawned on that runtime are never polled.
            threads.spawn(|| other_runtime.block_on(async { scheduler.recheck_all() }));
        });
        scheduler.rescheduled().await;
        assert!(scheduler.next_wakeup().is_some_and(|next| next <= Instant::now()), "at once");
        let valid_until = lease.valid_until();
        tokio::time::advance(Duration::from_secs(1)).await;
        scheduler.tick();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(lease.valid_until() > valid_until, "long before its time");
        assert!(scheduler.next_wakeup().is_some_and(|next| next > Instant::now()), "once");
        drop(hold);
    });
}

/// A guard may outlive its agent's runtime, and the task that detects the new server may need no
/// agent itself.
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

/// A renewal task may be dropped before its first poll.
#[test]
fn renewal_dropped_with_runtime_runs_on_next_one() {
    for verify in [false, true] {
        let memory = Arc::new(MemoryBackend::new(Clock::system()));
        let backend: Arc<dyn crate::store::backend::Backend> = memory.clone();
        let scheduler = Arc::new(RenewalScheduler::new(backend));
        let (lease, _hold) = paused_runtime().block_on(async {
            let lease = new_lease(Duration::from_secs(30));
            let hold = HoldState::new(Arc::clone(&lease), 1);
            assert!(lease.begin_hold(&hold));
            let command = AcquireCommand {
                key: lease.key.clone(),
                token: lease.token.clone(),
                mode: LockMode::Exclusive,
                lease: Duration::from_secs(600),
                max_wait: None,
                resume_seq: 0,
                record_name: None,
            };
            memory.acquire(command).await.unwrap();
            scheduler.track(&lease);
            tokio::time::advance(Duration::from_secs(11)).await;
            if verify {
                scheduler.recheck_all();
            } else {
                scheduler.tick();
            }
            (lease, hold)
        });
        let valid_until = lease.valid_until();
        paused_runtime().block_on(async {
            tokio::time::advance(Duration::from_secs(15)).await;
            scheduler.tick();
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
        assert!(lease.valid_until() > valid_until, "verify: {verify}");
    }
}
