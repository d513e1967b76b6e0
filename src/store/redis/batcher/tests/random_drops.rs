//! Many callers at once, on threads, that leave when they like.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{REAL_TIME_TIMEOUT, ScriptedTransport, start_call_within};
use crate::store::redis::batcher::BatchFault;

/// Who was dropped is undone at once; of each pair the undo is the last on the wire.
#[test]
fn undo_never_precedes_call_dropped_at_random() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let (combiner, field) = runtime.block_on(async { ScriptedTransport::new_batcher() });
    let over = Arc::new(AtomicBool::new(false));
    let (air, ended) = (field.clone(), Arc::clone(&over));
    let wind = std::thread::spawn(move || {
        for turn in 0.. {
            if ended.load(Ordering::SeqCst) {
                break;
            }
            // One at a time: they are not to be more than the flights that meet them.
            if turn % 7 == 0 && air.0.pending_faults.lock().is_empty() {
                air.push_fault(if turn % 2 == 0 {
                    BatchFault::ConnectionLost
                } else {
                    BatchFault::NoScript
                });
            }
            air.allow_replies(1);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    let task = |number: u32| {
        let combiner = Arc::clone(&combiner);
        async move {
            for round in 0..10_u32 {
                let (step, undo) = (number * 100 + round, number * 100 + round + 50);
                let sent = crate::store::spawn(start_call_within(
                    &combiner,
                    2_000_000 + step,
                    REAL_TIME_TIMEOUT,
                ));
                let patience = Duration::from_micros(u64::from((number * 7 + round * 13) % 200));
                tokio::time::sleep(patience).await;
                sent.abort();
                let _ = sent.await;
                start_call_within(&combiner, 4_000_000 + undo, REAL_TIME_TIMEOUT)
                    .await
                    .expect("there is time enough");
            }
        }
    };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..40).map(|number| crate::store::spawn(task(number))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    over.store(true, Ordering::SeqCst);
    wind.join().unwrap();
    let sent = field.sent_batches();
    assert!(sent.iter().all(|steps| steps.len() <= 16), "each counts as two");
    let sent = sent.concat();
    for (at, undo) in sent.iter().enumerate().filter(|(_, step)| **step >= 4_000_000) {
        let step = undo - 2_000_050;
        assert!(!sent[at..].contains(&step), "{step} after its undo");
    }
    assert!(sent.iter().filter(|step| **step >= 4_000_000).count() >= 400);
}
