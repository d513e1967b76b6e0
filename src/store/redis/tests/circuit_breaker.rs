//! Circuit breaker, mostly under a paused clock, which moves only while all tasks are idle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    time::{Instant, sleep, timeout},
};

use super::{
    super::circuit_breaker::CircuitBreaker, MAX_WAIT, SECOND, server_process::ServerProcess,
};
use crate::{AcquireError, lock::ReleaseStatus, store::Store};

/// Interval between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

#[test]
fn five_consecutive_failures_open_breaker() {
    let breaker = CircuitBreaker::new(SECOND);
    let fails = |times: usize| (0..times).filter(|_| breaker.record_failure()).count();
    assert_eq!(fails(4), 0);
    breaker.record_success();
    assert_eq!(fails(4), 0, "a success resets the count");
    assert!(!breaker.is_open());
    assert_eq!(fails(1), 1);
    // A call sent before the breaker opened says nothing about the current state of the server.
    breaker.record_success();
    assert!(breaker.is_open());
    breaker.close();
    assert!(!breaker.is_open());
    assert_eq!(fails(4), 0, "the count is reset");
}

/// Many calls request a probe, but only one runs at a time.
#[tokio::test(start_paused = true)]
async fn single_probe_runs_until_server_answers() {
    let breaker = Arc::new(CircuitBreaker::new(SECOND));
    let (probe_count, up_at) =
        (Arc::new(AtomicUsize::new(0)), Instant::now() + 10 * PROBE_INTERVAL);
    let request_probe = || {
        let (probe_count, shared_breaker) = (Arc::clone(&probe_count), Arc::clone(&breaker));
        breaker.ensure_probe(move || {
            probe_count.fetch_add(1, Ordering::SeqCst);
            let is_up = Instant::now() >= up_at;
            if is_up {
                shared_breaker.close();
            }
            async move { is_up }
        });
    };
    while !breaker.record_failure() {}
    let opened = Instant::now();
    for interval in 1..=10 {
        let requested_at = Instant::now();
        for _ in 0..1000 {
            request_probe();
        }
        assert_eq!(requested_at.elapsed(), Duration::ZERO, "no call waits for a probe");
        sleep(PROBE_INTERVAL / 2).await;
        assert_eq!(probe_count.load(Ordering::SeqCst), interval, "one each interval");
        assert!(breaker.is_open());
        sleep(PROBE_INTERVAL / 2).await;
    }
    sleep(PROBE_INTERVAL / 2).await;
    assert!(
        !breaker.is_open(),
        "the server is back since {:?}",
        opened.elapsed() - 10 * PROBE_INTERVAL
    );
    sleep(10 * PROBE_INTERVAL).await;
    assert_eq!(probe_count.load(Ordering::SeqCst), 11, "an available server is not probed");
}

/// During a long outage, probes become less frequent.
#[tokio::test(start_paused = true)]
async fn probe_interval_grows_during_long_outage() {
    let breaker = CircuitBreaker::new(SECOND);
    let probe_times = Arc::new(Mutex::new(Vec::new()));
    while !breaker.record_failure() {}
    let request_probe = || {
        let probe_times = Arc::clone(&probe_times);
        breaker.ensure_probe(move || {
            probe_times.lock().push(Instant::now());
            async { false }
        })
    };
    let opened = Instant::now();
    while opened.elapsed() < 10 * SECOND {
        assert!(!request_probe(), "it is not silent");
        sleep(PROBE_INTERVAL / 2).await;
    }
    let probe_times = probe_times.lock();
    let pauses: Vec<_> = probe_times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[..10].iter().all(|pause| *pause == PROBE_INTERVAL), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= SECOND * 5 / 4), "{pauses:?}");
    assert!((17..=26).contains(&probe_times.len()), "{pauses:?}");
}

/// A runtime may end before its probe is answered.
#[test]
fn probe_of_ended_runtime_is_replaced() {
    let (breaker, probe_count) = (CircuitBreaker::new(SECOND), Arc::new(AtomicUsize::new(0)));
    for expected_count in 1..=2 {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let probe_count = Arc::clone(&probe_count);
            breaker.ensure_probe(move || {
                probe_count.fetch_add(1, Ordering::SeqCst);
                async { false }
            });
            sleep(PROBE_INTERVAL / 2).await;
        });
        assert_eq!(probe_count.load(Ordering::SeqCst), expected_count);
    }
}

