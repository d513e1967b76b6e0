//! What sentinels say of a master that is alive: it is left at their word, and not come back to.

use std::time::Duration;

use super::{
    super::cluster::{ask, charge},
    FakeSentinel, SECOND, Server,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{Store, backend::LockToken},
};

/// Two who call themselves masters, and a sentinel that names the first.
struct Pair {
    old: Server,
    new: Server,
    sentinel: FakeSentinel,
    store: Store,
}

impl Pair {
    /// With a store that has used all its lanes, and hears the sentinel.
    async fn start() -> Self {
        Self::start_with(SECOND / 4, "600000").await
    }

    /// One that gives signs of life, and asks, eight times a second.
    async fn start_that_looks() -> Self {
        Self::start_with(SECOND / 4, "1000").await
    }

    async fn start_with(deadline: Duration, down_after: &'static str) -> Self {
        let (old, new) = (Server::start().await, Server::start().await);
        let sentinel = FakeSentinel::of(old.port()).await;
        sentinel.down_after(down_after);
        let builder =
            Store::builder(&sentinel.url()).connections_per_node(4).call_timeout(deadline);
        let store = builder.connect().await.expect("the URL is right");
        let pair = Self { old, new, sentinel, store };
        while pair.sentinel.heard_by() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while pair.charged().await < 64 {}
        assert_eq!(pair.new.calls().await, 0);
        pair
    }

    /// How many of so many charges of different shards are acknowledged.
    async fn charged(&self) -> usize {
        let mut done = 0;
        for n in 0..64 {
            let key = Key::custom(&format!("{n}"));
            let charged = self.store.backend().charge(charge(&key, 1 << 30)).await;
            done += usize::from(charged.is_ok());
        }
        // Refused at once, they let nobody else run.
        tokio::time::sleep(Duration::from_millis(1)).await;
        done
    }

    fn says_that_it_is_replaced(&self) {
        self.sentinel.flags("master,failover_in_progress");
        let (old, new) = (self.old.port(), self.new.port());
        let words = format!("slave 127.0.0.1:{new} 127.0.0.1 {new} @ mymaster 127.0.0.1 {old}");
        self.sentinel.say("+failover-state-send-slaveof-noone", words);
    }

    /// All of the lanes lead to the new one, and none went to the old one on the way.
    async fn all_have_moved(&self, before: u64) {
        in_time("it goes on", async { while self.charged().await < 64 {} }).await;
        assert_eq!(self.old.calls().await, before, "written to the old one");
        assert!(self.new.calls().await >= 64);
    }
}

async fn in_time(what: &str, done: impl Future<Output = ()>) {
    tokio::time::timeout(20 * SECOND, done).await.expect(what);
}

#[tokio::test]
async fn a_master_is_left_by_all_lanes_at_the_word_of_its_successor() {
    let pair = Pair::start().await;
    let (old, new) = (pair.old.port(), pair.new.port());
    // Of another master: nothing to us.
    pair.sentinel.say("+switch-master", format!("other 127.0.0.1 {old} 127.0.0.1 {new}"));
    pair.charged().await;
    assert_eq!(pair.new.calls().await, 0);
    pair.sentinel.name(pair.new.port());
    pair.sentinel.say("+switch-master", format!("mymaster 127.0.0.1 {old} 127.0.0.1 {new}"));
    // By one shard's lane.
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    in_time("it is heard", async {
        while pair.new.calls().await == 0 {
            let _ = backend.charge(charge(&key, 1 << 30)).await;
        }
    })
    .await;
    pair.all_have_moved(pair.old.calls().await).await;
}

