//! What sentinels say of a master that is alive: it is left at their word, and not come back to.

use std::time::Duration;

use super::{
    super::cluster::{acquire_command, charge_command},
    FakeSentinel, SECOND, ServerProcess,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{Store, backend::LockToken},
};

/// Two who call themselves masters, and a sentinel that names the first.
struct FailoverPair {
    old_master: ServerProcess,
    new_master: ServerProcess,
    sentinel: FakeSentinel,
    store: Store,
}

impl FailoverPair {
    /// With a store that has used all its lanes, and hears the sentinel.
    async fn start() -> Self {
        Self::start_with(SECOND / 4, "600000").await
    }

    /// One that gives signs of life, and asks, eight times a second.
    async fn start_with_frequent_polls() -> Self {
        Self::start_with(SECOND / 4, "1000").await
    }

    async fn start_with(deadline: Duration, down_after: &'static str) -> Self {
        let (old, new) = (ServerProcess::start().await, ServerProcess::start().await);
        let sentinel = FakeSentinel::monitoring(old.port()).await;
        sentinel.set_down_after(down_after);
        let builder =
            Store::builder(&sentinel.url()).connections_per_node(4).call_timeout(deadline);
        let store = builder.connect().await.expect("the URL is right");
        let pair = Self { old_master: old, new_master: new, sentinel, store };
        while pair.sentinel.subscriber_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while pair.count_admitted_charges().await < 64 {}
        assert_eq!(pair.new_master.count_script_calls().await, 0);
        pair
    }

    /// How many of so many charges of different shards are acknowledged.
    async fn count_admitted_charges(&self) -> usize {
        let mut done = 0;
        for n in 0..64 {
            let key = Key::custom(&format!("{n}"));
            let charged = self.store.backend().charge(charge_command(&key, 1 << 30)).await;
            done += usize::from(charged.is_ok());
        }
        // Refused at once, they let nobody else run.
        tokio::time::sleep(Duration::from_millis(1)).await;
        done
    }

    fn announce_failover(&self) {
        self.sentinel.set_flags("master,failover_in_progress");
        let (old, new) = (self.old_master.port(), self.new_master.port());
        let words = format!("slave 127.0.0.1:{new} 127.0.0.1 {new} @ mymaster 127.0.0.1 {old}");
        self.sentinel.publish_event("+failover-state-send-slaveof-noone", words);
    }

    /// All of the lanes lead to the new one, and none went to the old one on the way.
    async fn assert_all_lanes_moved(&self, before: u64) {
        wait_for("it goes on", async { while self.count_admitted_charges().await < 64 {} }).await;
        assert_eq!(self.old_master.count_script_calls().await, before, "written to the old one");
        assert!(self.new_master.count_script_calls().await >= 64);
    }
}

async fn wait_for(what: &str, done: impl Future<Output = ()>) {
    tokio::time::timeout(20 * SECOND, done).await.expect(what);
}

#[tokio::test]
async fn switch_master_event_moves_all_lanes() {
    let pair = FailoverPair::start().await;
    let (old, new) = (pair.old_master.port(), pair.new_master.port());
    // Of another master: nothing to us.
    pair.sentinel.publish_event("+switch-master", format!("other 127.0.0.1 {old} 127.0.0.1 {new}"));
    pair.count_admitted_charges().await;
    assert_eq!(pair.new_master.count_script_calls().await, 0);
    pair.sentinel.set_master(pair.new_master.port());
    pair.sentinel
        .publish_event("+switch-master", format!("mymaster 127.0.0.1 {old} 127.0.0.1 {new}"));
    // By one shard's lane.
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    wait_for("it is heard", async {
        while pair.new_master.count_script_calls().await == 0 {
            let _ = backend.charge(charge_command(&key, 1 << 30)).await;
        }
    })
    .await;
    pair.assert_all_lanes_moved(pair.old_master.count_script_calls().await).await;
}

