//! Batched lock calls, on a real server and through a proxy that loses replies.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;

use super::{
    RELEASE_LIMIT, SECOND, cluster, lossy_proxy::LossyProxy, server_process::ServerProcess,
    wait_until, wait_until_usable,
};
use crate::{
    error::ErrorKind,
    key::Key,
    lock::ReleaseStatus,
    store::{
        Store,
        backend::{
            AcquireCommand, AcquireReply, Contenders, LockToken, ReleaseOutcome, SPARE_FENCES,
        },
        key_names::KeyNames,
    },
};

const CALL_COUNT: usize = 40;

fn acquire_command(store: &Store, name: &str) -> AcquireCommand {
    cluster::acquire_command(&Key::custom(name), &LockToken::new(store.node()))
}

fn acquire_commands(store: &Store) -> Vec<AcquireCommand> {
    (0..CALL_COUNT).map(|i| acquire_command(store, &i.to_string())).collect()
}

#[tokio::test]
async fn concurrent_calls_are_sent_in_few_commands() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    drop(store.lock("warm").acquire().await.unwrap());
    store.shutdown(RELEASE_LIMIT).await;
    let before = server.info_number("commandstats", "cmdstat_evalsha:calls").await;
    let held = join_all((0..CALL_COUNT).map(|i| store.lock(i.to_string()).acquire())).await;
    let released = join_all(held.into_iter().map(|guard| guard.unwrap().release())).await;
    assert!(released.iter().all(|released| *released == ReleaseStatus::Released));
    let calls = server.info_number("commandstats", "cmdstat_evalsha:calls").await - before;
    // Each of two lanes sends its first call alone and then the others, for the acquires and for
    // the releases. Early replies cause more commands, but at most one for two calls.
    assert!(calls <= CALL_COUNT as u64, "{calls} commands");
}

#[tokio::test]
async fn failing_step_does_not_fail_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let corrupt_key = KeyNames::new("test").holders(&Key::custom("7"));
    server.command(&["SET", &corrupt_key, "by hand"]).await;
    for _ in 0..5 {
        let calls = acquire_commands(&store);
        let outcomes = join_all(calls.iter().map(|call| store.backend().acquire(call.clone())));
        for (i, outcome) in outcomes.await.into_iter().enumerate() {
            match outcome {
                Ok(AcquireReply::Granted { .. }) => assert_ne!(i, 7),
                Err(error) => assert_eq!((i, error.kind()), (7, ErrorKind::Protocol)),
                other => panic!("{other:?}"),
            }
        }
        let release =
            |call: AcquireCommand| store.backend().release(call.key, call.token, call.mode);
        let outcomes = join_all(calls.into_iter().map(release)).await;
        let is_released = |outcome: &Result<_, _>| matches!(outcome, Ok(ReleaseOutcome::Released));
        assert_eq!(outcomes.iter().filter(|outcome| is_released(outcome)).count(), CALL_COUNT - 1);
    }
}

/// One command of each kind in a batch, and each reply to its own caller.
#[tokio::test]
async fn different_commands_share_one_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let backend = store.backend();
    let acquire = |name: &str| {
        let call = acquire_command(&store, name);
        async move {
            let held = backend.acquire(call.clone()).await.unwrap();
            assert!(matches!(held, AcquireReply::Granted { .. }));
            call
        }
    };
    // Keys of one lane.
    let names: Vec<_> = (0..100).map(|i| i.to_string()).collect();
    let mut lane_names = names.iter().filter(|name| Key::custom(name).shard().is_multiple_of(2));
    let mut next = || lane_names.next().unwrap().as_str();
    let (a, b, c) = (acquire(next()).await, acquire(next()).await, acquire(next()).await);
    let with_record =
        AcquireCommand { record_name: Some("r".into()), ..acquire_command(&store, next()) };
    let busy = AcquireCommand { token: LockToken::new(store.node()), ..a.clone() };
    let successor = AcquireCommand { token: LockToken::new(store.node()), ..c.clone() };
    let first = backend.acquire(acquire_command(&store, next()));
    let (first, busy, with_record, downgraded, reacquired) = tokio::join!(
        first,
        backend.acquire(busy),
        backend.acquire(with_record),
        backend.downgrade(b.key, b.token, SECOND),
        backend.release_and_reacquire(c.token, c.mode, successor),
    );
    assert!(matches!(first, Ok(AcquireReply::Granted { .. })));
    assert!(matches!(busy, Ok(AcquireReply::Busy { .. })));
    assert!(matches!(with_record, Ok(AcquireReply::Granted { .. })));
    assert!(downgraded.unwrap());
    assert!(matches!(reacquired, Ok((ReleaseOutcome::Released, AcquireReply::Granted { .. }))));
}

