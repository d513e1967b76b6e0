//! A store that outlives the runtimes that it is used on.

use tokio::runtime::{Builder, Runtime};

use super::{
    SECOND, server_process::ServerProcess, wait_for, wait_for_lock_subscriber, wait_until,
};
use crate::{
    Policy, Quota,
    lock::ReleaseStatus,
    queue::{Queue, Task, TaskFailure},
    store::Store,
};

fn current_thread_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Makes `call` the first one on each runtime after the one before has ended, as in tests that
/// share a store.
fn run_on_successive_runtimes(store: &Store, call: impl AsyncFn(u64)) {
    for n in 0..4 {
        current_thread_runtime().block_on(call(n));
        // Also after a call of another kind.
        current_thread_runtime().block_on(async {
            drop(store.lock(format!("{n}")).acquire().await.expect("it is free"));
            call(n + 4).await;
        });
    }
}

#[test]
fn first_charge_on_each_runtime_is_stored() {
    let (server, store) = store_with_ended_runtime();
    let quota = Quota::requests(100).per(60 * SECOND);
    let limit = store.rate_limiter(Policy::new(quota).with_name("shared"));
    let remaining = std::cell::Cell::new(100);
    run_on_successive_runtimes(&store, async |n| {
        let decision = limit.check("k", 1).await.expect("it is there");
        assert!(!decision.is_local(), "decided without the store: {n}");
        remaining.set(remaining.get() - 1);
        assert_eq!(decision.remaining(), remaining.get(), "{n}");
    });
    drop(server);
}

#[test]
fn first_push_on_each_runtime_is_stored_once() {
    let (server, store) = store_with_ended_runtime();
    let queue: Queue<u64> = store.queue("numbers");
    run_on_successive_runtimes(&store, async |n| {
        queue.push(&n).await.expect("it is stored");
    });
    let waiting = current_thread_runtime().block_on(queue.stats()).expect("an answer").waiting;
    assert_eq!(waiting, 8);
    drop(server);
}

/// Replica acknowledgements use a connection of their own.
#[test]
fn first_replicated_grant_on_each_runtime_succeeds() {
    let (server, store) = store_with_ended_runtime();
    let replica = current_thread_runtime().block_on(async {
        let replica = ServerProcess::start().await;
        replica.command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]).await;
        let granted = async || store.lock("x").min_replicas(1).acquire().await.is_ok();
        wait_until("the replica to follow", granted).await;
        replica
    });
    run_on_successive_runtimes(&store, async |n| {
        let granted = store.lock("r").min_replicas(1).wait(SECOND).acquire().await;
        let _ = granted.unwrap_or_else(|error| panic!("{n}: {error}")).release().await;
    });
    drop(replica);
}

fn store_with_ended_runtime() -> (ServerProcess, Store) {
    current_thread_runtime().block_on(async {
        let server = ServerProcess::start().await;
        let store = server.store_with_long_timeout().await;
        drop(store.lock("warm").acquire().await.expect("it is free"));
        (server, store)
    })
}

fn worker_thread_runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Store made on a runtime that has ended, and used on another one.
struct OrphanedStore {
    store: Store,
    runtime: Runtime,
    server: ServerProcess,
}

impl OrphanedStore {
    /// Runs `before` on the second runtime, and then ends the first one.
    fn end_home_runtime_after<T>(before: impl AsyncFnOnce(&Store) -> T) -> (Self, T) {
        let (home, runtime) = (worker_thread_runtime(), worker_thread_runtime());
        let (server, store) = home.block_on(async {
            let server = ServerProcess::start().await;
            let store = server.store_with_long_timeout().await;
            (server, store)
        });
        let output = runtime.block_on(before(&store));
        drop(home);
        let orphan = Self { store, runtime, server };
        (orphan, output)
    }
}

#[test]
fn held_lock_is_renewed_or_lost_after_store_runtime_ends() {
    let (orphan, guard) = OrphanedStore::end_home_runtime_after(async |store| {
        let request = store.lock("x").lease(SECOND);
        request.acquire().await.unwrap()
    });
    orphan.runtime.block_on(async {
        // Over several leases, the lock is renewed all the time, or else reported as lost.
        let lost = tokio::time::timeout(3 * SECOND, guard.lost()).await;
        let is_reported = async || tokio::time::timeout(5 * SECOND, guard.lost()).await.is_ok();
        assert!(
            lost.is_ok() || !guard.remaining().is_zero() || is_reported().await,
            "the loss is not reported"
        );
        drop(guard);
    });
}

#[test]
fn store_works_on_after_its_runtime_ends() {
    let (orphan, ()) = OrphanedStore::end_home_runtime_after(async |store| {
        drop(store.lock("warm").acquire().await.unwrap());
    });
    let store = &orphan.store;
    orphan.runtime.block_on(async {
        for i in 0..8 {
            let name = format!("{i}");
            let guard = store.lock(name.as_str()).lease(SECOND).acquire().await;
            guard.expect("the store reconnects").release().await;
        }
        let guard = store.lock("x").lease(2 * SECOND).acquire().await.unwrap();
        tokio::time::sleep(3 * SECOND).await;
        assert!(!guard.remaining().is_zero(), "it is renewed here now");
    });
}

