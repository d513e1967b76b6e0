//! Operations on quotas.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{TryFutureExt as _, future::ready};
use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{
            ChargeCommand, ChargeFuture, ChargeOutcome, CounterName, QuotaSnapshot,
            SettleChargeCommand,
        },
        key_names::CounterKeyKind,
        rate::{
            AdjustmentKind, ChargeAdjustment, ChargeItem, ChargedWindow, QuotaSnapshots,
            check_item_count,
        },
        redis::{
            RedisBackend,
            batcher::BatchedCall,
            charge_transport::{ChargeTransport, QueuedCharge, write_counter},
            lock_command_encoding::{write_number, write_texts},
            raw_charge_reply::{self, decode_count, item_error, value_count},
            scripts::{CHARGE_BATCH, RESET_CHARGES, SETTLE_CHARGE},
        },
    },
};

/// Charge that is sent with others.
pub(crate) struct BatchedCharge<'a> {
    redis: &'a RedisBackend,
    shard: u16,
    items: Arc<[ChargeItem]>,
    call: BatchedCall<ChargeTransport>,
}

impl Future for BatchedCharge<'_> {
    type Output = Result<ChargeOutcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.call).poll(cx));
        self.redis.record_outcome(self.shard, &outcome);
        let counted = outcome?.first?;
        let admitted = u32::try_from(counted.admitted).unwrap_or(u32::MAX);
        Poll::Ready(Ok(ChargeOutcome { admitted, snapshots: counted.counter_states(&self.items) }))
    }
}

impl RedisBackend {
    pub(super) fn do_charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        if let Err(error) = call.validate() {
            return ChargeFuture::Boxed(Box::pin(ready(Err(error))));
        }
        if call.items.is_empty() {
            let charged =
                ChargeOutcome { admitted: call.repetitions, snapshots: QuotaSnapshots::new() };
            return ChargeFuture::Boxed(Box::pin(ready(Ok(charged))));
        }
        match call.merge_duplicates() {
            None => self.start_charge(call),
            Some((merged, places)) => {
                let charged = self.start_charge(merged);
                ChargeFuture::Boxed(Box::pin(
                    charged.map_ok(move |charged| charged.expand_duplicates(&places)),
                ))
            }
        }
    }

    fn start_charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        let (items, asked) = (Arc::clone(&call.items), QueuedCharge::new(call));
        let shard = asked.shard();
        if let Err(error) = self.check_breaker(shard, CHARGE_BATCH.name) {
            return ChargeFuture::Boxed(Box::pin(ready(Err(error))));
        }
        let now = Instant::now();
        let call = self.charge_batcher(shard).start_call(asked, now, now + self.deadline);
        ChargeFuture::Batched(BatchedCharge { redis: self, shard, items, call })
    }

    pub(super) async fn do_settle_charge(
        &self,
        call: SettleChargeCommand,
    ) -> Result<Vec<QuotaSnapshot>, Error> {
        call.validate()?;
        let SettleChargeCommand { tag, items } = call;
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let shard = tag.shard();
        let keys = items.iter().map(|item| {
            let kind = CounterKeyKind::spent_units(item.rule.algorithm());
            self.keys.counter_parts(&tag, shard, kind, (&item.policy, &item.subject)).concat()
        });
        let keys: Vec<_> = keys.collect();
        let mut args = Cmd::new();
        items.iter().for_each(|item| write_settlement(item, &mut args));
        let reply =
            self.call_script(shard, &SETTLE_CHARGE, &keys, &into_script_args(&args)).await?;
        let odd = || Error::new(ErrorKind::Protocol, SETTLE_CHARGE.name);
        let Value::Array(words) = reply else { return Err(odd()) };
        let mut words = words.into_iter().peekable();
        let now_us = raw_charge_reply::decode_number(SETTLE_CHARGE.name, words.next().as_ref())?;
        let (mut states, mut failed) = (Vec::with_capacity(items.len()), None);
        for settled in items {
            if let Some(Value::BulkString(text)) = words.peek() {
                failed = Some(item_error(SETTLE_CHARGE.name, text));
                words.next();
                continue;
            }
            let item = zero_cost_item(settled);
            let mut next =
                || raw_charge_reply::decode_number(SETTLE_CHARGE.name, words.next().as_ref());
            let own: Vec<u64> =
                (0..value_count(&item)).map(|_| next()).collect::<Result<_, _>>()?;
            states.push(item.evaluate(decode_count(&item.rule, &own), now_us, 0));
        }
        failed.map_or(Ok(states), Err)
    }

    pub(super) async fn do_reset_counters(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
    ) -> Result<(), Error> {
        check_item_count(counters.len())?;
        if counters.is_empty() {
            return Ok(());
        }
        let shard = tag.shard();
        let names = counters.iter().flat_map(|CounterName { policy, subject, algorithm }| {
            [CounterKeyKind::spent_units(*algorithm), CounterKeyKind::refusals(*algorithm)]
                .map(|kind| self.keys.counter_parts(&tag, shard, kind, (policy, subject)).concat())
        });
        let names: Vec<_> = names.collect();
        self.call_script(shard, &RESET_CHARGES, &names, &[]).await.map(drop)
    }
}

fn zero_cost_item(settled: ChargeAdjustment) -> ChargeItem {
    let ChargeAdjustment { policy, subject, rule, .. } = settled;
    ChargeItem { policy, subject, rule, cost: 0, penalty: None }
}

fn write_settlement(settled: &ChargeAdjustment, out: &mut Cmd) {
    let (verb, units, window) = match settled.kind {
        AdjustmentKind::Refund { units, window } => ("refund", units, window),
        AdjustmentKind::Charge { units } => ("charge", units, ChargedWindow::default()),
    };
    write_texts(out, [verb]);
    write_number(out, window.boundary);
    write_number(out, window.debt_id);
    write_counter(&settled.rule, units, out);
}

/// Converts encoded arguments to those of a script call.
fn into_script_args(written: &Cmd) -> super::ScriptArgs {
    let simple = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
        _ => None,
    };
    written.args_iter().filter_map(simple).collect()
}
