//! Each typed step as its script call: arguments in, typed reply out.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::task::JoinHandle;

use super::{
    Redis,
    listen::{self, Listener},
    read::Row,
    script,
};
use crate::{
    clock::millis,
    error::Error,
    key::{Key, SHARDS},
    store::{
        backend::{
            ACCEPT_WINDOW, Acquire, Acquired, Backend, Charge, Charged, Claim, Claimed, Due,
            Enqueue, Enqueued, GaveBack, JobId, JobState, JobView, Node, Renewal, SPARE_FENCES,
            Settle, Step, Token, Verdict,
        },
        hints::Hints,
    },
};

type Args = Vec<Vec<u8>>;

impl Redis {
    /// The first three arguments of every script about a line, then its own.
    fn line_args<const N: usize>(&self, key: &Key, own: [Vec<u8>; N]) -> Args {
        let first = [
            key.as_str().into(),
            self.keys.channels().into(),
            number(millis(ACCEPT_WINDOW)),
        ];
        first.into_iter().chain(own).collect()
    }

    async fn line_script(
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

    async fn do_acquire(&self, call: Acquire) -> Result<Acquired, Error> {
        let Acquire {
            key,
            me,
            lease,
            wait,
            old_seq,
            record,
        } = call;
        let looks = number(u64::from(record.is_some()));
        let record = self.keys.record(&key, record.as_deref().unwrap_or("-"));
        let own = [
            me.as_str().into(),
            number(millis(lease)),
            number(SPARE_FENCES),
            number(wait.map_or(0, millis)),
            number(old_seq),
            looks,
        ];
        let args = self.line_args(&key, own);
        let mut row = self
            .line_script(&script::ACQUIRE, &key, [record], args)
            .await?;
        match row.text()?.as_str() {
            "held" => Ok(Acquired::Held {
                fence: row.number()?,
                line: row.number()?,
            }),
            "busy" => Ok(Acquired::Busy {
                left: row.millis()?,
                line: row.number()?,
                seq: row.number()?,
                joined: row.number()? == 1,
            }),
            "known" => Ok(Acquired::Known),
            _ => Err(row.odd()),
        }
    }

    async fn do_release(&self, key: Key, me: Token) -> Result<GaveBack, Error> {
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

    async fn do_renew(&self, items: Vec<Renewal>) -> Result<Vec<bool>, Error> {
        let Some(shard) = items.first().map(|item| item.key.shard()) else {
            return Ok(Vec::new());
        };
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for Renewal {
            key,
            me,
            lease,
            job,
        } in &items
        {
            keys.push(self.keys.holders(key));
            keys.push(self.keys.shard(key.shard(), "lease"));
            keys.push(self.keys.shard(key.shard(), "due"));
            // A key that is not touched: it only has to carry the shard.
            keys.push(
                job.as_ref()
                    .map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)),
            );
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number(millis(*lease));
            args.extend([
                me.as_str().into(),
                lease,
                key.as_str().into(),
                job.into(),
                Vec::new(),
            ]);
        }
        let reply = self.script(shard, &script::RENEW, &keys, &args).await?;
        let mut row = Row::of("renew", reply);
        items.iter().map(|_| Ok(row.number()? == 1)).collect()
    }

    async fn do_charge(&self, items: Vec<Charge>) -> Result<Charged, Error> {
        let Some(shard) = items.first().map(|item| item.subject.shard()) else {
            return Ok(Charged {
                admitted: true,
                windows: Vec::new(),
            });
        };
        let keys: Vec<_> = items
            .iter()
            .map(|item| self.keys.counter(&item.policy, &item.subject))
            .collect();
        let args: Args = items
            .iter()
            .flat_map(|i| [number(i.limit), number(millis(i.window)), number(i.cost)])
            .collect();
        let mut row = Row::of(
            "charge",
            self.script(shard, &script::CHARGE, &keys, &args).await?,
        );
        let admitted = row.number()? == 1;
        let windows = items.iter().map(|_| Ok((row.number()?, row.millis()?)));
        Ok(Charged {
            admitted,
            windows: windows.collect::<Result<_, Error>>()?,
        })
    }

    async fn do_enqueue(&self, call: Enqueue) -> Result<Enqueued, Error> {
        let Enqueue {
            key,
            id,
            envelope,
            again,
            max_attempts,
            record,
            caps,
            owner,
        } = call;
        let (record, print, life) =
            record.unwrap_or_else(|| ("-".into(), String::new(), Duration::ZERO));
        let more = [
            self.keys.job(&id),
            self.keys.request(&id),
            self.keys.record(&key, &record),
        ];
        let own = [
            id.as_str().into(),
            envelope.into(),
            number(u64::from(again)),
            number(max_attempts.into()),
            print.into_bytes(),
            number(millis(life)),
            number(caps.resource_jobs),
            number(caps.resource_bytes),
            number(caps.shard_jobs),
            number(caps.shard_bytes),
            owner.into_bytes(),
        ];
        let args = self.line_args(&key, own);
        let mut row = self.line_script(&script::ENQUEUE, &key, more, args).await?;
        match row.text()?.as_str() {
            "stored" => Ok(Enqueued::Stored {
                position: row.number()?,
            }),
            "known" => JobId::parse(&row.text()?)
                .map(Enqueued::Known)
                .ok_or_else(|| row.odd()),
            "mismatch" => Ok(Enqueued::Mismatch),
            "full" => Ok(Enqueued::Full),
            _ => Err(row.odd()),
        }
    }

