//! The same charges on the embedded store and on Redis get the same replies. On Redis, every key
//! that remains has an expiry.

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

/// Longest real time of one run, and tolerance of times. Due times are at least one `TIME_STEP`
/// away.
const MAX_REAL_TIME: Duration = Duration::from_secs(3);

/// Number of slow runs of one case after which the machine is too busy.
const MAX_RUNS: usize = 100;

fn assert_same_snapshots(left: &[QuotaSnapshot], right: &[QuotaSnapshot], context: &str) {
    assert_eq!(left.len(), right.len(), "{context}");
    let exact = |s: &QuotaSnapshot| {
        (
            s.remaining,
            s.blocked_for.is_some(),
            s.retry_after == Duration::MAX,
            s.retry_after.is_zero(),
        )
    };
    for (one, other) in left.iter().zip(right) {
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

/// Asserts that every counter has an expiry.
async fn assert_counters_expire(rig: &StoreHarness) {
    let names = rig.server().key_names().await;
    for name in names.iter().filter(|name| !is_permanent_key(name)) {
        let ttl: i64 = rig.server().key_command("PTTL", name, &[]).await;
        // -2: the key has expired since the listing.
        assert_ne!(ttl, -1, "{name} has no end");
    }
}

/// Runs the operations on both stores. Returns false if it took too long.
async fn run_on_both_stores(operations: &[QuotaOperation]) -> bool {
    let (memory, redis) = (StoreHarness::memory(), StoreHarness::redis().await);
    let (mut memory_ledger, mut redis_ledger) = (ChargeLedger::new(true), ChargeLedger::new(true));
    redis.ping().await;
    let started = Instant::now();
    for (index, operation) in operations.iter().enumerate() {
        let context = format!("move {index}, {operation:?}");
        let calls =
            (memory_ledger.resolve_operation(operation), redis_ledger.resolve_operation(operation));
        match calls {
            (Some(QuotaCall::Charge(charge)), Some(QuotaCall::Charge(redis_call))) => {
                let charged = memory.charge(charge.clone()).await;
                let other = redis.charge(redis_call.clone()).await;
                if started.elapsed() > MAX_REAL_TIME {
                    return false;
                }
                assert_eq!(charged.admitted, other.admitted, "{context}");
                assert_same_snapshots(&charged.snapshots, &other.snapshots, &context);
                memory_ledger.record_charge(&charge, &charged);
                redis_ledger.record_charge(&redis_call, &other);
            }
            (Some(QuotaCall::Settle(call)), Some(QuotaCall::Settle(redis_call))) => {
                let snapshots = memory.settle_charge(call).await;
                let other = redis.settle_charge(redis_call).await;
                if started.elapsed() > MAX_REAL_TIME {
                    return false;
                }
                assert_same_snapshots(&snapshots, &other, &context);
            }
            (Some(QuotaCall::Reset(memory_items)), Some(QuotaCall::Reset(redis_items))) => {
                for (tag, item) in memory_items {
                    memory.reset_counter(&item, &tag).await;
                }
                for (tag, item) in redis_items {
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
    // A rewind postpones the expiry of counters that were not read since.
    redis.advance(REWIND_TIME * 100).await;
    let leftover = redis.server().key_names().await;
    let leftover: Vec<_> = leftover.iter().filter(|name| !is_permanent_key(name)).collect();
    assert!(leftover.is_empty(), "{leftover:?} is left behind");
    true
}

async fn retry_until_in_time(operations: &[QuotaOperation]) {
    for _ in 0..MAX_RUNS {
        if run_on_both_stores(operations).await {
            return;
        }
    }
    panic!("{} moves take longer than {MAX_REAL_TIME:?} on this machine", operations.len());
}

#[test]
fn memory_and_redis_count_alike() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server running between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..proptest_config(200) });
    runner
        .run(&operation_sequences(40), |operations| {
            runtime.block_on(retry_until_in_time(&operations));
            Ok(())
        })
        .unwrap();
}
