//! A server without room (`noeviction`, which is what we advise) refuses what would take some. What is there is kept all
//! the same, goes on and ends: that takes no room, or makes some.

use std::{io, time::Duration};

use tokio::sync::oneshot;

use super::{
    SECOND, eventually,
    runs::{settlement, stored},
    server::Server,
    within,
};
use crate::{
    key::Key,
    lock::Released,
    queue::{Queue, Task},
    store::backend::{Claim, Claimed, Direct, JobId, JobState, Mode, SettledRun, Token},
};

const LEASE: Duration = Duration::from_millis(2000);

/// Nothing ends, or is renewed, by a time that is shorter.
const LEASES: Duration = Duration::from_millis(3000);

async fn full(server: &Server) {
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
}

#[tokio::test]
async fn locks_of_all_modes_are_renewed() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let held = [
        store.lock("alone").lease(LEASE).acquire().await.expect("it is free"),
        store.lock("shared").shared().lease(LEASE).acquire().await.expect("it is free"),
        store.lock("permits").permits(2).lease(LEASE).acquire().await.expect("it is free"),
    ];
    full(&server).await;
    store.lock("other").acquire().await.expect_err("there is no room");
    tokio::time::sleep(LEASES).await;
    for guard in held {
        assert_eq!(guard.release().await, Released::Released);
    }
}

/// The worker has room for another one, so it looks again and again while the task runs.
#[tokio::test]
async fn a_task_runs_to_its_end_and_once() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let queue: Queue<u32> = store.queue("numbers");
    let (begun, has_begun) = oneshot::channel();
    let begun = parking_lot::Mutex::new(Some(begun));
    let worker = queue.worker(move |_: Task<u32>| {
        // A second run has nobody to tell.
        let tell = begun.lock().take();
        async move {
            tell.expect("it runs once").send(()).expect("somebody waits");
            tokio::time::sleep(LEASES).await;
            Ok::<(), io::Error>(())
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = worker.concurrency(2).lease(LEASE);
    let worker = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    queue.push(&1).await.expect("there is room");
    within("the task to begin", has_begun).await.expect("it began");
    full(&server).await;
    eventually("the task to end", async || {
        queue.stats().await.is_ok_and(|stats| stats.done + stats.dead + stats.crashed > 0)
    })
    .await;
    let stats = queue.stats().await.expect("it is there");
    assert_eq!((stats.done, stats.crashed, stats.dead, stats.running), (1, 0, 0, 0));
    drop(stop);
    within("the worker to stop", worker).await.expect("it ends");
}

/// What an operator does about it.
#[tokio::test]
async fn queues_are_paused_and_resumed() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let queue: Queue<u32> = store.queue("numbers");
    queue.push(&1).await.expect("there is room");
    full(&server).await;
    queue.pause().await.expect("it takes no room");
    assert!(queue.stats().await.expect("it is there").paused);
    queue.resume().await.expect("it takes no room");
    for paused in [true, false] {
        store.backend().set_paused(paused).await.expect("it takes no room");
        assert_eq!(store.backend().is_paused().await.expect("it is there"), paused);
    }
}

/// Of a request that waits to its end, and of one that is not to run any more.
#[tokio::test]
async fn what_was_accepted_runs_or_is_cancelled() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let key = Key::custom("7");
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(stored(&store, &key).await);
    }
    full(&server).await;
    let backend = store.backend();
    let beat = backend.beat(store.node().clone(), 10 * SECOND).await.expect("it lives");
    assert!(beat.mine.contains(&key.shard()));
    let (me, id) = (Token::new(store.node()), jobs[0].clone());
    let claim = Claim { key, id, me, lease: 10 * SECOND, retention: 60 * SECOND };
    let claimed = backend.claim(claim.clone()).await.expect("it runs");
    assert!(matches!(claimed, Claimed::Claimed(_)), "{claimed:?}");
    let cancelled = backend.cancel(jobs[1].clone(), 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it takes no room"), Some(JobState::Cancelled));
    let settled = backend.settle(settlement(&store, &claim)).await.expect("it ends");
    let SettledRun::Stands(Some(next)) = settled else { panic!("{settled:?}") };
    assert_eq!(next.id, jobs[2]);
    assert!(backend.beat(store.node().clone(), Duration::ZERO).await.is_ok(), "it leaves");
}

/// It has run: a retry is to be told of that.
#[tokio::test]
async fn the_end_of_a_request_that_ran_at_once_is_written_down() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let held = store.lock("7").lease(60 * SECOND).acquire().await.expect("it is free");
    let lease = held.lease().expect("it is held");
    let call = Direct {
        key: lease.key.clone(),
        me: lease.me.clone(),
        mode: Mode::Exclusive,
        record: "record".into(),
        id: JobId::new(&lease.key),
        owner: String::new(),
        life: 60 * SECOND,
        print: None,
    };
    store.backend().begin_direct(call.clone()).await.expect("there is room");
    full(&server).await;
    let id = call.id.clone();
    let ended = store.backend().end_direct(call, Some("answer".into())).await;
    assert!(ended.expect("it is written down"));
    let job = store.backend().job(id).await.expect("it is there").expect("it is kept");
    assert_eq!(job.state, JobState::Done);
}

/// In a cluster a script for each shard does what one does on a single server.
#[tokio::test]
async fn a_worker_that_leaves_gives_its_shards_up() {
    let server = Server::start().await;
    let code = include_str!("../../lua/watch.lua");
    let watch = async |verb: &str, ms: &str| -> (String, u32) {
        let keys = ["watch", "due", "late", "exp"];
        let words = [&["EVAL", code, "4"][..], &keys, &["0a0b", verb, ms]].concat();
        server.ask(&words).await
    };
    assert_eq!(watch("keep", "60000").await.0, "mine");
    full(&server).await;
    assert_eq!(watch("keep", "60000").await.0, "mine");
    assert_eq!(watch("leave", "5000").await.0, "free");
    assert_eq!(watch("keep", "60000").await.0, "mine");
    assert_eq!(watch("leave", "0").await.0, "free");
}
