//! Operations on counters after their charges: refunds, later charges, and resets.

use redis::{Cmd, Value};

use super::ScriptArgs;
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{CounterName, QuotaSnapshot, SettleChargeCommand},
        key_names::CounterKeyKind,
        rate::{AdjustmentKind, ChargeAdjustment, ChargeItem, ChargedWindow, check_item_count},
        redis::{
            RedisBackend,
            charge_transport::write_counter,
            command_arg_writers::{write_number, write_texts},
            raw_charge_reply::{self, decode_count, item_error, value_count},
            script_sources::{RESET_CHARGES, SETTLE_CHARGE},
        },
    },
};

impl RedisBackend {
    pub(super) async fn adjust_counters(
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
        items.iter().for_each(|item| write_adjustment(item, &mut args));
        let reply =
            self.call_script(shard, &SETTLE_CHARGE, &keys, &into_script_args(&args)).await?;
        let protocol_error = || Error::new(ErrorKind::Protocol, SETTLE_CHARGE.name);
        let Value::Array(values) = reply else { return Err(protocol_error()) };
        let mut values = values.into_iter().peekable();
        let now_us = raw_charge_reply::decode_number(SETTLE_CHARGE.name, values.next().as_ref())?;
        let (mut snapshots, mut last_error) = (Vec::with_capacity(items.len()), None);
        for adjustment in items {
            if let Some(Value::BulkString(text)) = values.peek() {
                last_error = Some(item_error(SETTLE_CHARGE.name, text));
                values.next();
                continue;
            }
            let item = zero_cost_item(adjustment);
            let mut next =
                || raw_charge_reply::decode_number(SETTLE_CHARGE.name, values.next().as_ref());
            let counter_values: Vec<u64> =
                (0..value_count(&item)).map(|_| next()).collect::<Result<_, _>>()?;
            snapshots.push(item.evaluate(decode_count(&item.rule, &counter_values), now_us, 0));
        }
        last_error.map_or(Ok(snapshots), Err)
    }

    pub(super) async fn delete_counters(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
    ) -> Result<(), Error> {
        check_item_count(counters.len())?;
        if counters.is_empty() {
            return Ok(());
        }
        let shard = tag.shard();
        let keys = counters.iter().flat_map(|CounterName { policy, subject, algorithm }| {
            [CounterKeyKind::spent_units(*algorithm), CounterKeyKind::refusals(*algorithm)]
                .map(|kind| self.keys.counter_parts(&tag, shard, kind, (policy, subject)).concat())
        });
        let keys: Vec<_> = keys.collect();
        self.call_script(shard, &RESET_CHARGES, &keys, &[]).await.map(drop)
    }
}

fn zero_cost_item(adjustment: ChargeAdjustment) -> ChargeItem {
    let ChargeAdjustment { policy, subject, rule, .. } = adjustment;
    ChargeItem { policy, subject, rule, cost: 0, penalty: None }
}

fn write_adjustment(adjustment: &ChargeAdjustment, out: &mut Cmd) {
    let (verb, units, window) = match adjustment.kind {
        AdjustmentKind::Refund { units, window } => ("refund", units, window),
        AdjustmentKind::Charge { units } => ("charge", units, ChargedWindow::default()),
    };
    write_texts(out, [verb]);
    write_number(out, window.boundary);
    write_number(out, window.debt_id);
    write_counter(&adjustment.rule, units, out);
}

/// Converts encoded arguments to those of a script call.
fn into_script_args(encoded: &Cmd) -> ScriptArgs {
    let simple = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
        _ => None,
    };
    encoded.args_iter().filter_map(simple).collect()
}
