//! Steps of a lock and its line.

use std::time::Duration;

use super::{Args, number};
use crate::{
    clock::millis,
    error::Error,
    key::Key,
    store::{
        backend::{ACCEPT_WINDOW, Acquire, Acquired, GaveBack, JobId, Mode, Renewal, Token},
        keys::Keys,
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
        let looks = call.record.is_some();
        let (mut rows, _) =
            self.calls(call.key.shard(), [Call::acquire(&self.keys, &call)]).await?;
        acquired(&mut next(&mut rows)?, looks)
    }

    pub(super) async fn do_release(
        &self,
        key: Key,
        me: Token,
        mode: Mode,
    ) -> Result<GaveBack, Error> {
        let call = Call::release(&self.keys, &key, &me, mode);
        let (mut rows, sent) = self.calls(key.shard(), [call]).await?;
        gave_back(&mut next(&mut rows)?, sent)
    }

    pub(super) async fn do_pass(
        &self,
        me: Token,
        mode: Mode,
        next_call: Acquire,
    ) -> Result<(GaveBack, Acquired), Error> {
        let key = &next_call.key;
        let calls =
            [Call::release(&self.keys, key, &me, mode), Call::acquire(&self.keys, &next_call)];
        let (mut rows, sent) = self.calls(key.shard(), calls).await?;
        let gave_back = gave_back(&mut next(&mut rows)?, sent)?;
        Ok((gave_back, acquired(&mut next(&mut rows)?, next_call.record.is_some())?))
    }

    pub(super) async fn do_downgrade(
        &self,
        key: Key,
        me: Token,
        lease: Duration,
    ) -> Result<bool, Error> {
        let call = Call::downgrade(&self.keys, &key, &me, lease);
        let (mut rows, _) = self.calls(key.shard(), [call]).await?;
        let mut row = next(&mut rows)?;
        match row.text()?.as_str() {
            "ok" => Ok(true),
            "lost" => Ok(false),
            _ => Err(row.odd()),
        }
    }

    /// Sends calls together; their rows, and how often they were sent.
    async fn calls<const N: usize>(
        &self,
        shard: u16,
        calls: [Call; N],
    ) -> Result<(Row, u32), Error> {
        let mut keys = Vec::new();
        let mut args = vec![Vec::new(), self.keys.channels().into(), number(millis(ACCEPT_WINDOW))];
        for call in calls {
            keys.extend(call.keys);
            args.extend(call.args);
        }
        let (reply, sent) = self.script_counted(shard, &script::CALLS, &keys, &args).await?;
        Ok((Row::of(script::CALLS.name, reply), sent))
    }

    pub(super) async fn do_renew(&self, items: Vec<Renewal>) -> Result<Vec<bool>, Error> {
        let Some(shard) = items.first().map(|item| item.key.shard()) else {
            return Ok(Vec::new());
        };
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for Renewal { key, me, mode, lease, job } in &items {
            keys.push(self.keys.holders(key));
            keys.push(self.keys.shard(key.shard(), "lease"));
            keys.push(self.keys.shard(key.shard(), "due"));
            // A key that is not touched: it only has to carry the shard.
            keys.push(job.as_ref().map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)));
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number(millis(*lease));
            let tag = mode.tag().into();
            args.extend([me.as_str().into(), lease, key.as_str().into(), job.into(), tag]);
        }
        let reply = self.script(shard, &script::RENEW, &keys, &args).await?;
        let mut row = Row::of("renew", reply);
        items.iter().map(|_| Ok(row.number()? == 1)).collect()
    }
}

/// One call of `calls.lua`.
struct Call {
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Call {
    fn acquire(keys: &Keys, call: &Acquire) -> Self {
        let Acquire { key, me, mode, lease, spare, wait, old_seq, record } = call;
        let mut line = keys.line(key);
        line.extend(record.as_deref().map(|record| keys.record(key, record)));
        let args = vec![
            if record.is_some() { "known" } else { "acquire" }.into(),
            key.as_str().into(),
            me.as_str().into(),
            mode.letter().into(),
            number(mode.limit()),
            number(millis(*lease)),
            number(*spare),
            number(wait.map_or(0, millis)),
            number(*old_seq),
        ];
        Self { keys: line, args }
    }

    fn release(keys: &Keys, key: &Key, me: &Token, mode: Mode) -> Self {
        let args = ["release", key.as_str(), me.as_str(), mode.letter()];
        Self { keys: keys.line(key), args: args.map(Into::into).into() }
    }

    fn downgrade(keys: &Keys, key: &Key, me: &Token, lease: Duration) -> Self {
        let args = ["downgrade", key.as_str(), me.as_str(), "x"];
        let mut args: Vec<Vec<u8>> = args.map(Into::into).into();
        args.push(number(millis(lease)));
        Self { keys: keys.line(key), args }
    }
}

/// The reply to the next call; an error if its step failed, which the others did not notice.
fn next(rows: &mut Row) -> Result<Row, Error> {
    let row = rows.row()?;
    match row.refusal() {
        Some(error) => Err(error),
        None => Ok(row),
    }
}

fn acquired(row: &mut Row, looks: bool) -> Result<Acquired, Error> {
    match row.text()?.as_str() {
        "held" => Ok(Acquired::Held {
            fence: row.number()?,
            line: row.number()?,
            next: row.number()?,
            now: row.number()?,
        }),
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

fn gave_back(row: &mut Row, sent: u32) -> Result<GaveBack, Error> {
    match row.text()?.as_str() {
        "none" if sent > 1 => Ok(GaveBack::NothingOnRetry),
        "released" => Ok(GaveBack::Released),
        "left" => Ok(GaveBack::Left),
        "lost" => Ok(GaveBack::Lost),
        "none" => Ok(GaveBack::Nothing),
        _ => Err(row.odd()),
    }
}
