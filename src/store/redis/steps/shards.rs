//! Steps of quotas, of workers and of the store as a whole.

use std::time::Duration;

use super::{Args, number};
use crate::{
    clock::millis,
    error::Error,
    key::{Key, SHARDS},
    store::{
        backend::{Charge, Charged, Due, Node},
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_charge(&self, items: Vec<Charge>) -> Result<Charged, Error> {
        let Some(shard) = items.first().map(|item| item.subject.shard()) else {
            return Ok(Charged { admitted: true, windows: Vec::new() });
        };
        let keys: Vec<_> =
            items.iter().map(|item| self.keys.counter(&item.policy, &item.subject)).collect();
        let args: Args = items
            .iter()
            .flat_map(|i| [number(i.limit), number(millis(i.window)), number(i.cost)])
            .collect();
        let mut row = Row::of("charge", self.script(shard, &script::CHARGE, &keys, &args).await?);
        let admitted = row.number()? == 1;
        let windows = items.iter().map(|_| Ok((row.number()?, row.millis()?)));
        Ok(Charged { admitted, windows: windows.collect::<Result<_, Error>>()? })
    }

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
                names.push(Key::from_store(&row.text()?));
            }
            out.push(Due { names, next });
        }
        Ok(out)
    }

    pub(super) async fn do_watch(
        &self,
        node: Node,
        lease: Duration,
        most: usize,
    ) -> Result<Vec<u16>, Error> {
        let keys: Vec<_> = (0..SHARDS).map(|shard| self.keys.shard(shard, "watch")).collect();
        let args = [
            node.as_str().into(),
            number(millis(lease)),
            number(most as u64),
            self.keys.channels().into(),
        ];
        let mut row = Row::of("watch", self.script(0, &script::WATCH, &keys, &args).await?);
        let mut mine = Vec::new();
        for shard in 0..SHARDS {
            if row.number()? == 1 {
                mine.push(shard);
            }
        }
        Ok(mine)
    }

    pub(super) async fn do_present(&self, node: Node, lease: Duration) -> Result<usize, Error> {
        let lease = if lease.is_zero() { 0 } else { millis(lease) };
        let args = [node.as_str().into(), number(lease), self.keys.channels().into()];
        let reply = self.script(0, &script::PRESENT, &[self.keys.workers()], &args).await?;
        Ok(usize::try_from(Row::of("present", reply).number()?).unwrap_or(usize::MAX))
    }

    pub(super) async fn do_ping(&self) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        self.read(0, "ping", &pipe).await.map(drop)
    }
}
