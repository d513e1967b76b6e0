//! The same moves on the embedded store and on Redis get the same answers, and leave nothing on Redis that
//! has no end.

use std::time::{Duration, Instant};

use proptest::test_runner::{Config, TestRunner};

use super::quota_operation::{
    ChargeLedger, QuotaCall, QuotaOperation, REWIND_TIME, operation_sequences,
};
use crate::store::{
    QuotaSnapshot,
    tests::{
        client_operation::proptest_config, redis_only::is_permanent_key,
        store_harness::StoreHarness,
    },
};

/// Most real time of one run, and by how much times may differ. What is due is a whole step away.
const MAX_REAL_TIME: Duration = Duration::from_secs(3);

/// Runs of one case that were too slow, after which the machine is to blame.
const MAX_RUNS: usize = 100;

fn assert_same_snapshots(ours: &[QuotaSnapshot], theirs: &[QuotaSnapshot], context: &str) {
    assert_eq!(ours.len(), theirs.len(), "{context}");
    let exact = |s: &QuotaSnapshot| {
        (
            s.remaining,
            s.blocked_for.is_some(),
            s.retry_after == Duration::MAX,
            s.retry_after.is_zero(),
        )
    };
    for (one, other) in ours.iter().zip(theirs) {
        assert_eq!(exact(one), exact(other), "{one:?} {other:?} {context}");
        for (a, b) in [
            (one.reset_after, other.reset_after),
            (one.retry_after, other.retry_after),
            (one.full_after, other.full_after),
        ] {
            assert!(a.abs_diff(b) <= MAX_REAL_TIME, "{one:?} {other:?} {context}");
        }
    }
}

/// Every counter has an end.
async fn assert_counters_expire(rig: &StoreHarness) {
    let names = rig.server().key_names().await;
    for name in names.iter().filter(|name| !is_permanent_key(name)) {
        let left: i64 = rig.server().key_command("PTTL", name, &[]).await;
        // -2: it has ended meanwhile.
        assert_ne!(left, -1, "{name} has no end");
    }
}

/// Makes the moves on both; false if it took too long.
async fn run_on_both_stores(made: &[QuotaOperation]) -> bool {
    let (memory, redis) = (StoreHarness::memory(), StoreHarness::redis().await);
    let (mut ours, mut theirs) = (ChargeLedger::new(true), ChargeLedger::new(true));
    redis.ping().await;
    let started = Instant::now();
    for (at, made) in made.iter().enumerate() {
        let context = format!("move {at}, {made:?}");
        match (ours.resolve_operation(made), theirs.resolve_operation(made)) {
            (Some(QuotaCall::Charge(charge)), Some(QuotaCall::Charge(same))) => {
                let charged = memory.charge(charge.clone()).await;
                let other = redis.charge(same.clone()).await;
                if started.elapsed() > MAX_REAL_TIME {
                    return false;
                }
                assert_eq!(charged.admitted, other.admitted, "{context}");
                assert_same_snapshots(&charged.snapshots, &other.snapshots, &context);
                ours.record_charge(&charge, &charged);
                theirs.record_charge(&same, &other);
            }
            (Some(QuotaCall::Settle(call)), Some(QuotaCall::Settle(same))) => {
                let states = memory.settle_charge(call).await;
                let other = redis.settle_charge(same).await;
                if started.elapsed() > MAX_REAL_TIME {
                    return false;
                }
                assert_same_snapshots(&states, &other, &context);
            }
            (Some(QuotaCall::Reset(ours)), Some(QuotaCall::Reset(theirs))) => {
                for (tag, item) in ours {
                    memory.reset_counter(&item, &tag).await;
                }
                for (tag, item) in theirs {
                    redis.reset_counter(&item, &tag).await;
                }
            }
            (Some(QuotaCall::AdvanceTime(time)), _) => {
                memory.advance(time).await;
                redis.advance(time).await;
            }
            (Some(QuotaCall::RewindClock(time)), _) => {
                memory.rewind_clock(time).await;
                redis.rewind_clock(time).await;
            }
            (None, None) => {}
            (one, other) => panic!("{one:?} {other:?} {context}"),
        }
        assert_counters_expire(&redis).await;
    }
    // The end of what was not looked at since the clock was put back was put off.
    redis.advance(REWIND_TIME * 100).await;
    let left = redis.server().key_names().await;
    let left: Vec<_> = left.iter().filter(|name| !is_permanent_key(name)).collect();
    assert!(left.is_empty(), "{left:?} is left behind");
    true
}

async fn retry_until_in_time(made: &[QuotaOperation]) {
    for _ in 0..MAX_RUNS {
        if run_on_both_stores(made).await {
            return;
        }
    }
    panic!("{} moves take longer than {MAX_REAL_TIME:?} on this machine", made.len());
}

#[test]
fn memory_and_redis_count_alike() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..proptest_config(200) });
    runner
        .run(&operation_sequences(40), |made| {
            runtime.block_on(retry_until_in_time(&made));
            Ok(())
        })
        .unwrap();
}
