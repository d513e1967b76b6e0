//! The breaker, mostly by a clock that stands still: it moves only while nobody has anything to do.

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

/// Between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

#[test]
fn five_consecutive_failures_open_breaker() {
    let breaker = CircuitBreaker::new(SECOND);
    let fails = |times: usize| (0..times).filter(|_| breaker.record_failure()).count();
    assert_eq!(fails(4), 0);
    breaker.record_success();
    assert_eq!(fails(4), 0, "a success begins the count anew");
    assert!(!breaker.is_open());
    assert_eq!(fails(1), 1);
    // A call that was under way when it opened tells nothing of the server as it is now.
    breaker.record_success();
    assert!(breaker.is_open());
    breaker.close();
    assert!(!breaker.is_open());
    assert_eq!(fails(4), 0, "it begins anew");
}

/// However many calls ask for it.
#[tokio::test(start_paused = true)]
async fn single_probe_runs_until_server_answers() {
    let breaker = Arc::new(CircuitBreaker::new(SECOND));
    let (looks, answers_at) = (Arc::new(AtomicUsize::new(0)), Instant::now() + 10 * PROBE_INTERVAL);
    let ask = || {
        let (looks, own) = (Arc::clone(&looks), Arc::clone(&breaker));
        breaker.ensure_probe(move || {
            looks.fetch_add(1, Ordering::SeqCst);
            let answers = Instant::now() >= answers_at;
            if answers {
                own.close();
            }
            async move { answers }
        });
    };
    while !breaker.record_failure() {}
    let opened = Instant::now();
    for interval in 1..=10 {
        let asked = Instant::now();
        for _ in 0..1000 {
            ask();
        }
        assert_eq!(asked.elapsed(), Duration::ZERO, "nobody waits for a look");
        sleep(PROBE_INTERVAL / 2).await;
        assert_eq!(looks.load(Ordering::SeqCst), interval, "one each interval");
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
    assert_eq!(looks.load(Ordering::SeqCst), 11, "nobody looks at a server that is there");
}

/// Where it is away for long, it is not asked as often as in the beginning.
#[tokio::test(start_paused = true)]
async fn probe_interval_grows_during_long_outage() {
    let breaker = CircuitBreaker::new(SECOND);
    let looks = Arc::new(Mutex::new(Vec::new()));
    while !breaker.record_failure() {}
    let ask = || {
        let looks = Arc::clone(&looks);
        breaker.ensure_probe(move || {
            looks.lock().push(Instant::now());
            async { false }
        })
    };
    let opened = Instant::now();
    while opened.elapsed() < 10 * SECOND {
        assert!(!ask(), "it is not silent");
        sleep(PROBE_INTERVAL / 2).await;
    }
    let looks = looks.lock();
    let pauses: Vec<_> = looks.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[..10].iter().all(|pause| *pause == PROBE_INTERVAL), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= SECOND * 5 / 4), "{pauses:?}");
    assert!((17..=26).contains(&looks.len()), "{pauses:?}");
}

/// The runtime of a probe may end before the server answers.
#[test]
fn probe_of_ended_runtime_is_replaced() {
    let (breaker, looks) = (CircuitBreaker::new(SECOND), Arc::new(AtomicUsize::new(0)));
    for looked in 1..=2 {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let looks = Arc::clone(&looks);
            breaker.ensure_probe(move || {
                looks.fetch_add(1, Ordering::SeqCst);
                async { false }
            });
            sleep(PROBE_INTERVAL / 2).await;
        });
        assert_eq!(looks.load(Ordering::SeqCst), looked);
    }
}

