//! Gauges of the store and of the workers of a process.

use std::{collections::BTreeSet, time::Duration};

use metrics::set_default_local_recorder;

use super::{METRICS_PAGE, TestRecorder};
use crate::{
    admin::{Operator, Permission},
    instruments::handle_table::MAX_LABEL_VALUES,
    metrics::collect,
    queue::Queue,
    store::{BackendFault, Store, faulty_store},
};

const SECOND: Duration = Duration::from_secs(1);

async fn push(queue: &Queue<String>) {
    queue.push(&"a".to_owned()).await.expect("there is room");
    // Its name is registered in the background.
    tokio::time::sleep(SECOND / 1000).await;
}

#[tokio::test(start_paused = true)]
async fn gauges_of_the_store_are_read_every_five_seconds_and_stay_in_an_outage() {
    let recorder = TestRecorder::default();
    let _installed = set_default_local_recorder(&recorder);
    let (store, faults) = faulty_store();
    let queue = store.queue("mail");
    push(&queue).await;
    let due = || recorder.value("lockgate_queue_tasks{queue=mail,state=due}");
    for _ in 0..3 {
        collect(&store).await;
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!((faults.call_count("is_paused"), due()), (1, Some(1.0)));

    push(&queue).await;
    faults.set("is_paused", BackendFault::Unavailable, 1);
    tokio::time::sleep(2 * SECOND).await;
    for _ in 0..2 {
        collect(&store).await;
    }
    assert_eq!(faults.remaining("is_paused"), 0);
    assert_eq!((faults.call_count("is_paused"), due()), (2, Some(1.0)), "no answer sets nothing");

    tokio::time::sleep(5 * SECOND).await;
    collect(&store).await;
    assert_eq!((faults.call_count("is_paused"), due()), (3, Some(2.0)));
}

#[tokio::test(start_paused = true)]
async fn queues_beyond_the_bound_are_summed() {
    const QUEUES: usize = MAX_LABEL_VALUES + 44;
    let recorder = TestRecorder::default();
    let _installed = set_default_local_recorder(&recorder);
    let store = Store::memory();
    let mut workers = Vec::new();
    for number in 0..QUEUES {
        let name = format!("queue-{number}");
        push(&store.queue(name.as_str())).await;
        workers.push(store.counters().add_worker(Some(name), 2, || 1));
    }
    collect(&store).await;
    let other = "lockgate_queue_tasks{queue=other,state=due}";
    assert_eq!(recorder.value(other), Some(44.0));
    let other = "lockgate_worker_slots{queue=other,state=busy}";
    assert_eq!(recorder.value(other), Some(44.0));
    for (metric, state) in [("lockgate_queue_tasks", "due"), ("lockgate_worker_slots", "busy")] {
        let values = recorder.values(metric, state);
        let found = (values.len(), values.iter().sum::<f64>());
        assert_eq!(found, (MAX_LABEL_VALUES + 1, QUEUES as f64), "{metric}");
    }
    // Others have no label of their own, even in place of queues that are gone.
    drop(workers);
    let _worker = store.counters().add_worker(Some("late".to_owned()), 2, || 1);
    collect(&store).await;
    let busy = recorder.values("lockgate_worker_slots", "busy");
    assert_eq!((recorder.value(other), busy.iter().sum::<f64>()), (Some(1.0), 1.0));
}

#[tokio::test(start_paused = true)]
async fn slots_of_all_workers_of_a_queue_are_summed_until_they_have_stopped() {
    let recorder = TestRecorder::default();
    let _installed = set_default_local_recorder(&recorder);
    let store = Store::memory();
    let slots = |queue: &str| {
        ["busy", "free"].map(|state| {
            recorder.value(&format!("lockgate_worker_slots{{queue={queue},state={state}}}"))
        })
    };
    let add =
        |slots, busy| store.counters().add_worker(Some("mail".to_owned()), slots, move || busy);
    let (first, second) = (add(4, 1), add(3, 2));
    let for_jobs = store.counters().add_worker(None, 8, || 0);
    collect(&store).await;
    assert_eq!(slots("mail"), [Some(3.0), Some(4.0)]);
    assert_eq!(slots("deferred requests"), [Some(0.0), Some(8.0)]);
    drop(first);
    collect(&store).await;
    assert_eq!(slots("mail"), [Some(2.0), Some(1.0)]);
    drop((second, for_jobs));
    collect(&store).await;
    for queue in ["mail", "deferred requests"] {
        assert_eq!(slots(queue), [Some(0.0), Some(0.0)], "{queue}");
    }
}

#[tokio::test(start_paused = true)]
async fn drained_process_has_no_free_slots() {
    let recorder = TestRecorder::default();
    let _installed = set_default_local_recorder(&recorder);
    let store = Store::memory();
    // A process with a lock listens to operators.
    let _guard = store.lock("order:7").acquire().await.expect("it is free");
    let _worker = store.counters().add_worker(None, 8, || 3);
    let slots = || {
        ["busy", "free"].map(|state| {
            let queue = "deferred requests";
            recorder.value(&format!("lockgate_worker_slots{{queue={queue},state={state}}}"))
        })
    };
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let node = store.node().to_string();
    admin.drain_process(&node, "a test").await.expect("it answers");
    collect(&store).await;
    assert_eq!(slots(), [Some(3.0), Some(0.0)]);
    admin.resume_process(&node, "a test").await.expect("it answers");
    collect(&store).await;
    assert_eq!(slots(), [Some(3.0), Some(5.0)]);
}

#[tokio::test(start_paused = true)]
async fn states_of_gauges_are_on_the_page() {
    let recorder = TestRecorder::default();
    let _installed = set_default_local_recorder(&recorder);
    let store = Store::memory();
    push(&store.queue("mail")).await;
    let _worker = store.counters().add_worker(None, 8, || 0);
    collect(&store).await;
    let states: BTreeSet<String> = recorder.label_values("state");
    assert!(states.len() > 7, "{states:?}");
    for state in states.iter().map(String::as_str).chain(["deferred requests"]) {
        assert!(METRICS_PAGE.contains(&format!("`{state}`")), "no {state}");
    }
}