    async fn do_claim(&self, call: Claim) -> Result<Claimed, Error> {
        let Claim {
            key,
            id,
            me,
            lease,
            retention,
        } = call;
        let shard = key.shard();
        let more = [
            self.keys.job(&id),
            self.keys.request(&id),
            self.keys.shard(shard, "lease"),
            self.keys.shard(shard, "dead"),
        ];
        let own = [
            id.as_str().into(),
            me.as_str().into(),
            number(millis(lease)),
            number(SPARE_FENCES),
            number(millis(retention)),
        ];
        let args = self.line_args(&key, own);
        let mut row = self.line_script(&script::CLAIM, &key, more, args).await?;
        let word = row.text()?;
        let id = |row: &mut Row| JobId::parse(&row.text()?).ok_or_else(|| row.odd());
        match word.as_str() {
            "claimed" => Ok(Claimed::Claimed {
                fence: row.number()?,
                attempt: u32::try_from(row.number()?).unwrap_or(u32::MAX),
                envelope: row.bytes()?,
                accepted_us: row.number()?,
            }),
            "busy" => Ok(Claimed::Busy(row.millis()?)),
            "later" => Ok(Claimed::Later(row.millis()?)),
            "moved" => Ok(Claimed::Moved(id(&mut row)?)),
            "empty" => Ok(Claimed::Empty),
            "dead" => Ok(Claimed::Dead(id(&mut row)?)),
            _ => Err(row.odd()),
        }
    }

    async fn do_settle(&self, call: Settle) -> Result<bool, Error> {
        let Settle {
            key,
            id,
            me,
            verdict,
        } = call;
        let none = bytes::Bytes::new();
        let (verb, time, reason, response) = match verdict {
            Verdict::Done {
                response,
                retention,
            } => ("done", retention, "", response),
            Verdict::Dead { reason, retention } => ("dead", retention, reason, none),
            Verdict::Retry { delay, reason } => ("retry", delay, reason, none),
            Verdict::Back { delay, reason } => ("back", delay, reason, none),
        };
        let index = if verb == "dead" { "dead" } else { "done" };
        let more = [
            self.keys.job(&id),
            self.keys.request(&id),
            self.keys.shard(key.shard(), "lease"),
            self.keys.shard(key.shard(), index),
            self.keys.response(&id),
        ];
        let own = [
            id.as_str().into(),
            me.as_str().into(),
            verb.into(),
            number(millis(time)),
            reason.into(),
            response.into(),
        ];
        let args = self.line_args(&key, own);
        let mut row = self.line_script(&script::SETTLE, &key, more, args).await?;
        match row.text()?.as_str() {
            "ok" => Ok(true),
            "lost" => Ok(false),
            _ => Err(row.odd()),
        }
    }

