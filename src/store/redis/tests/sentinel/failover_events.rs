//! Sentinel events about a master that is alive: it is left at once, and not used again.

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

/// Two servers that act as masters, and a sentinel that names the first.
struct FailoverPair {
    old_master: ServerProcess,
    new_master: ServerProcess,
    sentinel: FakeSentinel,
    store: Store,
}

impl FailoverPair {
    /// Starts with a store that has used all its lanes and has subscribed to the sentinel.
    async fn start() -> Self {
        Self::start_with(SECOND / 4, "600000").await
    }

    /// Starts with a store that pings lanes and polls the sentinel eight times a second.
    async fn start_with_frequent_polls() -> Self {
        Self::start_with(SECOND / 4, "1000").await
    }

    async fn start_with(timeout: Duration, down_after: &'static str) -> Self {
        let (old, new) = (ServerProcess::start().await, ServerProcess::start().await);
        let sentinel = FakeSentinel::monitoring(old.port()).await;
        sentinel.set_down_after(down_after);
        let builder = Store::builder(&sentinel.url()).connections_per_node(4).call_timeout(timeout);
        let store = builder.connect().await.expect("the URL is right");
        let pair = Self { old_master: old, new_master: new, sentinel, store };
        while pair.sentinel.subscriber_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while pair.count_admitted_charges().await < 64 {}
        assert_eq!(pair.new_master.count_script_calls().await, 0);
        pair
    }

    /// Returns how many of 64 charges in different shards are admitted.
    async fn count_admitted_charges(&self) -> usize {
        let mut admitted = 0;
        for n in 0..64 {
            let key = Key::custom(&format!("{n}"));
            let charged = self.store.backend().charge(charge_command(&key, 1 << 30)).await;
            admitted += usize::from(charged.is_ok());
        }
        // Charges that are refused at once do not yield to other tasks.
        tokio::time::sleep(Duration::from_millis(1)).await;
        admitted
    }

    fn announce_failover(&self) {
        self.sentinel.set_flags("master,failover_in_progress");
        let (old, new) = (self.old_master.port(), self.new_master.port());
        let event = format!("slave 127.0.0.1:{new} 127.0.0.1 {new} @ mymaster 127.0.0.1 {old}");
        self.sentinel.publish_event("+failover-state-send-slaveof-noone", event);
    }

