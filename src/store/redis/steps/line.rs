//! Steps of a lock and its line.

use super::{Args, number};
use crate::{
    clock::millis,
    error::Error,
    key::Key,
    store::{
        backend::{
            ACCEPT_WINDOW, Acquire, Acquired, GaveBack, JobId, Renewal, SPARE_FENCES, Token,
        },
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    /// The first three arguments of every script about a line, then its own.
    pub(super) fn line_args<const N: usize>(&self, key: &Key, own: [Vec<u8>; N]) -> Args {
        let first =
            [key.as_str().into(), self.keys.channels().into(), number(millis(ACCEPT_WINDOW))];
        first.into_iter().chain(own).collect()
    }

    pub(super) async fn line_script(
        &self,
        script: &'static script::Script,
        key: &Key,
        more: impl IntoIterator<Item = String>,
        args: Args,
    ) -> Result<Row, Error> {
        let mut keys = self.keys.line(key);
        keys.extend(more);
        let reply = self.script(key.shard(), script, &keys, &args).await?;
        Ok(Row::of(script.name, reply))
    }

    pub(super) async fn do_acquire(&self, call: Acquire) -> Result<Acquired, Error> {
        let Acquire { key, me, lease, wait, old_seq, record } = call;
        let looks = record.is_some();
        let record = self.keys.record(&key, record.as_deref().unwrap_or("-"));
        let own = [
            me.as_str().into(),
            number(millis(lease)),
            number(SPARE_FENCES),
            number(wait.map_or(0, millis)),
            number(old_seq),
            number(u64::from(looks)),
        ];
        let args = self.line_args(&key, own);
        let mut row = self.line_script(&script::ACQUIRE, &key, [record], args).await?;
        match row.text()?.as_str() {
            "held" => Ok(Acquired::Held { fence: row.number()?, line: row.number()? }),
            "busy" => Ok(Acquired::Busy {
                left: row.millis()?,
                line: row.number()?,
                seq: row.number()?,
                joined: row.number()? == 1,
            }),
            // Only to those who asked: the engines rely on it.
            "known" if looks => Ok(Acquired::Known),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_release(&self, key: Key, me: Token) -> Result<GaveBack, Error> {
        let args = self.line_args(&key, [me.as_str().into()]);
        let keys = self.keys.line(&key);
        let call = self.script_counted(key.shard(), &script::RELEASE, &keys, &args);
        let (reply, sent) = call.await?;
        let mut row = Row::of("release", reply);
        match row.text()?.as_str() {
            "none" if sent > 1 => Ok(GaveBack::NothingOnRetry),
            "released" => Ok(GaveBack::Released),
            "left" => Ok(GaveBack::Left),
            "lost" => Ok(GaveBack::Lost),
            "none" => Ok(GaveBack::Nothing),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_renew(&self, items: Vec<Renewal>) -> Result<Vec<bool>, Error> {
        let Some(shard) = items.first().map(|item| item.key.shard()) else {
            return Ok(Vec::new());
        };
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for Renewal { key, me, lease, job } in &items {
            keys.push(self.keys.holders(key));
            keys.push(self.keys.shard(key.shard(), "lease"));
            keys.push(self.keys.shard(key.shard(), "due"));
            // A key that is not touched: it only has to carry the shard.
            keys.push(job.as_ref().map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)));
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number(millis(*lease));
            args.extend([me.as_str().into(), lease, key.as_str().into(), job.into(), Vec::new()]);
        }
        let reply = self.script(shard, &script::RENEW, &keys, &args).await?;
        let mut row = Row::of("renew", reply);
        items.iter().map(|_| Ok(row.number()? == 1)).collect()
    }
}