    async fn do_cancel(&self, id: JobId, retention: Duration) -> Result<Option<JobState>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGET").arg(self.keys.job(&id)).arg("lock");
        let facts = self.read(id.shard(), "cancel", &pipe).await?;
        let mut row = Row::of("cancel", Value::Array(facts));
        let Ok(name) = row.text() else {
            return Ok(None);
        };
        let key = Key::from_store(&name);
        let index = self.keys.shard(id.shard(), "done");
        let more = [self.keys.job(&id), self.keys.request(&id), index];
        let args = self.line_args(&key, [id.as_str().into(), number(millis(retention))]);
        let mut row = self.line_script(&script::CANCEL, &key, more, args).await?;
        Ok(JobState::parse(&row.text()?))
    }

    async fn do_job(&self, id: JobId) -> Result<Option<JobView>, Error> {
        let mut pipe = redis::pipe();
        let fields = ["state", "attempts", "reason", "owner", "lock"];
        pipe.cmd("HMGET").arg(self.keys.job(&id)).arg(&fields);
        pipe.cmd("GET").arg(self.keys.response(&id));
        pipe.cmd("EXISTS").arg(self.keys.shard(id.shard(), "watch"));
        let mut row = Row::of(
            "job",
            Value::Array(self.read(id.shard(), "job", &pipe).await?),
        );
        let mut facts = row.row()?;
        let mut fact = || facts.text().unwrap_or_default();
        let (state, attempts, reason, owner, lock) = (fact(), fact(), fact(), fact(), fact());
        let Some(state) = JobState::parse(&state) else {
            return Ok(None);
        };
        let response = row.bytes().ok();
        let watched = row.number()? == 1;
        let position = if state.is_pending() {
            let mut pipe = redis::pipe();
            pipe.cmd("ZRANK")
                .arg(self.keys.jobs(&Key::from_store(&lock)))
                .arg(id.as_str());
            let rank = self.read(id.shard(), "job", &pipe).await?;
            Row::of("job", Value::Array(rank))
                .number()
                .ok()
                .map(|rank| rank + 1)
        } else {
            None
        };
        let attempts = attempts.parse().unwrap_or(0);
        let reason = Some(reason).filter(|r| !r.is_empty());
        Ok(Some(JobView {
            state,
            attempts,
            position,
            reason,
            owner,
            watched,
            response,
        }))
    }

    async fn do_heads(&self, keys: Vec<Key>) -> Result<Vec<Option<JobId>>, Error> {
        let Some(shard) = keys.first().map(Key::shard) else {
            return Ok(Vec::new());
        };
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("ZRANGE").arg(self.keys.jobs(key)).arg(0).arg(0);
        }
        let mut row = Row::of(
            "heads",
            Value::Array(self.read(shard, "heads", &pipe).await?),
        );
        keys.iter()
            .map(|_| Ok(row.row()?.text().ok().and_then(|id| JobId::parse(&id))))
            .collect()
    }

    async fn do_due(&self, shards: Vec<u16>, most: usize) -> Result<Vec<Due>, Error> {
        let Some(&lane) = shards.first() else {
            return Ok(Vec::new());
        };
        let keys: Vec<_> = shards
            .iter()
            .map(|&shard| self.keys.shard(shard, "due"))
            .collect();
        let reply = self
            .script(lane, &script::DUE, &keys, &[number(most as u64)])
            .await?;
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

    async fn do_watch(&self, node: Node, lease: Duration, most: usize) -> Result<Vec<u16>, Error> {
        let keys: Vec<_> = (0..SHARDS)
            .map(|shard| self.keys.shard(shard, "watch"))
            .collect();
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

    async fn do_present(&self, node: Node, lease: Duration) -> Result<usize, Error> {
        let lease = if lease.is_zero() { 0 } else { millis(lease) };
        let args = [
            node.as_str().into(),
            number(lease),
            self.keys.channels().into(),
        ];
        let reply = self
            .script(0, &script::PRESENT, &[self.keys.workers()], &args)
            .await?;
        Ok(usize::try_from(Row::of("present", reply).number()?).unwrap_or(usize::MAX))
    }

    async fn do_ping(&self) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        self.read(0, "ping", &pipe).await.map(drop)
    }
}

impl Backend for Redis {
    fn acquire(&self, call: Acquire) -> Step<'_, Acquired> {
        Box::pin(self.do_acquire(call))
    }

    fn release(&self, key: Key, me: Token) -> Step<'_, GaveBack> {
        Box::pin(self.do_release(key, me))
    }

    fn renew(&self, items: Vec<Renewal>) -> Step<'_, Vec<bool>> {
        Box::pin(self.do_renew(items))
    }

    fn charge(&self, items: Vec<Charge>) -> Step<'_, Charged> {
        Box::pin(self.do_charge(items))
    }

    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        Box::pin(self.do_enqueue(call))
    }

    fn claim(&self, call: Claim) -> Step<'_, Claimed> {
        Box::pin(self.do_claim(call))
    }

    fn settle(&self, call: Settle) -> Step<'_, bool> {
        Box::pin(self.do_settle(call))
    }

    fn cancel(&self, id: JobId, retention: Duration) -> Step<'_, Option<JobState>> {
        Box::pin(self.do_cancel(id, retention))
    }

    fn job(&self, id: JobId) -> Step<'_, Option<JobView>> {
        Box::pin(self.do_job(id))
    }

    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        Box::pin(self.do_heads(keys))
    }

    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>> {
        Box::pin(self.do_due(shards, most))
    }

    fn watch(&self, node: Node, lease: Duration, most: usize) -> Step<'_, Vec<u16>> {
        Box::pin(self.do_watch(node, lease, most))
    }

    fn present(&self, node: Node, lease: Duration) -> Step<'_, usize> {
        Box::pin(self.do_present(node, lease))
    }

    fn ping(&self) -> Step<'_, ()> {
        Box::pin(self.do_ping())
    }

    fn listen(&self, node: Node, hints: &Arc<Hints>) -> Option<JoinHandle<()>> {
        let listener = Listener {
            client: self.client.clone(),
            wake: self.keys.wake(&node),
            events: self.keys.events(),
            connect_within: self.deadline * 4,
        };
        Some(listen::spawn(listener, hints))
    }
}

fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}
