//! Calls that go together, on a real server and through a proxy that loses replies.

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
    // Two lanes, and on each the first alone and then the others, twice: some more where a reply is early,
    // but a third of one command each at most.
    assert!(calls <= CALL_COUNT as u64, "{calls} commands");
}

#[tokio::test]
async fn failing_step_does_not_fail_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let odd = KeyNames::new("test").holders(&Key::custom("7"));
    server.command(&["SET", &odd, "by hand"]).await;
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
        let gave_back = |outcome: &Result<_, _>| matches!(outcome, Ok(ReleaseOutcome::Released));
        assert_eq!(outcomes.iter().filter(|outcome| gave_back(outcome)).count(), CALL_COUNT - 1);
    }
}

/// Each kind of step in one call, and each answer to its own caller.
#[tokio::test]
async fn different_commands_share_one_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let backend = store.backend();
    let taken = |name: &str| {
        let call = acquire_command(&store, name);
        async move {
            let held = backend.acquire(call.clone()).await.unwrap();
            assert!(matches!(held, AcquireReply::Granted { .. }));
            call
        }
    };
    // All on one lane.
    let lane: Vec<_> = (0..100).map(|i| i.to_string()).collect();
    let mut lane = lane.iter().filter(|name| Key::custom(name).shard().is_multiple_of(2));
    let mut next = || lane.next().unwrap().as_str();
    let (a, b, c) = (taken(next()).await, taken(next()).await, taken(next()).await);
    let known = AcquireCommand { record_name: Some("r".into()), ..acquire_command(&store, next()) };
    let busy = AcquireCommand { token: LockToken::new(store.node()), ..a.clone() };
    let succeeds = AcquireCommand { token: LockToken::new(store.node()), ..c.clone() };
    let first = backend.acquire(acquire_command(&store, next()));
    let (first, busy, known, downgraded, passed) = tokio::join!(
        first,
        backend.acquire(busy),
        backend.acquire(known),
        backend.downgrade(b.key, b.token, SECOND),
        backend.release_and_reacquire(c.token, c.mode, succeeds),
    );
    assert!(matches!(first, Ok(AcquireReply::Granted { .. })));
    assert!(matches!(busy, Ok(AcquireReply::Busy { .. })));
    assert!(matches!(known, Ok(AcquireReply::Granted { .. })));
    assert!(downgraded.unwrap());
    assert!(matches!(passed, Ok((ReleaseOutcome::Released, AcquireReply::Granted { .. }))));
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

/// Counts the servers that this store is told of, while what it is told by is kept.
fn count_new_servers(store: &Store) -> (Arc<AtomicUsize>, Arc<dyn Fn() + Send + Sync>) {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let tell: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    store.backend().on_new_server(Arc::downgrade(&tell));
    (told, tell)
}

#[tokio::test]
async fn new_server_is_reported_once() {
    let mut server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let (told, _tell) = count_new_servers(&store);
    let both_lanes = || join_all((0..8).map(|i| store.lock(i.to_string()).acquire()));
    both_lanes().await.into_iter().for_each(|guard| drop(guard.unwrap()));
    // Another connection is not another server.
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    both_lanes().await.into_iter().for_each(drop);
    assert!(store.shutdown(RELEASE_LIMIT).await);
    assert_eq!(told.load(Ordering::SeqCst), 0);
    server.kill();
    assert!(store.ping().await.is_err());
    server.restart().await;
    wait_until_usable(&store).await;
    wait_until("both lanes to work", async || both_lanes().await.iter().all(Result::is_ok)).await;
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// Whoever comes first writes the layout again. The server is the same one, and still those after him are told.
#[tokio::test]
async fn data_loss_is_reported_in_each_process() {
    let server = ServerProcess::start().await;
    let mut told = Vec::new();
    for _ in 0..2 {
        let store = server.store_with_long_timeout().await;
        store.ping().await.expect("it is there");
        told.push((count_new_servers(&store), store));
    }
    server.command(&["FLUSHALL"]).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    for ((told, _tell), store) in &told {
        wait_until_usable(store).await;
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }
}

/// At one moment of the server's clock, and still each has its own and the spare ones.
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
        assert!(fences.windows(2).all(|two| two[0] + SPARE_FENCES < two[1]), "{fences:?}");
        let release =
            |call: AcquireCommand| store.backend().release(call.key, call.token, call.mode);
        join_all(calls.into_iter().map(release)).await;
    }
}