/// A handler may block the thread of the probe, or a program may drive its runtime only for its own
/// calls.
#[test]
fn stalled_probe_is_replaced_and_call_is_let_through() {
    let breaker = CircuitBreaker::new(SECOND * 60);
    let probe_count = Arc::new(AtomicUsize::new(0));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let request_probe = || {
        let probe_count = Arc::clone(&probe_count);
        breaker.ensure_probe(move || {
            probe_count.fetch_add(1, Ordering::SeqCst);
            async { false }
        })
    };
    while !breaker.record_failure() {}
    let (stalled, other) = (runtime(), runtime());
    // Its main future is ready at once: no task is ever polled.
    assert!(!stalled.block_on(async { request_probe() }), "it has just opened");
    breaker.stall_probe();
    assert!(stalled.block_on(async { request_probe() }), "no other probe is active");
    assert_eq!(probe_count.load(Ordering::SeqCst), 0);
    assert!(!stalled.block_on(async { request_probe() }), "one in so long");
    // The call that was let through was answered.
    breaker.record_success();
    assert!(!breaker.is_open());

    while !breaker.record_failure() {}
    assert!(!stalled.block_on(async { request_probe() }));
    breaker.stall_probe();
    let opened = std::time::Instant::now();
    other.block_on(async {
        assert!(request_probe(), "no other probe is active");
        let replaced = probe_count.load(Ordering::SeqCst);
        while probe_count.load(Ordering::SeqCst) < replaced + 2 {
            sleep(PROBE_INTERVAL / 10).await;
            assert!(opened.elapsed() < MAX_WAIT, "the probe runs on the other runtime");
        }
    });
    breaker.record_success();
    assert!(!breaker.is_open());
}

/// A reply sent before the outage may be received long after it, if a runtime stood still.
#[tokio::test]
async fn late_success_after_failed_trial_keeps_breaker_open() {
    let breaker = CircuitBreaker::new(SECOND * 60);
    let request_probe = || breaker.ensure_probe(|| async { false });
    while !breaker.record_failure() {}
    for _ in 0..2 {
        breaker.stall_probe();
        assert!(request_probe(), "it is let through");
        assert!(breaker.record_failure());
        breaker.record_success();
        assert!(breaker.is_open());
    }
    // Nor does the success of a trial call of an earlier outage.
    breaker.stall_probe();
    assert!(request_probe(), "it is let through");
    breaker.close();
    while !breaker.record_failure() {}
    breaker.record_success();
    assert!(breaker.is_open());
}

/// Each call has the runtime to itself, and nothing else is awaited on it. A server that runs no
/// script answers pings too, so not every trial call may be a ping.
#[test]
fn sequential_blocking_calls_detect_restarted_server() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let call_runtime = builder.enable_all().build().expect("a runtime");
    let server_runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut server = server_runtime.block_on(ServerProcess::start());
    let store = call_runtime.block_on(Store::connect(&server.url())).expect("it is there");
    for (pings_first, name) in [(false, "x"), (true, "y")] {
        let is_usable = || {
            (!pings_first || call_runtime.block_on(store.ping()).is_ok())
                && call_runtime.block_on(store.lock(name).acquire()).is_ok()
        };
        server.kill();
        for _ in 0..6 {
            assert!(!is_usable());
        }
        server_runtime.block_on(server.restart());
        let restarted_at = std::time::Instant::now();
        while !is_usable() {
            assert!(restarted_at.elapsed() < MAX_WAIT, "no probe runs; pings first: {pings_first}");
            std::thread::sleep(PROBE_INTERVAL / 10);
        }
    }
}

/// All times derived from the timeout are capped at a year, those of batches and connections too.
#[tokio::test]
async fn maximum_call_timeout_is_accepted() {
    let server = ServerProcess::start().await;
    let builder = Store::builder(&server.url()).call_timeout(Duration::MAX);
    let store = builder.connect().await.expect("it is there");
    let lock = || store.lock("x").acquire();
    let held = lock().await.unwrap();
    assert!(matches!(lock().await, Err(AcquireError::Busy(_))));
    let others = ["y", "z"].map(|name| store.lock(name).acquire());
    for held in join_all(others).await {
        held.unwrap().release().await;
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
}

/// The probe of a server that never comes back must end with the store.
#[tokio::test]
async fn probe_stops_after_store_is_dropped() {
    // The server closes each connection at once, which counts as an outage.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/?ns=test", listener.local_addr().unwrap());
    let accept_one = async || listener.accept().await.map(drop).unwrap();
    {
        let store = async {
            let store = Store::connect(&url).await.expect("an outage is no error");
            for _ in 0..5 {
                store.ping().await.expect_err("the server closes each connection");
            }
            store
        };
        let store = tokio::select! {
            store = store => store,
            () = async { loop { accept_one().await } } => unreachable!("the server accepts connections without end"),
        };
        // No call is made: these connections are the probe's.
        for _ in 0..5 {
            timeout(MAX_WAIT, accept_one()).await.expect("the probe connects again");
        }
        drop(store);
    }
    let dropped = Instant::now();
    while timeout(SECOND, accept_one()).await.is_ok() {
        assert!(dropped.elapsed() < MAX_WAIT, "the probe continues");
    }
}

/// A process that only reads has no successful calls between its failures.
#[tokio::test(start_paused = true)]
async fn failures_minutes_apart_do_not_open_breaker() {
    let breaker = CircuitBreaker::new(SECOND);
    for _ in 0..20 {
        assert!(!breaker.record_failure());
        tokio::time::advance(SECOND * 61).await;
    }
    for _ in 0..4 {
        assert!(!breaker.record_failure());
    }
    assert!(breaker.record_failure());
}
