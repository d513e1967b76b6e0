//! Charge of counters, sent in a batch with other charges of its lane.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{TryFutureExt as _, future::ready};
use tokio::time::Instant;

use crate::{
    error::Error,
    store::{
        backend::{ChargeCommand, ChargeFuture, ChargeOutcome},
        rate::{ChargeItem, QuotaSnapshots},
        redis::{
            RedisBackend,
            batcher::BatchedCall,
            charge_transport::{ChargeTransport, QueuedCharge},
            script_sources::CHARGE_BATCH,
        },
    },
};

/// Pending charge of a batch; resolves to its outcome.
pub(crate) struct BatchedCharge<'a> {
    redis: &'a RedisBackend,
    shard: u16,
    items: Arc<[ChargeItem]>,
    started_at: Instant,
    call: BatchedCall<ChargeTransport>,
}

impl Future for BatchedCharge<'_> {
    type Output = Result<ChargeOutcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.call).poll(cx));
        self.redis.record_outcome((self.shard, CHARGE_BATCH.name), self.started_at, &outcome);
        let reply = outcome?.first?;
        let admitted = u32::try_from(reply.admitted).unwrap_or(u32::MAX);
        Poll::Ready(Ok(ChargeOutcome { admitted, snapshots: reply.counter_states(&self.items) }))
    }
}

impl RedisBackend {
    pub(super) fn charge_counters(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        if let Err(error) = call.validate() {
            return ChargeFuture::Boxed(Box::pin(ready(Err(error))));
        }
        if call.items.is_empty() {
            let outcome =
                ChargeOutcome { admitted: call.repetitions, snapshots: QuotaSnapshots::new() };
            return ChargeFuture::Boxed(Box::pin(ready(Ok(outcome))));
        }
        match call.merge_duplicates() {
            None => self.submit_charge(call),
            Some((merged, positions)) => {
                let charge = self.submit_charge(merged);
                ChargeFuture::Boxed(Box::pin(
                    charge.map_ok(move |outcome| outcome.expand_duplicates(&positions)),
                ))
            }
        }
    }

    fn submit_charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        let (items, queued_charge) = (Arc::clone(&call.items), QueuedCharge::new(call));
        let shard = queued_charge.shard();
        if let Err(error) = self.check_breaker(shard, CHARGE_BATCH.name) {
            return ChargeFuture::Boxed(Box::pin(ready(Err(error))));
        }
        let now = Instant::now();
        let call = self.charge_batcher(shard).start_call(queued_charge, now, now + self.deadline);
        ChargeFuture::Batched(BatchedCharge { redis: self, shard, items, started_at: now, call })
    }
}