    /// Asserts that all lanes lead to the new master, and that none used the old one meanwhile.
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
    // An event of another master is ignored.
    pair.sentinel.publish_event("+switch-master", format!("other 127.0.0.1 {old} 127.0.0.1 {new}"));
    pair.count_admitted_charges().await;
    assert_eq!(pair.new_master.count_script_calls().await, 0);
    pair.sentinel.set_master(pair.new_master.port());
    pair.sentinel
        .publish_event("+switch-master", format!("mymaster 127.0.0.1 {old} 127.0.0.1 {new}"));
    // Over the lane of one shard.
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    wait_for("the failover event to take effect", async {
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
    let is_unavailable = |error: Error| error.kind() == ErrorKind::Unavailable;
    wait_for("the failover event to take effect", async {
        while !backend.charge(charge_command(&key, 1 << 30)).await.is_err_and(is_unavailable) {}
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

/// The subscription may be interrupted at that time.
#[tokio::test]
async fn replaced_master_is_left_without_events() {
    let pair = FailoverPair::start_with_frequent_polls().await;
    pair.sentinel.set_master(pair.new_master.port());
    wait_for("the poll of the sentinel to take effect", async {
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
    wait_for("the poll of the sentinel to take effect", async {
        while pair.count_admitted_charges().await > 0 {}
    })
    .await;
    let before = pair.old_master.count_script_calls().await;
    pair.sentinel.set_master(pair.new_master.port());
    pair.sentinel.set_flags("master");
    pair.assert_all_lanes_moved(before).await;
}

#[tokio::test]
async fn master_is_used_again_after_aborted_failover() {
    let pair = FailoverPair::start().await;
    pair.announce_failover();
    wait_for("the failover event to take effect", async {
        while pair.count_admitted_charges().await > 0 {}
    })
    .await;
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

/// No call was in flight during the freeze, and no event was received.
#[tokio::test]
async fn idle_lane_queries_sentinel_after_master_was_frozen() {
    let pair = FailoverPair::start_with_frequent_polls().await;
    let before = pair.old_master.count_script_calls().await;
    pair.old_master.freeze();
    // Longer than half of the down-after time, and than a deadline.
    tokio::time::sleep(Duration::from_millis(900)).await;
    pair.sentinel.set_master(pair.new_master.port());
    pair.old_master.resume();
    pair.assert_all_lanes_moved(before).await;
}

/// Otherwise, a request after an idle time would make a new connection.
#[tokio::test]
async fn idle_lane_is_kept_while_master_answers() {
    let mut new_connections = 0;
    // On a loaded machine, the lane is left for good reason, as in the next test.
    for _ in 0..3 {
        let pair = FailoverPair::start_with_frequent_polls().await;
        let count_connections =
            async || pair.old_master.info_number("stats", "total_connections_received").await;
        let before = count_connections().await;
        tokio::time::sleep(2 * SECOND).await;
        pair.count_admitted_charges().await;
        new_connections = count_connections().await - before;
        // Connections of the test's own queries.
        if new_connections <= 2 {
            return;
        }
    }
    panic!("{new_connections} new lanes in each round");
}

/// No sentinel would name the master, so a lane that was left could not be replaced.
#[tokio::test]
async fn idle_lane_is_kept_while_sentinels_do_not_answer() {
    let mut admitted = 0;
    // On a loaded machine, a ping may be late by a second. Then the lane is left for good reason,
    // so no single round is required to pass. One is enough: in each round, the sentinel hangs for
    // longer than a lane may be silent.
    for _ in 0..3 {
        // Lanes are pinged four times a second, and left after a second without an answer. A query
        // of the sentinel may take six.
        let pair = FailoverPair::start_with(3 * SECOND, "2000").await;
        let before = pair.old_master.info_number("stats", "total_connections_received").await;
        pair.sentinel.stop_answering();
        tokio::time::sleep(3 * SECOND).await;
        let new_connections =
            pair.old_master.info_number("stats", "total_connections_received").await - before;
        admitted =
            tokio::time::timeout(20 * SECOND, pair.count_admitted_charges()).await.unwrap_or(0);
        // Connection of the test's own query.
        if admitted == 64 && new_connections <= 1 {
            return;
        }
    }
    panic!("{admitted} of 64 charges by lanes that were idle");
}

/// A second call would wait on the same connection, and run on the old master when it resumes.
#[tokio::test]
async fn lane_is_left_at_first_timeout() {
    let pair = FailoverPair::start().await;
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    let before = pair.old_master.count_script_calls().await;
    pair.old_master.freeze();
    let error = backend
        .charge(charge_command(&key, 1 << 30))
        .await
        .expect_err("the master does not answer");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    pair.sentinel.set_master(pair.new_master.port());
    pair.old_master.resume();
    // Sooner than the lane would be left for its silence.
    wait_for("it goes on", async {
        while backend.charge(charge_command(&key, 1 << 30)).await.is_err() {}
    })
    .await;
    assert_eq!(
        pair.old_master.count_script_calls().await,
        before + 1,
        "only the call sent before the event"
    );
    assert!(pair.new_master.count_script_calls().await > 0);
}

/// A reply on a lane that was left may come from a master that was replaced meanwhile.
#[tokio::test]
async fn reply_of_left_lane_is_in_doubt() {
    let pair = FailoverPair::start_with(SECOND, "600000").await;
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    pair.old_master.freeze();
    let first = backend.charge(charge_command(&key, 1 << 30));
    // On the same lane, with a later deadline of its own, while the lane may still be used.
    let second = async {
        tokio::time::sleep(SECOND / 4).await;
        let token = LockToken::new(pair.store.node());
        backend.acquire(acquire_command(&key, &token)).await
    };
    let resume = async {
        let first = first.await;
        tokio::time::sleep(SECOND / 20).await;
        pair.sentinel.set_master(pair.new_master.port());
        pair.old_master.resume();
        first
    };
    let (first, second) = tokio::join!(resume, second);
    assert_eq!(first.expect_err("the master does not answer").kind(), ErrorKind::Timeout);
    // If the lock was granted, the successor has it.
    let is_on_successor =
        pair.new_master.remaining_keys().await.iter().any(|name| name.contains("}:h:"));
    assert_eq!(second.is_ok(), is_on_successor, "{second:?}, by the lane that had been left");
}
