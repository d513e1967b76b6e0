//! Pings and write probes of the servers, the store identity and the server time.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::Value;

use crate::{
    error::{Error, ErrorKind},
    store::{
        key_names::COMMON_SHARD,
        redis::{RedisBackend, acl_check, reply_reader::ReplyReader},
    },
};

impl RedisBackend {
    pub(super) async fn ping_servers(&self) -> Result<(), Error> {
        self.ping_node(COMMON_SHARD).await?;
        if self.keys.is_clustered() {
            // Every cluster node: one that refuses the password must be noticed before it is
            // needed.
            let nodes = self.lanes.representative_shards();
            let pings = join_all(nodes.into_iter().map(|shard| self.ping_node(shard))).await;
            pings.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    async fn ping_node(&self, shard: u16) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        pipe.add_command(acl_check::check_command(&self.keys));
        self.run_read_pipeline(shard, "ping", &pipe)
            .await
            .map(drop)
            .map_err(acl_check::explain_denial)
    }

    /// Returns the store identity. Any new connection to the server of the common shard reads it.
    pub(super) async fn read_store_identity(&self) -> Result<Arc<str>, Error> {
        if let Some(identity) = self.lanes.server_tracker().identities().pop() {
            return Ok(identity);
        }
        self.probe_shard_write(COMMON_SHARD).await?;
        let identity = self.lanes.server_tracker().identities().pop();
        identity.ok_or_else(|| Error::new(ErrorKind::Unavailable, "identify"))
    }

    /// Probes with a write: a server that only answers pings does not count as available.
    pub(super) async fn probe_shard_write(&self, shard: u16) -> Result<(), Error> {
        self.check_breaker(shard, "reaches")?;
        self.probe_write(shard).await
    }

    pub(super) async fn read_server_time_us(&self) -> Result<u64, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let mut reader = ReplyReader::new(
            "clock",
            Value::Array(self.run_read_pipeline(0, "clock", &pipe).await?),
        );
        let mut time = reader.read_list()?;
        Ok(time.read_number()?.saturating_mul(1_000_000).saturating_add(time.read_number()?))
    }
}