#[tokio::test]
async fn a_master_that_is_about_to_be_replaced_is_left_and_not_used_until_its_successor_is_known() {
    let pair = Pair::start().await;
    pair.says_that_it_is_replaced();
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    let away = |error: Error| error.kind() == ErrorKind::Unavailable;
    in_time("it is heard", async {
        while !backend.charge(charge(&key, 1 << 30)).await.is_err_and(away) {}
    })
    .await;
    let before = pair.old.calls().await;
    for _ in 0..20 {
        let error = backend.charge(charge(&key, 1 << 30)).await.expect_err("there is no master");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert_eq!((pair.charged().await, pair.old.calls().await), (0, before));
    pair.sentinel.name(pair.new.port());
    pair.sentinel.flags("master");
    pair.all_have_moved(before).await;
}

/// Subscriptions may be away just then.
#[tokio::test]
async fn a_master_is_left_though_nobody_hears_a_word() {
    let pair = Pair::start_that_looks().await;
    pair.sentinel.name(pair.new.port());
    in_time("it is seen", async {
        while pair.new.calls().await == 0 {
            pair.charged().await;
        }
    })
    .await;
    pair.all_have_moved(pair.old.calls().await).await;
}

#[tokio::test]
async fn a_master_that_is_replaced_is_left_though_nobody_hears_a_word() {
    let pair = Pair::start_that_looks().await;
    pair.sentinel.flags("master,failover_in_progress");
    in_time("it is seen", async { while pair.charged().await > 0 {} }).await;
    let before = pair.old.calls().await;
    pair.sentinel.name(pair.new.port());
    pair.sentinel.flags("master");
    pair.all_have_moved(before).await;
}

/// Also if it was given up again.
#[tokio::test]
async fn a_master_that_stays_is_come_back_to() {
    let pair = Pair::start().await;
    pair.says_that_it_is_replaced();
    in_time("it is heard", async { while pair.charged().await > 0 {} }).await;
    pair.sentinel.flags("master");
    in_time("it is back", async { while pair.charged().await < 64 {} }).await;
    assert_eq!(pair.new.calls().await, 0);
}

#[tokio::test]
async fn a_store_that_is_dropped_hears_no_more() {
    let Pair { sentinel, store, .. } = Pair::start().await;
    drop(store);
    in_time("it has ended", async {
        while sentinel.heard_by() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Nobody called while it stood still, and nobody has told.
#[tokio::test]
async fn a_lane_that_was_idle_while_its_master_stood_still_asks_who_is_the_master() {
    let pair = Pair::start_that_looks().await;
    let before = pair.old.calls().await;
    pair.old.freeze();
    // Longer than half of the time after which it would be replaced, and a deadline.
    tokio::time::sleep(Duration::from_millis(900)).await;
    pair.sentinel.name(pair.new.port());
    pair.old.thaw();
    pair.all_have_moved(before).await;
}

/// It would be made anew with each request that comes after a while.
#[tokio::test]
async fn an_idle_lane_stays_what_it_is_while_its_master_answers() {
    let mut more = 0;
    // As below: a machine that has other things to do is right to leave it.
    for _ in 0..3 {
        let pair = Pair::start_that_looks().await;
        let made = async || pair.old.info("stats", "total_connections_received").await;
        let before = made().await;
        tokio::time::sleep(2 * SECOND).await;
        pair.charged().await;
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
async fn an_idle_lane_stays_what_it_is_while_sentinels_do_not_answer() {
    let mut stayed = 0;
    // A machine that has other things to do may be late with a sign of life, by a second, and then it is right to leave the
    // lane: so no one round can be demanded. One is enough: what this looks for is there in each of them, since the
    // sentinel hangs in each, for longer than a lane may be without a sign.
    for _ in 0..3 {
        // Asked for a sign of life four times a second, and left after a second without one; the sentinel may take six.
        let pair = Pair::start_with(3 * SECOND, "2000").await;
        let before = pair.old.info("stats", "total_connections_received").await;
        pair.sentinel.hang();
        tokio::time::sleep(3 * SECOND).await;
        let made = pair.old.info("stats", "total_connections_received").await - before;
        stayed = tokio::time::timeout(20 * SECOND, pair.charged()).await.unwrap_or(0);
        // The one that asks.
        if stayed == 64 && made <= 1 {
            return;
        }
    }
    panic!("{stayed} of 64 charges by lanes that were idle");
}

/// A second call would lie there with the first, and be run by whoever wakes.
#[tokio::test]
async fn a_lane_is_left_at_its_first_timeout() {
    let pair = Pair::start().await;
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    let before = pair.old.calls().await;
    pair.old.freeze();
    let error = backend.charge(charge(&key, 1 << 30)).await.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    pair.sentinel.name(pair.new.port());
    pair.old.thaw();
    // Sooner than it would be left because it was silent.
    in_time("it goes on", async { while backend.charge(charge(&key, 1 << 30)).await.is_err() {} })
        .await;
    assert_eq!(pair.old.calls().await, before + 1, "only what had been sent before");
    assert!(pair.new.calls().await > 0);
}

/// What comes by a lane that was left may come of a master that was replaced meanwhile.
#[tokio::test]
async fn what_a_lane_answers_after_it_was_left_is_in_doubt() {
    let pair = Pair::start_with(SECOND, "600000").await;
    let (key, backend) = (Key::custom("x"), pair.store.backend());
    pair.old.freeze();
    let first = backend.charge(charge(&key, 1 << 30));
    // On the same lane, with a deadline of its own that is later; it is not too late to use the lane.
    let second = async {
        tokio::time::sleep(SECOND / 4).await;
        let me = LockToken::new(pair.store.node());
        backend.acquire(ask(&key, &me)).await
    };
    let wakes = async {
        let first = first.await;
        tokio::time::sleep(SECOND / 20).await;
        pair.sentinel.name(pair.new.port());
        pair.old.thaw();
        first
    };
    let (first, second) = tokio::join!(wakes, second);
    assert_eq!(first.expect_err("nobody answers").kind(), ErrorKind::Timeout);
    // The successor has it, if anybody.
    let there = pair.new.left().await.iter().any(|name| name.contains("}:h:"));
    assert_eq!(second.is_ok(), there, "{second:?}, by the lane that had been left");
}
