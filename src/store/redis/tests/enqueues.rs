//! Requests that are deferred at the same time, and lose their replies.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::{cluster::deferred, proxy::Proxy, server::Server};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{EnqueueCommand, EnqueueOutcome, JobState},
        key_names::KeyNames,
    },
};

const MANY: usize = 48;

fn key(n: usize) -> Key {
    Key::custom(&n.to_string())
}

async fn calls_to(server: &Server) -> u64 {
    server.info("commandstats", "cmdstat_evalsha:calls").await
}

async fn store_all(store: &Store, calls: &[EnqueueCommand]) -> Vec<EnqueueOutcome> {
    let all = join_all(calls.iter().map(|call| store.backend().enqueue(call.clone()))).await;
    all.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn one_is_one_command_and_many_are_few() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    store_all(&store, &[deferred(&key(0))]).await;
    let before = calls_to(&server).await;
    store_all(&store, &[deferred(&key(0))]).await;
    assert_eq!(calls_to(&server).await - before, 1);
    let calls = Vec::from_iter((0..MANY).map(|_| deferred(&key(0))));
    let before = calls_to(&server).await;
    let positions: BTreeSet<u64> = store_all(&store, &calls)
        .await
        .into_iter()
        .map(|stored| match stored {
            EnqueueOutcome::Stored { position } => position,
            other => panic!("{other:?}"),
        })
        .collect();
    // The first one alone, then the others, sixteen at a time; when a flight lands early, fewer go with the next.
    let commands = calls_to(&server).await - before;
    assert!((4..=MANY as u64 / 4).contains(&commands), "{commands} commands");
    assert_eq!(positions, (3..MANY as u64 + 3).collect());
}

#[tokio::test]
async fn one_that_fails_fails_alone() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let odd = KeyNames::new("test").jobs(&key(7));
    server.command(&["SET", &odd, "by hand"]).await;
    let calls = Vec::from_iter((0..MANY).map(|n| deferred(&key(n))));
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
async fn lost_replies_store_nothing_twice() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    for cuts in [1, 2, 3] {
        let key = key(cuts);
        let calls = Vec::from_iter((0..MANY).map(|_| deferred(&key)));
        proxy.cut(cuts);
        let stored = store_all(&store, &calls).await;
        assert!(stored.iter().all(|stored| matches!(stored, EnqueueOutcome::Stored { .. })));
        let line = KeyNames::new("test").jobs(&key);
        assert_eq!(server.ask::<usize>(&["ZCARD", &line]).await, MANY);
        for call in calls {
            let state =
                store.backend().cancel_waiting_job(call.id, 0, super::SECOND).await.unwrap();
            assert_eq!(state, Some(JobState::Cancelled));
        }
        let left: usize = server.ask(&["EXISTS", &line]).await;
        assert_eq!(left, 0);
    }
}