/// The subscription is made anew.
#[test]
fn waiters_receive_wakeups_after_store_runtime_ends() {
    let (orphan, waiting) = OrphanedStore::end_home_runtime_after(async |store| {
        let held = store.lock("x").acquire().await.unwrap();
        let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
        (held, waiter)
    });
    let (held, waiter) = waiting;
    let store = &orphan.store;
    orphan.runtime.block_on(async {
        // The queue task may have ended with that runtime. Then the waiter gets an error at once.
        held.release().await;
        let first = wait_for("the waiter to end", waiter).await;
        drop(first.expect("no panic"));
        assert!(store.shutdown(5 * SECOND).await);
        let held = store.lock("y").acquire().await.unwrap();
        let waiter = crate::store::spawn(store.lock("y").wait(20 * SECOND).acquire());
        wait_for_lock_subscriber(&orphan.server).await;
        held.release().await;
        drop(waiter.await.unwrap().expect("it is handed over"));
    });
}

/// The worker makes no call that would start a new subscription.
#[test]
fn worker_receives_wakeups_after_store_runtime_ends() {
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let (orphan, ()) = OrphanedStore::end_home_runtime_after(async |store| {
        let queue: Queue<u32> = store.queue("numbers");
        let worker = queue.worker(move |task: Task<u32>| {
            let sent = started.send(task.payload);
            async move { sent.map_err(|_| TaskFailure::new("the test has ended")) }
        });
        drop(crate::store::spawn(worker.run(std::future::pending())));
        queue.push(&0).await.unwrap();
    });
    orphan.runtime.block_on(async {
        // A push of this process would wake the worker without a message, so another one pushes.
        let queue: Queue<u32> = orphan.server.store_with_long_timeout().await.queue("numbers");
        let (mut streak, mut tries) = (0, 0);
        while streak < 5 {
            tries += 1;
            assert!(tries < 100, "the worker finds tasks by polls but receives no wake-ups");
            while starts.try_recv().is_ok() {}
            queue.push(&tries).await.unwrap();
            let received = tokio::time::timeout(SECOND / 2, starts.recv()).await;
            streak = if received.is_ok() { streak + 1 } else { 0 };
        }
    });
}

/// The runtime of the first call after a reconnect must not be needed for later replies.
#[test]
fn stalled_runtime_does_not_hold_back_replies() {
    let home = worker_thread_runtime();
    let (server, store) = home.block_on(async {
        let server = ServerProcess::start().await;
        let store = server.store_with_long_timeout().await;
        (server, store)
    });
    let one_thread = || Builder::new_current_thread().enable_all().build().unwrap();
    let can_acquire = async |name: &str| match store.lock(name).acquire().await {
        Ok(guard) => guard.release().await == ReleaseStatus::Released,
        Err(_) => false,
    };
    let names: Vec<_> = (0..16).map(|n| n.to_string()).collect();
    let worker = one_thread();
    worker.block_on(async {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        for name in &names {
            while !can_acquire(name).await {}
        }
    });
    // From here on, that runtime runs nothing.
    one_thread().block_on(async {
        for name in &names {
            assert!(can_acquire(name).await, "{name}");
        }
    });
    drop(worker);
}

/// The first waiter starts the subscription that all later ones use.
#[test]
fn stalled_runtime_does_not_hold_back_wakeups() {
    let home = worker_thread_runtime();
    let (server, store, held) = home.block_on(async {
        let server = ServerProcess::start().await;
        let (store, other) =
            (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
        let held = other.lock("x").acquire().await.expect("it is free");
        (server, store, held)
    });
    let channel = format!("lg:1:test:w:{}", store.node());
    let wait_until_subscribed = async || {
        wait_until("it to listen", async || {
            let channels: Vec<String> = server.query(&["PUBSUB", "CHANNELS", &channel]).await;
            !channels.is_empty()
        })
        .await;
    };
    let worker = Builder::new_current_thread().enable_all().build().unwrap();
    worker.block_on(async {
        store.lock("x").wait(SECOND / 10).acquire().await.expect_err("it is not free");
        wait_until_subscribed().await;
    });
    // From here on, that runtime runs nothing.
    home.block_on(async {
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        wait_until_subscribed().await;
    });
    drop((worker, held));
}

/// All callers share the connection for replica acknowledgements.
#[test]
fn stalled_runtime_does_not_block_replicated_grants() {
    let home = worker_thread_runtime();
    let (server, replica, store) = home.block_on(async {
        let (server, replica) = (ServerProcess::start().await, ServerProcess::start().await);
        replica.command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]).await;
        let store = server.store_with_long_timeout().await;
        (server, replica, store)
    });
    let one_thread = || Builder::new_current_thread().enable_all().build().unwrap();
    let can_acquire = async || match store.lock("x").min_replicas(1).acquire().await {
        Ok(guard) => guard.release().await == ReleaseStatus::Released,
        Err(_) => false,
    };
    let worker = one_thread();
    worker.block_on(async { while !can_acquire().await {} });
    // From here on, that runtime runs nothing.
    assert!(one_thread().block_on(can_acquire()));
    drop((worker, server, replica));
}

/// A runtime that ends during a connect takes the connection with it.
#[test]
fn connection_opened_on_ended_runtime_is_replaced() {
    let runtime = worker_thread_runtime();
    let server = runtime.block_on(ServerProcess::start());
    let store = runtime.block_on(async {
        let builder =
            Store::builder(&server.url()).call_timeout(SECOND / 4).connections_per_node(1);
        server.freeze();
        builder.connect().await.expect("the URL is right")
    });
    let other = worker_thread_runtime();
    other.block_on(store.lock("x").acquire()).expect_err("it hangs");
    drop((other, runtime));
    server.resume();
    worker_thread_runtime().block_on(super::wait_until_usable(&store));
}
