//! Steps of quotas, of workers and of the store as a whole.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::number;
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    store::{
        backend::NodeId,
        key_names::COMMON,
        redis::{Redis, read::Row, rights, script},
    },
};

impl Redis {
    pub(super) async fn do_limiters(&self, node: NodeId, lease: Duration) -> Result<usize, Error> {
        self.live(self.keys.limiters(), node, lease, "").await
    }

    async fn live(
        &self,
        key: String,
        node: NodeId,
        lease: Duration,
        channel: &str,
    ) -> Result<usize, Error> {
        let lease = if lease.is_zero() { 0 } else { millis(lease) };
        let args = [node.as_str().into(), number(lease), channel.into()];
        let reply = self.script(COMMON, &script::PRESENT, &[key], &args).await?;
        Ok(usize::try_from(Row::of("present", reply).number()?).unwrap_or(usize::MAX))
    }

    pub(super) async fn do_ping(&self) -> Result<(), Error> {
        self.ping_one(COMMON).await?;
        if self.keys.is_clustered() {
            // Each node: one that refuses the password must be known before it is needed.
            let nodes = self.lanes.representatives();
            let answers = join_all(nodes.into_iter().map(|shard| self.ping_one(shard))).await;
            answers.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    async fn ping_one(&self, shard: u16) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        pipe.add_command(rights::question(&self.keys));
        self.read(shard, "ping", &pipe).await.map(drop).map_err(rights::told)
    }

    /// Every connection to the node that has `meta` reads the identity.
    pub(super) async fn do_identify(&self) -> Result<Arc<str>, Error> {
        if let Some(space) = self.lanes.incarnation().spaces().pop() {
            return Ok(space);
        }
        self.do_reaches(COMMON).await?;
        let space = self.lanes.incarnation().spaces().pop();
        space.ok_or_else(|| Error::new(ErrorKind::Unavailable, "identify"))
    }

    /// Who only answers pings counts nothing either.
    pub(super) async fn do_reaches(&self, shard: u16) -> Result<(), Error> {
        self.pass(shard, "reaches")?;
        self.touch(shard).await
    }
}
