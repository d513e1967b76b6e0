//! Operations on the store as a whole, and the registration of limiters.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::number_arg;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
    store::{
        backend::NodeId,
        key_names::COMMON_SHARD,
        redis::{RedisBackend, acl, reply_reader::ReplyReader, scripts},
    },
};

impl RedisBackend {
    pub(super) async fn do_register_limiter(
        &self,
        node: NodeId,
        lease: Duration,
    ) -> Result<usize, Error> {
        let lease = if lease.is_zero() { 0 } else { ceil_millis(lease) };
        let (keys, args) = ([self.keys.limiters()], [node.as_str().into(), number_arg(lease)]);
        let reply = self.call_script(COMMON_SHARD, &scripts::REGISTER_MEMBER, &keys, &args).await?;
        Ok(usize::try_from(ReplyReader::new("register_member", reply).read_number()?)
            .unwrap_or(usize::MAX))
    }

    pub(super) async fn do_ping(&self) -> Result<(), Error> {
        self.ping_node(COMMON_SHARD).await?;
        if self.keys.is_clustered() {
            // Every cluster node: one that refuses the password must be noticed before it is
            // needed.
            let nodes = self.lanes.representative_shards();
            let answers = join_all(nodes.into_iter().map(|shard| self.ping_node(shard))).await;
            answers.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    async fn ping_node(&self, shard: u16) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        pipe.add_command(acl::check_command(&self.keys));
        self.run_read_pipeline(shard, "ping", &pipe).await.map(drop).map_err(acl::explain_denial)
    }

    /// Returns the store identity. Any new connection to the server of the common shard reads it.
    pub(super) async fn do_current_identity(&self) -> Result<Arc<str>, Error> {
        if let Some(space) = self.lanes.server_tracker().identities().pop() {
            return Ok(space);
        }
        self.do_ping_shard(COMMON_SHARD).await?;
        let space = self.lanes.server_tracker().identities().pop();
        space.ok_or_else(|| Error::new(ErrorKind::Unavailable, "identify"))
    }

    /// Probes with a write: a server that only answers pings does not count as available.
    pub(super) async fn do_ping_shard(&self, shard: u16) -> Result<(), Error> {
        self.check_breaker(shard, "reaches")?;
        self.probe_write(shard).await
    }
}