/// A handler may block the thread that the probe is on, or a program drive its runtime for its own calls alone.
#[test]
fn stalled_probe_is_replaced_and_call_is_let_through() {
    let breaker = CircuitBreaker::new(SECOND * 60);
    let looks = Arc::new(AtomicUsize::new(0));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let ask = || {
        let looks = Arc::clone(&looks);
        breaker.ensure_probe(move || {
            looks.fetch_add(1, Ordering::SeqCst);
            async { false }
        })
    };
    while !breaker.record_failure() {}
    let (still, other) = (runtime(), runtime());
    // Its main future is ready at once: no task is ever polled.
    assert!(!still.block_on(async { ask() }), "it has just opened");
    breaker.stall_probe();
    assert!(still.block_on(async { ask() }), "nobody else looks");
    assert_eq!(looks.load(Ordering::SeqCst), 0);
    assert!(!still.block_on(async { ask() }), "one in so long");
    // It was let through, and heard an answer.
    breaker.record_success();
    assert!(!breaker.is_open());

    while !breaker.record_failure() {}
    assert!(!still.block_on(async { ask() }));
    breaker.stall_probe();
    let opened = std::time::Instant::now();
    other.block_on(async {
        assert!(ask(), "nobody else looks");
        let replaced = looks.load(Ordering::SeqCst);
        while looks.load(Ordering::SeqCst) < replaced + 2 {
            sleep(PROBE_INTERVAL / 10).await;
            assert!(opened.elapsed() < MAX_WAIT, "the other runtime looks");
        }
    });
    breaker.record_success();
    assert!(!breaker.is_open());
}

/// What was answered before the server went away may be heard long after, where a runtime stood still.
#[tokio::test]
async fn late_success_after_failed_trial_keeps_breaker_open() {
    let breaker = CircuitBreaker::new(SECOND * 60);
    let ask = || breaker.ensure_probe(|| async { false });
    while !breaker.record_failure() {}
    for _ in 0..2 {
        breaker.stall_probe();
        assert!(ask(), "it is let through");
        assert!(breaker.record_failure());
        breaker.record_success();
        assert!(breaker.is_open());
    }
    // Nor does what was let through by one that is closed since.
    breaker.stall_probe();
    assert!(ask(), "it is let through");
    breaker.close();
    while !breaker.record_failure() {}
    breaker.record_success();
    assert!(breaker.is_open());
}

/// Each call has the runtime for itself, and nothing is awaited on it besides. Pings are answered by who runs no script; where
/// they are let through in place of other calls, they must not be all.
#[test]
fn sequential_blocking_calls_detect_restarted_server() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let own = builder.enable_all().build().expect("a runtime");
    let others = tokio::runtime::Runtime::new().expect("a runtime");
    let mut server = others.block_on(ServerProcess::start());
    let store = own.block_on(Store::connect(&server.url())).expect("it is there");
    for (pings_first, name) in [(false, "x"), (true, "y")] {
        let is_used = || {
            (!pings_first || own.block_on(store.ping()).is_ok())
                && own.block_on(store.lock(name).acquire()).is_ok()
        };
        server.kill();
        for _ in 0..6 {
            assert!(!is_used());
        }
        others.block_on(server.restart());
        let back = std::time::Instant::now();
        while !is_used() {
            assert!(back.elapsed() < MAX_WAIT, "nobody looks; pings first: {pings_first}");
            std::thread::sleep(PROBE_INTERVAL / 10);
        }
    }
}

/// Whatever is reckoned from it, calls that go together and connections included: longer than a year is a year.
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

/// A server that is away for ever is asked for by nobody, once the application has dropped its store.
#[tokio::test]
async fn probe_stops_after_store_is_dropped() {
    // It takes connections and closes them at once, which counts as being away.
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/?ns=test", away.local_addr().unwrap());
    let comes = async || away.accept().await.map(drop).unwrap();
    {
        let store = async {
            let store = Store::connect(&url).await.expect("an outage is no error");
            for _ in 0..5 {
                store.ping().await.expect_err("nobody answers");
            }
            store
        };
        let store = tokio::select! {
            store = store => store,
            () = async { loop { comes().await } } => unreachable!("it takes connections for ever"),
        };
        // Nobody asks for anything: these are the probe's.
        for _ in 0..5 {
            timeout(MAX_WAIT, comes()).await.expect("it looks when the server is back");
        }
        drop(store);
    }
    let dropped = Instant::now();
    while timeout(SECOND, comes()).await.is_ok() {
        assert!(dropped.elapsed() < MAX_WAIT, "it goes on looking");
    }
}

/// Those of a process that only reads, where nothing else is called that goes well.
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
