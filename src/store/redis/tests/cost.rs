//! How many commands the server runs for what a worker asks of it, those in scripts counted.

use std::pin::pin;

use futures_util::FutureExt as _;

use super::{
    SECOND,
    runs::{settlement, stored},
    server::Server,
};
use crate::{
    key::Key,
    store::{
        Store,
        backend::{Claim, Claimed, Node, Settle, SettledRun, Token},
    },
};

impl Server {
    /// All commands so far, but for those that ask.
    async fn commands(&self) -> u64 {
        const ASKING: [&str; 4] =
            ["cmdstat_info:", "cmdstat_client", "cmdstat_hello", "cmdstat_ping"];
        let text: String = self.ask(&["INFO", "commandstats"]).await;
        let lines = text.lines().filter(|line| !ASKING.iter().any(|name| line.starts_with(name)));
        let calls = lines.filter_map(|line| line.split_once(":calls=")?.1.split(',').next());
        calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
    }

    async fn cost<T>(&self, of: impl Future<Output = T>) -> (T, u64) {
        let before = self.commands().await;
        let answer = of.await;
        (answer, self.commands().await - before)
    }
}

async fn claim(store: &Store, name: &str) -> Claim {
    let key = Key::custom(name);
    let id = stored(store, &key).await;
    let me = Token::new(store.node());
    Claim { key, id, me, lease: 10 * SECOND, retention: 10 * SECOND }
}

fn last(store: &Store, claim: &Claim) -> Settle {
    Settle { next: None, ..settlement(store, claim) }
}

/// An idle worker costs its signs of life, and a fleet as many times that.
#[tokio::test]
async fn a_sign_of_life_is_five_commands() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let (a, b) = (Node::new(), Node::new());
    for node in [&a, &b, &a, &b] {
        store.backend().beat(node.clone(), 60 * SECOND).await.unwrap();
    }
    for node in [&a, &b] {
        let (beat, cost) = server.cost(store.backend().beat(node.clone(), 60 * SECOND)).await;
        assert_eq!(beat.unwrap().mine.len(), 32);
        assert_eq!(cost, 5);
    }
}

/// Bounds that are met today: of a line that has one job, the claim and the settlement that leaves nothing.
#[tokio::test]
async fn the_run_of_a_lone_job_is_few_commands() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    store.backend().beat(store.node().clone(), 60 * SECOND).await.unwrap();
    // What only the first run costs.
    let first = claim(&store, "first").await;
    store.backend().claim(first.clone()).await.unwrap();
    store.backend().settle(last(&store, &first)).await.unwrap();
    let one = claim(&store, "one").await;
    let (claimed, cost) = server.cost(store.backend().claim(one.clone())).await;
    assert!(matches!(claimed.unwrap(), Claimed::Claimed(_)));
    // It was offered the lock when it came: nobody else was there.
    assert!(cost <= 18, "claim: {cost}");
    let (settled, cost) = server.cost(store.backend().settle(last(&store, &one))).await;
    assert_eq!(settled.unwrap(), SettledRun::Stands(None));
    // Four of them begin an index and its books: this one is the first that ends in its shard.
    assert!(cost <= 24, "settlement: {cost}");
}

/// The claim that begins in the room of a run that has ended goes with its settlement.
#[tokio::test]
async fn a_settlement_and_the_next_claim_are_one_call() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    store.backend().beat(store.node().clone(), 60 * SECOND).await.unwrap();
    // By the same way: that is where calls can go together.
    let key = Key::custom("0");
    let name = (1..).map(|n| n.to_string());
    let mut alike = name.filter(|name| Key::custom(name).shard() == key.shard());
    let (one, two) = (claim(&store, "0").await, claim(&store, &alike.next().unwrap()).await);
    assert!(matches!(store.backend().claim(one.clone()).await, Ok(Claimed::Claimed(_))));
    let before = server.calls().await;
    let mut settled = pin!(store.backend().settle(last(&store, &one)));
    assert!(settled.as_mut().now_or_never().is_none());
    let claimed = store.backend().claim(two).await;
    assert!(matches!(claimed, Ok(Claimed::Claimed(_))), "{claimed:?}");
    assert_eq!(settled.await.unwrap(), SettledRun::Stands(None));
    assert_eq!(server.calls().await - before, 1);
}
