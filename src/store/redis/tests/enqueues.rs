//! Requests that are deferred at the same time, and lose their replies.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{proxy::Proxy, server::Server};
use crate::{
    error::ErrorKind,
    key::Key,
    store::{
        Store,
        backend::{Caps, Enqueue, Enqueued, JobId, JobPolicy, JobState},
        keys::Keys,
    },
};

const MANY: usize = 48;

fn call(key: &Key, bytes: usize) -> Enqueue {
    Enqueue {
        key: key.clone(),
        id: JobId::new(key),
        envelope: Bytes::from(vec![b'x'; bytes]),
        policy: JobPolicy::default(),
        merge: None,
        record: None,
        caps: Caps {
            resource_jobs: 999,
            resource_bytes: 99 << 20,
            shard_jobs: 999,
            shard_bytes: 99 << 20,
            ..Caps::NONE
        },
        owner: String::new(),
        call: None,
    }
}

fn key(n: usize) -> Key {
    Key::custom(&n.to_string())
}

async fn calls_to(server: &Server) -> u64 {
    server.info("commandstats", "cmdstat_evalsha:calls").await
}

async fn store_all(store: &Store, calls: &[Enqueue]) -> Vec<Enqueued> {
    let all = join_all(calls.iter().map(|call| store.backend().enqueue(call.clone()))).await;
    all.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn one_is_one_command_and_many_are_few() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    store_all(&store, &[call(&key(0), 7)]).await;
    let before = calls_to(&server).await;
    store_all(&store, &[call(&key(0), 7)]).await;
    assert_eq!(calls_to(&server).await - before, 1);
    let calls = Vec::from_iter((0..MANY).map(|_| call(&key(0), 7)));
    let before = calls_to(&server).await;
    let positions: BTreeSet<u64> = store_all(&store, &calls)
        .await
        .into_iter()
        .map(|stored| match stored {
            Enqueued::Stored { position } => position,
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
    let odd = Keys::new("test").jobs(&key(7));
    server.command(&["SET", &odd, "by hand"]).await;
    let calls = Vec::from_iter((0..MANY).map(|n| call(&key(n), 7)));
    let outcomes = join_all(calls.iter().map(|call| store.backend().enqueue(call.clone()))).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(stored) => assert_eq!((n == 7, stored), (false, Enqueued::Stored { position: 1 })),
            Err(error) => assert_eq!((n, error.kind()), (7, ErrorKind::Protocol)),
        }
    }
    assert_eq!(store.backend().job(calls[7].id.clone()).await.unwrap(), None);
}

#[tokio::test]
async fn lost_replies_store_nothing_twice() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    for cuts in [1, 2, 3] {
        let key = key(cuts);
        let calls = Vec::from_iter((0..MANY).map(|_| call(&key, 7)));
        proxy.cut(cuts);
        let stored = store_all(&store, &calls).await;
        assert!(stored.iter().all(|stored| matches!(stored, Enqueued::Stored { .. })));
        let line = Keys::new("test").jobs(&key);
        assert_eq!(server.ask::<usize>(&["ZCARD", &line]).await, MANY);
        for call in calls {
            let state = store.backend().cancel(call.id, 0, super::SECOND).await.unwrap();
            assert_eq!(state, Some(JobState::Cancelled));
        }
        let left: usize = server.ask(&["EXISTS", &line]).await;
        assert_eq!(left, 0);
    }
}
