//! Registration of this process as a limiter. The count of limiters is the number of processes that
//! share the quotas during an outage.

use std::time::Duration;

use super::number_arg;
use crate::{
    durations::ceil_millis,
    error::Error,
    store::{
        backend::NodeId,
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    pub(super) async fn register_limiter_node(
        &self,
        node: NodeId,
        lease: Duration,
    ) -> Result<usize, Error> {
        let lease_ms = if lease.is_zero() { 0 } else { ceil_millis(lease) };
        let (keys, args) = ([self.keys.limiters()], [node.as_str().into(), number_arg(lease_ms)]);
        let reply = self
            .call_script(COMMON_SHARD, &script_sources::REGISTER_LIMITER_AND_COUNT, &keys, &args)
            .await?;
        Ok(usize::try_from(ReplyReader::new("register_limiter_and_count", reply).read_number()?)
            .unwrap_or(usize::MAX))
    }
}
