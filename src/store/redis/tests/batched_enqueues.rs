//! Batches of concurrent enqueues, with failures and lost replies.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::{cluster::enqueue_command, lossy_proxy::LossyProxy, server_process::ServerProcess};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{EnqueueCommand, EnqueueOutcome, JobState},
        key_names::KeyNames,
    },
};

const CALL_COUNT: usize = 48;

fn numbered_key(n: usize) -> Key {
    Key::custom(&n.to_string())
}

async fn count_script_calls(server: &ServerProcess) -> u64 {
    server.info_number("commandstats", "cmdstat_evalsha:calls").await
}

async fn enqueue_all(store: &Store, calls: &[EnqueueCommand]) -> Vec<EnqueueOutcome> {
    let all = join_all(calls.iter().map(|call| store.backend().enqueue(call.clone()))).await;
    all.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn concurrent_enqueues_are_sent_in_few_commands() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    enqueue_all(&store, &[enqueue_command(&numbered_key(0))]).await;
    let before = count_script_calls(&server).await;
    enqueue_all(&store, &[enqueue_command(&numbered_key(0))]).await;
    assert_eq!(count_script_calls(&server).await - before, 1);
    let calls = Vec::from_iter((0..CALL_COUNT).map(|_| enqueue_command(&numbered_key(0))));
    let before = count_script_calls(&server).await;
    let positions: BTreeSet<u64> = enqueue_all(&store, &calls)
        .await
        .into_iter()
        .map(|stored| match stored {
            EnqueueOutcome::Stored { position } => position,
            other => panic!("{other:?}"),
        })
        .collect();
    // The first call alone, then the others, up to 16 at a time. Early replies make batches
    // smaller.
    let commands = count_script_calls(&server).await - before;
    assert!((4..=CALL_COUNT as u64 / 4).contains(&commands), "{commands} commands");
    assert_eq!(positions, (3..CALL_COUNT as u64 + 3).collect());
}

#[tokio::test]
async fn failing_enqueue_does_not_fail_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let corrupt_key = KeyNames::new("test").job_queue(&numbered_key(7));
    server.command(&["SET", &corrupt_key, "by hand"]).await;
    let calls = Vec::from_iter((0..CALL_COUNT).map(|n| enqueue_command(&numbered_key(n))));
    let outcomes = join_all(calls.iter().map(|call| store.backend().enqueue(call.clone()))).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(stored) => {
                assert_eq!((n == 7, stored), (false, EnqueueOutcome::Stored { position: 1 }));
            }
            Err(error) => assert_eq!((n, error.kind()), (7, ErrorKind::Protocol)),
        }
    }
    assert_eq!(store.backend().job_view(calls[7].id.clone()).await.unwrap(), None);
}

#[tokio::test]
async fn lost_replies_do_not_store_jobs_twice() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    for cuts in [1, 2, 3] {
        let key = numbered_key(cuts);
        let calls = Vec::from_iter((0..CALL_COUNT).map(|_| enqueue_command(&key)));
        proxy.lose_next_replies(cuts);
        let stored = enqueue_all(&store, &calls).await;
        assert!(stored.iter().all(|stored| matches!(stored, EnqueueOutcome::Stored { .. })));
        let queue_key = KeyNames::new("test").job_queue(&key);
        assert_eq!(server.query::<usize>(&["ZCARD", &queue_key]).await, CALL_COUNT);
        for call in calls {
            let state =
                store.backend().cancel_waiting_job(call.id, 0, super::SECOND).await.unwrap();
            assert_eq!(state, Some(JobState::Cancelled));
        }
        let remaining: usize = server.query(&["EXISTS", &queue_key]).await;
        assert_eq!(remaining, 0);
    }
}
