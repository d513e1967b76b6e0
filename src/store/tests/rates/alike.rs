//! The same moves on the embedded store and on Redis get the same answers, and leave nothing on Redis that
//! has no end.

use std::time::{Duration, Instant};

use proptest::test_runner::{Config, TestRunner};

use super::moves::{Call, FAR, Ledger, Move, moves};
use crate::store::{
    QuotaSnapshot,
    tests::{moves::cases, redis_only::lasting, rig::Rig},
};

/// Most real time of one run, and by how much times may differ. What is due is a whole step away.
const SLOW: Duration = Duration::from_secs(3);

/// Runs of one case that were too slow, after which the machine is to blame.
const RUNS: usize = 100;

fn alike(ours: &[QuotaSnapshot], theirs: &[QuotaSnapshot], context: &str) {
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
            assert!(a.abs_diff(b) <= SLOW, "{one:?} {other:?} {context}");
        }
    }
}

/// Every counter has an end.
async fn has_ends(rig: &Rig) {
    let names = rig.server().names().await;
    for name in names.iter().filter(|name| !lasting(name)) {
        let left: i64 = rig.server().raw("PTTL", name, &[]).await;
        // -2: it has ended meanwhile.
        assert_ne!(left, -1, "{name} has no end");
    }
}

/// Makes the moves on both; false if it took too long.
async fn play(made: &[Move]) -> bool {
    let (memory, redis) = (Rig::memory(), Rig::redis().await);
    let (mut ours, mut theirs) = (Ledger::new(true), Ledger::new(true));
    redis.ping().await;
    let started = Instant::now();
    for (at, made) in made.iter().enumerate() {
        let context = format!("move {at}, {made:?}");
        match (ours.call(made), theirs.call(made)) {
            (Some(Call::Charge(charge)), Some(Call::Charge(same))) => {
                let charged = memory.charge(charge.clone()).await;
                let other = redis.charge(same.clone()).await;
                if started.elapsed() > SLOW {
                    return false;
                }
                assert_eq!(charged.admitted, other.admitted, "{context}");
                alike(&charged.snapshots, &other.snapshots, &context);
                ours.hear(&charge, &charged);
                theirs.hear(&same, &other);
            }
            (Some(Call::Settle(call)), Some(Call::Settle(same))) => {
                let states = memory.settle_charge(call).await;
                let other = redis.settle_charge(same).await;
                if started.elapsed() > SLOW {
                    return false;
                }
                alike(&states, &other, &context);
            }
            (Some(Call::Reset(ours)), Some(Call::Reset(theirs))) => {
                for (tag, item) in ours {
                    memory.reset(&item, &tag).await;
                }
                for (tag, item) in theirs {
                    redis.reset(&item, &tag).await;
                }
            }
            (Some(Call::Pass(time)), _) => {
                memory.advance(time).await;
                redis.advance(time).await;
            }
            (Some(Call::PutBack(time)), _) => {
                memory.put_back(time).await;
                redis.put_back(time).await;
            }
            (None, None) => {}
            (one, other) => panic!("{one:?} {other:?} {context}"),
        }
        has_ends(&redis).await;
    }
    // The end of what was not looked at since the clock was put back was put off.
    redis.advance(FAR * 100).await;
    let left = redis.server().names().await;
    let left: Vec<_> = left.iter().filter(|name| !lasting(name)).collect();
    assert!(left.is_empty(), "{left:?} is left behind");
    true
}

async fn play_in_time(made: &[Move]) {
    for _ in 0..RUNS {
        if play(made).await {
            return;
        }
    }
    panic!("{} moves take longer than {SLOW:?} on this machine", made.len());
}

#[test]
fn both_stores_count_alike() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(Rig::redis());
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..cases(200) });
    runner
        .run(&moves(40), |made| {
            runtime.block_on(play_in_time(&made));
            Ok(())
        })
        .unwrap();
}