#[tokio::test]
async fn failover_event_suspends_master_until_successor_is_known() {
    let pair = FailoverPair::start().await;
    pair.announce_failover();
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    let away = |error: Error| error.kind() == ErrorKind::Unavailable;
    wait_for("it is heard", async {
        while !backend.charge(charge_command(&key, 1 << 30)).await.is_err_and(away) {}
    })
    .await;
    let before = pair.old_master.count_script_calls().await;
    for _ in 0..20 {
        let error =
            backend.charge(charge_command(&key, 1 << 30)).await.expect_err("there is no master");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert_eq!(
        (pair.count_admitted_charges().await, pair.old_master.count_script_calls().await),
        (0, before)
    );
    pair.sentinel.set_master(pair.new_master.port());
    pair.sentinel.set_flags("master");
    pair.assert_all_lanes_moved(before).await;
}

/// Subscriptions may be away just then.
#[tokio::test]
async fn replaced_master_is_left_without_events() {
    let pair = FailoverPair::start_with_frequent_polls().await;
    pair.sentinel.set_master(pair.new_master.port());
    wait_for("it is seen", async {
        while pair.new_master.count_script_calls().await == 0 {
            pair.count_admitted_charges().await;
        }
    })
    .await;
    pair.assert_all_lanes_moved(pair.old_master.count_script_calls().await).await;
}

#[tokio::test]
async fn master_in_failover_is_left_without_events() {
    let pair = FailoverPair::start_with_frequent_polls().await;
    pair.sentinel.set_flags("master,failover_in_progress");
    wait_for("it is seen", async { while pair.count_admitted_charges().await > 0 {} }).await;
    let before = pair.old_master.count_script_calls().await;
    pair.sentinel.set_master(pair.new_master.port());
    pair.sentinel.set_flags("master");
    pair.assert_all_lanes_moved(before).await;
}

/// Also if it was given up again.
#[tokio::test]
async fn master_is_used_again_after_aborted_failover() {
    let pair = FailoverPair::start().await;
    pair.announce_failover();
    wait_for("it is heard", async { while pair.count_admitted_charges().await > 0 {} }).await;
    pair.sentinel.set_flags("master");
    wait_for("it is back", async { while pair.count_admitted_charges().await < 64 {} }).await;
    assert_eq!(pair.new_master.count_script_calls().await, 0);
}

#[tokio::test]
async fn dropped_store_ends_sentinel_subscription() {
    let FailoverPair { sentinel, store, .. } = FailoverPair::start().await;
    drop(store);
    wait_for("it has ended", async {
        while sentinel.subscriber_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Nobody called while it stood still, and nobody has told.
#[tokio::test]
async fn idle_lane_asks_sentinel_after_master_was_frozen() {
    let pair = FailoverPair::start_with_frequent_polls().await;
    let before = pair.old_master.count_script_calls().await;
    pair.old_master.freeze();
    // Longer than half of the time after which it would be replaced, and a deadline.
    tokio::time::sleep(Duration::from_millis(900)).await;
    pair.sentinel.set_master(pair.new_master.port());
    pair.old_master.resume();
    pair.assert_all_lanes_moved(before).await;
}

/// It would be made anew with each request that comes after a while.
#[tokio::test]
async fn idle_lane_is_kept_while_master_answers() {
    let mut more = 0;
    // As below: a machine that has other things to do is right to leave it.
    for _ in 0..3 {
        let pair = FailoverPair::start_with_frequent_polls().await;
        let made =
            async || pair.old_master.info_number("stats", "total_connections_received").await;
        let before = made().await;
        tokio::time::sleep(2 * SECOND).await;
        pair.count_admitted_charges().await;
        more = made().await - before;
        // Those that ask.
        if more <= 2 {
            return;
        }
    }
    panic!("{more} lanes anew in each round");
}

/// None of them would be told who is the master then: a lane that was left could not be made anew.
#[tokio::test]
async fn idle_lane_is_kept_while_sentinels_do_not_answer() {
    let mut stayed = 0;
    // A machine that has other things to do may be late with a sign of life, by a second, and then it is right to leave the
    // lane: so no one round can be demanded. One is enough: what this looks for is there in each of them, since the
    // sentinel hangs in each, for longer than a lane may be without a sign.
    for _ in 0..3 {
        // Asked for a sign of life four times a second, and left after a second without one; the sentinel may take six.
        let pair = FailoverPair::start_with(3 * SECOND, "2000").await;
        let before = pair.old_master.info_number("stats", "total_connections_received").await;
        pair.sentinel.stop_answering();
        tokio::time::sleep(3 * SECOND).await;
        let made =
            pair.old_master.info_number("stats", "total_connections_received").await - before;
        stayed =
            tokio::time::timeout(20 * SECOND, pair.count_admitted_charges()).await.unwrap_or(0);
        // The one that asks.
        if stayed == 64 && made <= 1 {
            return;
        }
    }
    panic!("{stayed} of 64 charges by lanes that were idle");
}

/// A second call would lie there with the first, and be run by whoever wakes.
#[tokio::test]
async fn lane_is_left_at_first_timeout() {
    let pair = FailoverPair::start().await;
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    let before = pair.old_master.count_script_calls().await;
    pair.old_master.freeze();
    let error = backend.charge(charge_command(&key, 1 << 30)).await.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    pair.sentinel.set_master(pair.new_master.port());
    pair.old_master.resume();
    // Sooner than it would be left because it was silent.
    wait_for("it goes on", async {
        while backend.charge(charge_command(&key, 1 << 30)).await.is_err() {}
    })
    .await;
    assert_eq!(
        pair.old_master.count_script_calls().await,
        before + 1,
        "only what had been sent before"
    );
    assert!(pair.new_master.count_script_calls().await > 0);
}

/// What comes by a lane that was left may come of a master that was replaced meanwhile.
#[tokio::test]
async fn reply_of_left_lane_is_in_doubt() {
    let pair = FailoverPair::start_with(SECOND, "600000").await;
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    pair.old_master.freeze();
    let first = backend.charge(charge_command(&key, 1 << 30));
    // On the same lane, with a deadline of its own that is later; it is not too late to use the lane.
    let second = async {
        tokio::time::sleep(SECOND / 4).await;
        let me = LockToken::new(pair.store.node());
        backend.acquire(acquire_command(&key, &me)).await
    };
    let wakes = async {
        let first = first.await;
        tokio::time::sleep(SECOND / 20).await;
        pair.sentinel.set_master(pair.new_master.port());
        pair.old_master.resume();
        first
    };
    let (first, second) = tokio::join!(wakes, second);
    assert_eq!(first.expect_err("nobody answers").kind(), ErrorKind::Timeout);
    // The successor has it, if anybody.
    let there = pair.new_master.remaining_keys().await.iter().any(|name| name.contains("}:h:"));
    assert_eq!(second.is_ok(), there, "{second:?}, by the lane that had been left");
}
