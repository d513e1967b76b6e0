//! Blocks of counters by an operator.

use std::time::Duration;

use super::number_arg;
use crate::{
    durations::ceil_millis,
    error::Error,
    key::Key,
    store::{
        backend::CounterName,
        key_names::CounterKeyKind,
        rate::check_item_count,
        redis::{RedisBackend, script_sources::BLOCK_COUNTERS},
    },
};

impl RedisBackend {
    pub(super) async fn set_counter_blocks(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
        block: Duration,
    ) -> Result<(), Error> {
        check_item_count(counters.len())?;
        let shard = tag.shard();
        let keys = counters.iter().map(|CounterName { policy, subject, algorithm }| {
            let kind = CounterKeyKind::refusals(*algorithm);
            self.keys.counter_parts(&tag, shard, kind, (policy, subject)).concat()
        });
        let keys: Vec<_> = keys.collect();
        let args = [number_arg(if block.is_zero() { 0 } else { ceil_millis(block) })];
        self.call_script(shard, &BLOCK_COUNTERS, &keys, &args).await.map(drop)
    }
}
