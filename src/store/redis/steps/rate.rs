//! Steps of quotas.

use super::{Args, number};
use crate::{
    clock::millis,
    error::Error,
    key::Key,
    store::{
        backend::{Charge, Charged, Counter, SettleCharge, State},
        rate::{Count, Rule},
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_charge(&self, call: Charge) -> Result<Charged, Error> {
        call.checked()?;
        if call.items.is_empty() {
            return Ok(Charged { admitted: call.times, states: Vec::new() });
        }
        if let Some((merged, places)) = call.merged() {
            return Ok(self.send_charge(merged).await?.spread(&places));
        }
        self.send_charge(call).await
    }

    async fn send_charge(&self, call: Charge) -> Result<Charged, Error> {
        let keys: Vec<_> =
            call.items.iter().map(|item| self.keys.counter(&item.policy, &item.subject)).collect();
        let mut args: Args = Vec::new();
        for item in &*call.items {
            let Rule::Fixed { limit, window } = item.rule else {
                return Err(Error::config("this store has fixed windows only, so far"));
            };
            let cost = if call.times == 0 { 0 } else { item.cost };
            args.extend([number(limit), number(millis(window)), number(cost)]);
        }
        let reply = self.script(call.tag.shard(), &script::CHARGE, &keys, &args).await?;
        let mut row = Row::of("charge", reply);
        let admitted = u32::try_from(row.number()?).unwrap_or(0).min(call.times);
        let state = |item: &crate::store::Item| {
            let (spent, left) = (row.number()?, row.number()?);
            Ok(item.state(Count::Fixed { spent, left }, 0, 0))
        };
        let states = call.items.iter().map(state).collect::<Result<_, Error>>()?;
        Ok(Charged { admitted, states })
    }

    pub(super) async fn do_settle_charge(&self, call: SettleCharge) -> Result<Vec<State>, Error> {
        call.checked()?;
        Err(Error::config("not there yet"))
    }

    pub(super) async fn do_reset_charges(
        &self,
        _tag: Key,
        _counters: Vec<Counter>,
    ) -> Result<(), Error> {
        Err(Error::config("not there yet"))
    }
}
