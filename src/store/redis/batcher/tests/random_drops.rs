//! Many concurrent callers on several threads, dropped at random times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{REAL_TIME_TIMEOUT, ScriptedTransport, start_call_within};
use crate::store::redis::batcher::BatchFault;

/// Each dropped call is undone at once. Of each pair, the undo is sent last.
#[test]
fn undo_never_precedes_call_dropped_at_random() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let (batcher, transport) = runtime.block_on(async { ScriptedTransport::new_batcher() });
    let stop = Arc::new(AtomicBool::new(false));
    let (faulty_transport, stopped) = (transport.clone(), Arc::clone(&stop));
    let driver = std::thread::spawn(move || {
        for tick in 0.. {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            // One at a time, so that faults do not outnumber the batches that meet them.
            if tick % 7 == 0 && faulty_transport.0.pending_faults.lock().is_empty() {
                faulty_transport.push_fault(if tick % 2 == 0 {
                    BatchFault::ConnectionLost
                } else {
                    BatchFault::NoScript
                });
            }
            faulty_transport.allow_replies(1);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    let task = |number: u32| {
        let batcher = Arc::clone(&batcher);
        async move {
            for round in 0..10_u32 {
                let (command, undo) = (number * 100 + round, number * 100 + round + 50);
                let sent = crate::store::spawn(start_call_within(
                    &batcher,
                    2_000_000 + command,
                    REAL_TIME_TIMEOUT,
                ));
                let delay = Duration::from_micros(u64::from((number * 7 + round * 13) % 200));
                tokio::time::sleep(delay).await;
                sent.abort();
                let _ = sent.await;
                start_call_within(&batcher, 4_000_000 + undo, REAL_TIME_TIMEOUT)
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
    stop.store(true, Ordering::SeqCst);
    driver.join().unwrap();
    let sent = transport.sent_batches();
    assert!(sent.iter().all(|commands| commands.len() <= 16), "each counts as two");
    let sent = sent.concat();
    for (at, undo) in sent.iter().enumerate().filter(|(_, command)| **command >= 4_000_000) {
        let command = undo - 2_000_050;
        assert!(!sent[at..].contains(&command), "{command} after its undo");
    }
    assert!(sent.iter().filter(|command| **command >= 4_000_000).count() >= 400);
}
