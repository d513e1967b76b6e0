//! Steps of quotas.

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
        backend::{ChargeCommand, ChargeOutcome, ChargeFuture, CounterName, SettleChargeCommand, QuotaSnapshot},
        key_names::CounterKeyKind,
        rate::{AdjustmentKind, ChargeItem, ChargeAdjustment, QuotaSnapshots, ChargedWindow, check_item_count},
        redis::{
            Redis,
            ask::{number, texts},
            charges::{Asked, Charges, write_counter},
            combine::Calling,
            counted::{self, count, refused, shape},
            script::{CHARGE, RESET_CHARGES, SETTLE_CHARGE},
        },
    },
};

/// A charge that goes with others.
pub(crate) struct Together<'a> {
    redis: &'a Redis,
    shard: u16,
    items: Arc<[ChargeItem]>,
    call: Calling<Charges>,
}

impl Future for Together<'_> {
    type Output = Result<ChargeOutcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.call).poll(cx));
        self.redis.note(self.shard, &outcome);
        let counted = outcome?.first?;
        let admitted = u32::try_from(counted.admitted).unwrap_or(u32::MAX);
        Poll::Ready(Ok(ChargeOutcome { admitted, snapshots: counted.states(&self.items) }))
    }
}

impl Redis {
    pub(super) fn do_charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        if let Err(error) = call.validate() {
            return ChargeFuture::Boxed(Box::pin(ready(Err(error))));
        }
        if call.items.is_empty() {
            let charged = ChargeOutcome { admitted: call.repetitions, snapshots: QuotaSnapshots::new() };
            return ChargeFuture::Boxed(Box::pin(ready(Ok(charged))));
        }
        match call.merge_duplicates() {
            None => self.send_charge(call),
            Some((merged, places)) => {
                let charged = self.send_charge(merged);
                ChargeFuture::Boxed(Box::pin(charged.map_ok(move |charged| charged.expand_duplicates(&places))))
            }
        }
    }

    fn send_charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        let (items, asked) = (Arc::clone(&call.items), Asked::new(call));
        let shard = asked.shard();
        if let Err(error) = self.pass(shard, CHARGE.name) {
            return ChargeFuture::Boxed(Box::pin(ready(Err(error))));
        }
        let now = Instant::now();
        let call = self.charges_of(shard).begin(asked, now, now + self.deadline);
        ChargeFuture::Batched(Together { redis: self, shard, items, call })
    }

    pub(super) async fn do_settle_charge(&self, call: SettleChargeCommand) -> Result<Vec<QuotaSnapshot>, Error> {
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
        items.iter().for_each(|item| write_settled(item, &mut args));
        let reply = self.script(shard, &SETTLE_CHARGE, &keys, &arguments(&args)).await?;
        let odd = || Error::new(ErrorKind::Protocol, SETTLE_CHARGE.name);
        let Value::Array(words) = reply else { return Err(odd()) };
        let mut words = words.into_iter().peekable();
        let now_us = counted::number(SETTLE_CHARGE.name, words.next().as_ref())?;
        let (mut states, mut failed) = (Vec::with_capacity(items.len()), None);
        for settled in items {
            if let Some(Value::BulkString(text)) = words.peek() {
                failed = Some(refused(SETTLE_CHARGE.name, text));
                words.next();
                continue;
            }
            let item = looked_at(settled);
            let mut next = || counted::number(SETTLE_CHARGE.name, words.next().as_ref());
            let own: Vec<u64> = (0..shape(&item)).map(|_| next()).collect::<Result<_, _>>()?;
            states.push(item.evaluate(count(&item.rule, &own), now_us, 0));
        }
        failed.map_or(Ok(states), Err)
    }

    pub(super) async fn do_reset_charges(
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
            [CounterKeyKind::spent_units(*algorithm), CounterKeyKind::refusals(*algorithm)].map(|kind| {
                self.keys.counter_parts(&tag, shard, kind, (policy, subject)).concat()
            })
        });
        let names: Vec<_> = names.collect();
        self.script(shard, &RESET_CHARGES, &names, &[]).await.map(drop)
    }
}

fn looked_at(settled: ChargeAdjustment) -> ChargeItem {
    let ChargeAdjustment { policy, subject, rule, .. } = settled;
    ChargeItem { policy, subject, rule, cost: 0, penalty: None }
}

fn write_settled(settled: &ChargeAdjustment, out: &mut Cmd) {
    let (verb, units, window) = match settled.kind {
        AdjustmentKind::Refund { units, window } => ("refund", units, window),
        AdjustmentKind::Charge { units } => ("charge", units, ChargedWindow::default()),
    };
    texts(out, [verb]);
    number(out, window.boundary);
    number(out, window.debt_id);
    write_counter(&settled.rule, units, out);
}

/// The arguments as a script call takes them.
fn arguments(written: &Cmd) -> super::Args {
    let simple = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
        _ => None,
    };
    written.args_iter().filter_map(simple).collect()
}
