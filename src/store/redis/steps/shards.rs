//! Steps of quotas, of workers and of the store as a whole.

use std::time::Duration;

use super::number;
use crate::{
    clock::millis,
    error::Error,
    key::{Key, SHARDS},
    store::{
        backend::{Due, Node},
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_due(&self, shards: Vec<u16>, most: usize) -> Result<Vec<Due>, Error> {
        let Some(&lane) = shards.first() else {
            return Ok(Vec::new());
        };
        let keys: Vec<_> = shards.iter().map(|&shard| self.keys.shard(shard, "due")).collect();
        let reply = self.script(lane, &script::DUE, &keys, &[number(most as u64)]).await?;
        let mut rows = Row::of("due", reply);
        let mut out = Vec::with_capacity(shards.len());
        for _ in &shards {
            let mut row = rows.row()?;
            // -1: nothing to come.
            let next = row.text()?.parse().ok().map(Duration::from_millis);
            let mut names = Vec::new();
            while !row.is_empty() {
                names.push((Key::from_store(&row.text()?), None));
            }
            out.push(Due { names, next });
        }
        Ok(out)
    }

    pub(super) async fn do_limiters(&self, node: Node, lease: Duration) -> Result<usize, Error> {
        self.live(self.keys.limiters(), node, lease, "").await
    }

    async fn live(
        &self,
        key: String,
        node: Node,
        lease: Duration,
        channel: &str,
    ) -> Result<usize, Error> {
        let lease = if lease.is_zero() { 0 } else { millis(lease) };
        let args = [node.as_str().into(), number(lease), channel.into()];
        let reply = self.script(0, &script::PRESENT, &[key], &args).await?;
        Ok(usize::try_from(Row::of("present", reply).number()?).unwrap_or(usize::MAX))
    }

    pub(super) async fn do_ping(&self) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        self.read(0, "ping", &pipe).await.map(drop)
    }
}