#[tokio::test]
async fn lost_replies_of_batches_do_not_block_or_release_twice() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    drop(store.lock("warm").acquire().await.unwrap());
    for cuts in [1, 2, 3, 1, 2, 3] {
        proxy.lose_next_replies(cuts);
        let held = join_all((0..CALL_COUNT).map(|i| store.lock(i.to_string()).acquire())).await;
        assert_eq!(proxy.pending_cuts(), 0);
        proxy.lose_next_replies(cuts);
        let held = held.into_iter().map(|guard| guard.expect("no self-block").release());
        let released = join_all(held).await;
        assert_eq!(proxy.pending_cuts(), 0);
        assert!(
            released.iter().all(|released| *released == ReleaseStatus::Released),
            "{released:?}"
        );
    }
}

/// Counts the reports of a new server, for as long as the returned callback exists.
fn count_new_servers(store: &Store) -> (Arc<AtomicUsize>, Arc<dyn Fn() + Send + Sync>) {
    let report_count = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&report_count);
    let callback: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    store.backend().on_new_server(Arc::downgrade(&callback));
    (report_count, callback)
}

#[tokio::test]
async fn new_server_is_reported_once() {
    let mut server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let (report_count, _callback) = count_new_servers(&store);
    let both_lanes = || join_all((0..8).map(|i| store.lock(i.to_string()).acquire()));
    both_lanes().await.into_iter().for_each(|guard| drop(guard.unwrap()));
    // A new connection is not a new server.
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    both_lanes().await.into_iter().for_each(drop);
    assert!(store.shutdown(RELEASE_LIMIT).await);
    assert_eq!(report_count.load(Ordering::SeqCst), 0);
    server.kill();
    assert!(store.ping().await.is_err());
    server.restart().await;
    wait_until_usable(&store).await;
    wait_until("both lanes to work", async || both_lanes().await.iter().all(Result::is_ok)).await;
    assert_eq!(report_count.load(Ordering::SeqCst), 1);
}

/// The first process that connects writes the layout again, to the same server. The others must
/// detect the loss, too.
#[tokio::test]
async fn data_loss_is_reported_in_each_process() {
    let server = ServerProcess::start().await;
    let mut observers = Vec::new();
    for _ in 0..2 {
        let store = server.store_with_long_timeout().await;
        store.ping().await.expect("it is there");
        observers.push((count_new_servers(&store), store));
    }
    server.command(&["FLUSHALL"]).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    for ((report_count, _callback), store) in &observers {
        wait_until_usable(store).await;
        assert_eq!(report_count.load(Ordering::SeqCst), 1);
    }
}

/// All grants of a batch have the same server time. Each still gets a distinct fence and spare
/// fences.
#[tokio::test]
async fn batched_grants_of_one_shard_have_distinct_fences() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let names = (0..).map(|i: u32| i.to_string());
    let names: Vec<_> = names.filter(|name| Key::custom(name).shard() == 5).take(30).collect();
    for _ in 0..2 {
        let calls = names.iter().map(|name| acquire_command(&store, name));
        let calls: Vec<_> = calls.collect();
        let held = join_all(calls.iter().map(|call| store.backend().acquire(call.clone()))).await;
        let fence = |held| match held {
            Ok(AcquireReply::Granted {
                fence,
                queue_length: 0,
                contenders: Contenders::NONE,
                server_us: now,
            }) => {
                assert!(fence >= now);
                fence
            }
            other => panic!("{other:?}"),
        };
        let mut fences: Vec<_> = held.into_iter().map(fence).collect();
        fences.sort_unstable();
        assert!(fences.windows(2).all(|pair| pair[0] + SPARE_FENCES < pair[1]), "{fences:?}");
        let release =
            |call: AcquireCommand| store.backend().release(call.key, call.token, call.mode);
        join_all(calls.into_iter().map(release)).await;
    }
}
