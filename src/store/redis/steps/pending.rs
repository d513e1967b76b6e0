//! Steps about requests that are deferred and wait: storing, cancelling, seeing to what comes due; and those
//! that run at once.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::number;
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{BeginDirectOutcome, DirectRunCommand, DueLocks, EnqueueCommand, EnqueueOutcome, JobId, JobState},
        redis::{Redis, combine::Answer, read::Row, script},
    },
};

impl Redis {
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    pub(super) async fn do_enqueue(&self, call: EnqueueCommand) -> Result<EnqueueOutcome, Error> {
        let name = script::ENQUEUE.name;
        let shard = call.key.shard();
        self.pass(shard, name)?;
        let until = Instant::now() + self.deadline;
        let stores = !call.envelope.is_empty();
        // Lanes and combiners are as many.
        let outcome = self.enqueues[self.lanes.of(shard)].call(call, until).await;
        self.note(shard, &outcome);
        let Answer { first, sent, .. } = outcome?;
        let stored = enqueued(first)?;
        let refused = matches!(
            stored,
            EnqueueOutcome::Full | EnqueueOutcome::NoWorker | EnqueueOutcome::FingerprintMismatch | EnqueueOutcome::TooManyRecords(_)
        );
        // An earlier copy may be delivered yet, and be stored if there is room then.
        if refused && stores && sent > 1 {
            return Err(Error::new(ErrorKind::Timeout, name));
        }
        Ok(stored)
    }

    pub(super) async fn do_cancel(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number(millis(retention)), number(began_us)];
        let keys = [self.keys.job(&id)];
        let reply = self.script(id.shard(), &script::CANCEL, &keys, &args).await?;
        Ok(JobState::parse(&Row::of("cancel", reply).text()?))
    }

    pub(super) async fn do_begin_direct(&self, call: DirectRunCommand) -> Result<BeginDirectOutcome, Error> {
        let holds = format!("h{}{}", call.mode.member_tag(), call.token.as_str()).into();
        let mut row = self.direct("begin", call, holds).await?;
        match row.text()?.as_str() {
            "" => Ok(BeginDirectOutcome::Started),
            "lost" => Ok(BeginDirectOutcome::LockLost),
            known if known.starts_with("keys ") => {
                let left = known.trim_start_matches("keys ").parse().map_err(|_| row.odd())?;
                Ok(BeginDirectOutcome::TooManyRecords(Duration::from_millis(left)))
            }
            known => JobId::parse(known).map(BeginDirectOutcome::RecordTaken).ok_or_else(|| row.odd()),
        }
    }

    /// False if nothing of it runs any more.
    pub(super) async fn do_direct(
        &self,
        verb: &'static str,
        call: DirectRunCommand,
        what: Bytes,
    ) -> Result<bool, Error> {
        let mut row = self.direct(verb, call, what).await?;
        Ok(!row.text()?.is_empty())
    }

    async fn direct(&self, verb: &str, call: DirectRunCommand, what: Bytes) -> Result<Row, Error> {
        let DirectRunCommand { key, record_name: record, id, owner, retention: life, lease, retry_after_crash: again, limits: caps, fingerprint: print, .. } = call;
        let keys = [
            self.keys.holders(&key),
            self.keys.job(&id),
            self.keys.response(&id),
            self.keys.idempotency_record(&key, &record),
        ];
        let args = [
            verb.into(),
            id.as_str().into(),
            number(millis(life)),
            owner.into_bytes(),
            what.into(),
            print.unwrap_or_else(|| "-".to_owned()).into_bytes(),
            number(millis(lease)),
            number(u64::from(again)),
            number(caps.ended_bytes),
            number(caps.owner_records),
        ];
        let reply = self.script(key.shard(), &script::DIRECT, &keys, &args).await?;
        Ok(Row::of(script::DIRECT.name, reply))
    }

    pub(super) async fn do_due(&self, shards: Vec<u16>, most: usize) -> Result<Vec<DueLocks>, Error> {
        let Some(&lane) = shards.first() else {
            return Ok(Vec::new());
        };
        if self.keys.is_clustered() {
            return self.due_apart(&shards, most).await;
        }
        let keys: Vec<_> = shards.iter().map(|&shard| self.keys.shard_key(shard, "due")).collect();
        let args = [number(most as u64), number(shards.len() as u64)];
        let reply = self.script(lane, &script::DUE, &keys, &args).await?;
        let mut rows = Row::of("due", reply);
        shards.iter().map(|_| due(rows.row()?)).collect()
    }
}

fn enqueued(reply: Value) -> Result<EnqueueOutcome, Error> {
    if let Value::Int(position) = reply {
        return Ok(EnqueueOutcome::Stored { position: u64::try_from(position).unwrap_or(0) });
    }
    let mut row = Row::of(script::ENQUEUE.name, reply);
    if let Some(error) = row.refusal() {
        return Err(error);
    }
    match row.text()?.as_str() {
        "stored" => Ok(EnqueueOutcome::Stored { position: row.number()? }),
        "known" => id(&mut row).map(EnqueueOutcome::Duplicate),
        "mismatch" => Ok(EnqueueOutcome::FingerprintMismatch),
        "full" => Ok(EnqueueOutcome::Full),
        "keys" => Ok(EnqueueOutcome::TooManyRecords(row.millis()?)),
        "unmanned" => Ok(EnqueueOutcome::NoWorker),
        "merged" => id(&mut row).map(EnqueueOutcome::Merged),
        _ => Err(row.odd()),
    }
}

pub(super) fn due(mut row: Row) -> Result<DueLocks, Error> {
    // -1: nothing to come.
    let next = row.text()?.parse().ok().map(Duration::from_micros);
    let mut names = Vec::new();
    while !row.is_empty() {
        let name = Key::from_store(&row.text()?);
        names.push((name, JobId::parse(&row.text()?)));
    }
    Ok(DueLocks { locks: names, next_due_in: next })
}

fn id(row: &mut Row) -> Result<JobId, Error> {
    JobId::parse(&row.text()?).ok_or_else(|| row.odd())
}
