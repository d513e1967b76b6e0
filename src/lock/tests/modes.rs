//! Readers, permits, and the way from writer to reader, through the local lines of two processes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{SECOND, free};
use crate::{lock::LockRequest, store::Store};

const MS: Duration = Duration::from_millis(1);

fn reader(store: &Store) -> LockRequest {
    store.lock("x").shared().wait(60 * SECOND)
}

fn writer(store: &Store) -> LockRequest {
    store.lock("x").wait(60 * SECOND)
}

/// Counts those inside, and remembers the most there ever were.
#[derive(Default)]
struct Inside(AtomicUsize, AtomicUsize);

impl Inside {
    async fn stay(&self, time: Duration) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(time).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_two_processes_are_in_together_and_a_writer_is_not_overtaken() {
    let store = Store::memory();
    let other = store.as_another_process();
    let (first, second) =
        (reader(&store).acquire().await.unwrap(), reader(&other).acquire().await.unwrap());
    let writing = crate::store::spawn(writer(&other).acquire());
    tokio::time::sleep(MS).await;
    // They come while a writer waits.
    let late: Vec<_> = [&store, &other, &store, &store]
        .into_iter()
        .map(|store| crate::store::spawn(reader(store).acquire()))
        .collect();
    tokio::time::sleep(10 * MS).await;
    assert!(late.iter().all(|reader| !reader.is_finished()));
    drop((first, second));
    let guard = writing.await.unwrap().unwrap();
    tokio::time::sleep(10 * MS).await;
    assert!(late.iter().all(|reader| !reader.is_finished()));
    guard.release().await;
    // All of the run come in together: nobody's time passes but that of messages.
    let mut inside = Vec::new();
    for reader in late {
        let entered = tokio::time::timeout(10 * MS, reader).await.expect("with the others");
        inside.push(entered.unwrap().unwrap());
    }
    drop(inside);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn readers_and_writers_who_keep_coming_all_get_in() {
    let store = Store::memory();
    let other = store.as_another_process();
    let mut tasks = Vec::new();
    for n in 0..40 {
        let store = if n % 3 == 0 { other.clone() } else { store.clone() };
        tasks.push(crate::store::spawn(async move {
            for _ in 0..10 {
                let request = if n % 5 == 0 { writer(&store) } else { reader(&store) };
                let guard = request.acquire().await.expect("in time");
                tokio::time::sleep(MS).await;
                drop(guard);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(other.shutdown(SECOND).await);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_permits_are_inside() {
    let store = Store::memory();
    let other = store.as_another_process();
    let inside = Arc::new(Inside::default());
    let mut tasks = Vec::new();
    for n in 0..20 {
        let store = if n % 2 == 0 { other.clone() } else { store.clone() };
        let inside = Arc::clone(&inside);
        tasks.push(crate::store::spawn(async move {
            for _ in 0..5 {
                let request = store.lock("x").permits(3).wait(60 * SECOND);
                let guard = request.acquire().await.expect("in time");
                inside.stay(2 * MS).await;
                guard.release().await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(inside.1.load(Ordering::SeqCst), 3, "all of them, and no more");
    assert!(other.shutdown(SECOND).await);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_steps_down_lets_readers_in_and_writers_wait() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    let fence = guard.fence();
    let reading = crate::store::spawn(reader(&store).acquire());
    tokio::time::sleep(MS).await;
    let writing = crate::store::spawn(writer(&store).acquire());
    tokio::time::sleep(MS).await;
    let guard = guard.downgrade().await.unwrap();
    assert_eq!(guard.fence(), fence);
    let reader = reading.await.unwrap().unwrap();
    tokio::time::sleep(20 * SECOND).await;
    assert!(!writing.is_finished(), "both are renewed");
    drop((guard, reader));
    drop(writing.await.unwrap().unwrap());
    drop(free(&store).await);
}
