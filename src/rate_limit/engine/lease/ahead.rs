//! More of a lease before all of it is spent, so that nobody waits for it, or asks for himself alone meanwhile.
//!
//! Only of a key that spends half of a lease within moments: of others it is one request in a lease's length that
//! waits, and what is fetched too early is not there for other processes. A process never has more of a key than its
//! policy says: it fetches at most what it has spent.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Fetching, Lease, Spent};
use crate::{
    rate_limit::engine::{Engine, counter_map::Spot},
    store::{ChargeCommand, ChargeItem, Store},
};

/// Half of a smaller lease is hardly worth a call.
const LEAST: u32 = 32;

/// Within this time half of it has to be spent: some round trips to a store that is near.
const SOON: Duration = Duration::from_millis(25);

impl Lease {
    /// How much is to be fetched now, before anybody needs it; whoever is told has to see to it.
    pub(super) fn ahead(&mut self, most: u32, sharing: u64, now: Instant) -> Option<u32> {
        let half = u64::from(most / 2);
        if most < LEAST || self.units > half || self.fetching {
            return None;
        }
        // Asked for once: what does not come, for whatever reason, is fetched by who finds no unit.
        self.filled.take().filter(|filled| now - *filled <= SOON)?;
        let room = most - u32::try_from(self.units).unwrap_or(most);
        let fetch = room.min(self.share(sharing, now));
        self.fetching = fetch > 1;
        self.fetching.then_some(fetch)
    }
}

impl Engine {
    /// Fetches what nobody waits for. A shutdown waits for it, and gives it back.
    pub(super) fn fetch_ahead(
        self: &Arc<Self>,
        store: &Store,
        spot: Spot<'_>,
        item: Option<ChargeItem>,
        times: u32,
    ) {
        let (fetching, begun) = (Fetching::new(self, spot), self.pending.begin());
        let charge = ChargeCommand { tag: spot.tag.clone(), items: item.into_iter().collect(), repetitions: times };
        let with = store.clone();
        store.spawn_background(async move {
            match fetching.fetch(&with, charge).await {
                Ok(Some(Spent { unit: Some(unit), .. })) => fetching.put_back(&unit),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "a lease was not fetched ahead"),
            }
            drop(begun);
        });
    }
}
