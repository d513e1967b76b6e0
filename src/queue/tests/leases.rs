//! Runs of which this process learns late, and leases that are hard to renew.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use super::{Log, SECOND, Working, obedient, push, queue, settled};
use crate::{
    queue::{
        lone::{Lone, Work},
        rounds::Rounds,
    },
    store::{Fault, RunToken, Store, faulty},
};

/// It ends once and well, whatever its worker's turns run into before one is answered.
async fn runs_once(faults_of_turns: (Fault, usize), faults_of_renewals: usize) {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store).once(), Log::default());
    push(&queue, "sleep 5000").await;
    faults.set("turn", faults_of_turns.0, faults_of_turns.1);
    faults.set("renew_runs", Fault::Away, faults_of_renewals);
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!((log.attempts(), faults.left("turn")), (vec![1], 0));
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed, stats.dead_letters), (1, 0, 0));
    worker.stop().await;
}

/// A turn that the store has refused so far has begun nothing: the lease of what it begins in the end is a whole one.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_run_begins_with_the_first_call_that_may_have_begun_it() {
    runs_once((Fault::Away, 13), 2).await;
}

/// The first copy of its turn has begun it, and the answer to the eleventh tells of it.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_learnt_of_late_is_renewed_in_time() {
    runs_once((Fault::NoReply, 10), 0).await;
}

/// What else runs was renewed at 10 s and has time until 13.3 s; this one is another worker's from 12.7 s on.
#[tokio::test(start_paused = true)]
async fn one_that_is_learnt_of_late_does_not_wait_for_the_others_renewal() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    push(&queue, "sleep 60000").await;
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(Duration::from_millis(2_700)).await;
    faults.set("turn", Fault::NoReply, 10);
    push(&queue, "sleep 20000").await;
    tokio::time::sleep(SECOND * 8).await;
    assert_eq!((log.attempts(), faults.left("turn")), (vec![1, 1], 0));
    let own = self::queue(&store.as_another_process());
    let other = Working::start(obedient(&own, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(log.attempts(), [1, 1], "nobody else has run it");
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed), (2, 0));
    worker.stop().await;
    other.stop().await;
}

/// It is asked for again while there is time, and not all the time.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_while_the_lease_lasts() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store).once(), Log::default());
    push(&queue, "sleep 15000").await;
    let worker = Working::start(obedient(&queue, &log));
    settled().await;
    faults.set("renew_runs", Fault::Away, 1_000);
    tokio::time::sleep(SECOND * 9 + SECOND / 2).await;
    let asked = faults.seen("renew_runs");
    assert!((8..=16).contains(&asked), "{asked}");
    faults.set("renew_runs", Fault::Away, 0);
    tokio::time::sleep(SECOND * 20).await;
    assert_eq!(log.attempts(), [1]);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed), (1, 0));
    worker.stop().await;
}

/// Its keeper looks at a third of a lease; what is left of this one ends before.
#[tokio::test(start_paused = true)]
async fn a_run_that_blocks_and_is_learnt_of_late_is_renewed_in_time() {
    let store = Store::memory();
    let queue = queue(&store);
    push(&queue, "x").await;
    let own = self::queue(&store.as_another_process());
    let worker = obedient(&queue, &Log::default()).concurrency(1);
    let test = async move {
        let (lone, lease) = (Lone::of(&worker).expect("it runs one at a time"), worker.lease);
        tokio::time::sleep(SECOND * 2).await;
        let mut rounds = Rounds::new(worker);
        let turn = rounds.next_turn();
        let (by, number) = (Arc::clone(&turn.worker), turn.number);
        let began = Instant::now();
        let turned = store.backend().turn(turn).await.unwrap();
        let token = RunToken { id: turned.runs[0].id.clone(), by: format!("{by}.{number}").into() };
        tokio::time::sleep(SECOND * 8 + SECOND / 2).await;
        let (entered, enters) = mpsc::channel();
        let (leave, left) = mpsc::channel();
        let run = token.clone();
        let mut work: Work = Box::pin(async move {
            entered.send(()).unwrap();
            left.recv().unwrap();
            (run, Ok(()))
        });
        let runtime = Handle::current();
        let blocked = thread::spawn(move || {
            // For the clock that stands still.
            let _entered = runtime.enter();
            lone.begin(&mut work, &token, began + lease).is_ok()
        });
        // It is waited for without an await: meanwhile the clock would go on by itself.
        enters.recv().unwrap();
        tokio::time::sleep(SECOND * 2).await;
        let turn = Rounds::new(obedient(&own, &Log::default())).next_turn();
        let taken = store.backend().turn(turn).await.unwrap();
        leave.send(()).unwrap();
        assert!(blocked.join().unwrap(), "it is done");
        assert_eq!(taken.runs, [], "nobody else has it");
    };
    tokio::spawn(test).await.unwrap();
}

/// A lease below the way to the store and back: each claim comes too late, and somebody should know why nothing runs.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_before_its_answer_is_there_is_told_of_once() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    let (told, _guard) = crate::store::Log::begin();
    push(&queue, "x").await;
    faults.set("turn", Fault::Slow(Duration::from_millis(150)), 20);
    let worker = Working::start(obedient(&queue, &log).lease(Duration::from_millis(100)));
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(log.attempts(), [0; 0], "each came too late");
    assert_eq!(told.text().matches("give the worker a longer lease").count(), 1, "{}", told.text());
    tokio::time::sleep(SECOND * 10).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1]);
}
