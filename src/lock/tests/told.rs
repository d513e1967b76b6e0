//! What a process is told of its line while the store's answer is under way.

use super::{
    SECOND, free,
    handover::{Log, MS, all},
};
use crate::{
    lock::LockRequest,
    store::{Fault, Store, faulty},
};

fn lasting(store: &Store) -> LockRequest {
    store.lock("x").hand_over(16, 60 * SECOND)
}

#[tokio::test(start_paused = true)]
async fn who_joins_before_the_first_grant_is_answered_is_not_passed() {
    // Asked for with a wait, and without one: then nobody of this process has a line.
    for waits in [true, false] {
        let (store, faults) = faulty();
        let (other, log) = (store.as_another_process(), Log::default());
        faults.set("acquire", Fault::Slow(5 * MS), 1);
        let first = lasting(&store);
        let first = if waits { first.wait(SECOND) } else { first };
        let first = tokio::spawn(first.acquire());
        tokio::time::sleep(MS / 2).await;
        let mut tasks = Vec::new();
        if waits {
            tasks.push(log.waiter(1, lasting(&store), MS / 10).await);
        } else {
            // It hears of lines, because of another lock.
            drop(store.lock("z").linger(MS).acquire().await.unwrap());
        }
        tasks.push(log.waiter(2, lasting(&other), MS / 10).await);
        let first = first.await.unwrap().unwrap();
        tasks.push(log.waiter(3, lasting(&store), MS / 10).await);
        drop(first);
        all(tasks).await;
        assert_eq!(log.names(), if waits { vec![1, 2, 3] } else { vec![2, 3] });
        log.fences_grow();
        drop(free(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_while_the_lock_is_passed_is_not_passed_by() {
    let (store, faults) = faulty();
    let (other, log) = (store.as_another_process(), Log::default());
    let request = || store.lock("x").hand_over(1, 60 * SECOND);
    // Nothing is asked ahead.
    faults.set("still", Fault::Away, usize::MAX);
    let first = request().acquire().await.unwrap();
    let mut tasks = vec![log.waiter(1, request(), MS / 10).await];
    tasks.push(log.waiter(2, request(), 10 * MS).await);
    faults.set("pass", Fault::Slow(5 * MS), 1);
    // To the first by memory alone; the second one is asked for, and has it when the other joins.
    drop(first);
    while faults.left("pass") > 0 {
        tokio::time::sleep(MS / 10).await;
    }
    assert_eq!(log.names(), [1]);
    tasks.push(log.waiter(3, other.lock("x"), MS / 10).await);
    // Later than by what is not known of the server's time: half of what the call takes.
    tokio::time::sleep(4 * MS).await;
    tasks.push(log.waiter(4, request(), MS / 10).await);
    all(tasks).await;
    assert_eq!(log.names(), [1, 2, 3, 4]);
    log.fences_grow();
    drop(free(&store).await);
}
