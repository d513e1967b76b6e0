//! `job.lua`, `list.lua`, `pending.lua`, `redrive.lua`, `purge.lua` and `tally.lua`.

use std::time::Duration;

use super::{
    ended::Ended,
    enqueue::PENDING,
    job::Job,
    line::Member,
    shard::{Now, Shard},
    visit::Visit,
};
use crate::{
    key::{Key, digest},
    store::backend::{
        JobId, JobState, JobView, JobListPage, EndedFilter, LockMode, JobHistory, PendingCursor, ActiveRun, ShardStats,
    },
};

impl Shard {
    pub(super) fn job(&self, id: &JobId, now: Now) -> Option<JobView> {
        let job = self.jobs.get(id, now.ms)?;
        let line = self.lines.get(&job.lock, now.ms);
        let position = line.and_then(|line| line.position(job.seq, id));
        let back = line.and_then(|line| line.back.of(id));
        let at = if position.is_some() { back } else { self.facts.late.get(id) };
        let waits = at.filter(|at| job.state == JobState::Queued && *at > now.ms);
        let view = job.view();
        Some(JobView {
            position,
            is_watched: self.facts.is_manned(now),
            response: job.response.clone(),
            history: JobHistory {
                due_in: waits.map(|at| Duration::from_millis(at - now.ms)),
                webhook_event: job.tells.clone(),
                ..view.history
            },
            ..view
        })
    }

    pub(super) fn running(&self, id: &JobId, now: Now) -> Option<ActiveRun> {
        let job = self.jobs.get(id, now.ms).filter(|job| job.state == JobState::Running)?;
        let holds = Member::holds(LockMode::Exclusive, job.run.as_ref()?);
        let until = self.lines.get(&job.lock, now.ms)?.deadline(&holds)?;
        (until > now.ms).then_some(ActiveRun { attempt: job.attempts, first_fence: job.fence })
    }

    fn index(&self, which: EndedFilter) -> &Ended {
        match which {
            EndedFilter::Dead => &self.facts.dead,
            EndedFilter::Done => &self.facts.done,
        }
    }

    pub(super) fn list(&self, which: EndedFilter, from: u64, most: usize, now: Now) -> JobListPage {
        let most = most.min(100);
        let mut marks = self.index(which).from(from, now.us);
        let mut jobs = Vec::new();
        for (_, id) in marks.by_ref().take(most) {
            if let Some(job) = self.jobs.get(id, now.ms) {
                let watched = self.facts.is_manned(now);
                jobs.push((id.clone(), JobView { is_watched: watched, ..job.view() }));
            }
        }
        JobListPage { jobs, next_mark: marks.next().map(|(mark, _)| mark) }
    }

    /// In the order of marks, whatever comes and goes meanwhile.
    pub(super) fn pending(&self, from: PendingCursor, most: usize, now: Now) -> JobListPage<PendingCursor> {
        let late = self.facts.late.iter().map(|(_, id)| (PendingCursor::late(id), id));
        let lines = self.facts.due.iter().flat_map(|(_, name)| {
            let jobs = self.lines.get(name, now.ms).into_iter().flat_map(|line| &line.jobs);
            jobs.map(|(seq, id)| (PendingCursor::in_line(name, *seq), id))
        });
        let mut all: Vec<_> = late.chain(lines).filter(|(mark, _)| *mark > from).collect();
        all.sort_unstable();
        let more = all.len() > most.clamp(1, 100);
        all.truncate(most.clamp(1, 100));
        let next = all.last().map(|(mark, _)| *mark).filter(|_| more);
        let view = |(_, id): (PendingCursor, &JobId)| {
            let job = self.job(id, now).filter(|job| job.state.is_pending())?;
            Some((id.clone(), JobView { history: JobHistory { webhook_event: None, ..job.history }, ..job }))
        };
        JobListPage { jobs: all.into_iter().filter_map(view).collect(), next_mark: next }
    }

    pub(super) fn purge(&mut self, id: &JobId, ended_us: u64, now: Now) -> bool {
        let ended = |job: &&Job| !job.state.is_pending() && !job.gone && job.ended_us == ended_us;
        let Some(job) = self.jobs.get(id, now.ms).filter(ended) else { return false };
        match job.state {
            JobState::Dead => self.facts.dead.take(id),
            _ => self.facts.done.take(id),
        }
        self.facts.entomb(&mut self.jobs, id, now);
        true
    }

    pub(super) fn tally(&self, now: Now) -> ShardStats {
        let facts = &self.facts;
        let (done, trimmed_done) = facts.done.count(now.us);
        let (dead, trimmed_dead) = facts.dead.count(now.us);
        ShardStats {
            pending: facts.jobs,
            bytes: facts.bytes,
            delayed: facts.late.iter().count() as u64,
            done,
            dead,
            trimmed_done,
            trimmed_dead,
            expired: facts.expired,
            cancelled: facts.cancelled,
        }
    }
}

impl PendingCursor {
    fn late(id: &JobId) -> Self {
        Self { after_hash: hash(id.as_str()), after_seq: 1, ..Self::default() }
    }

    fn in_line(name: &Key, seq: u64) -> Self {
        Self { in_queues: true, after_hash: hash(name.as_str()), after_seq: seq, ..Self::default() }
    }
}

fn hash(name: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest(&[name.as_bytes()]);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Runs of a job that are told of.
const RUNS: usize = 20;

impl Job {
    /// One more run, for the history.
    pub(super) fn has_run(&mut self, now_us: u64, outcome: &str) {
        if self.runs.len() == RUNS {
            self.runs.remove(0);
        }
        self.runs.push(format!("{} {} {now_us} {outcome}", self.attempts, self.began_us));
    }

    /// What ends it instead of a run: it was running, and its worker died, or its deadline has passed.
    pub(super) fn unfit(&self, now: u64) -> Option<(JobState, &'static str)> {
        if self.state == JobState::Running && (!self.again || self.attempts >= self.max_attempts) {
            return Some((JobState::Dead, "crashed, may have run"));
        }
        self.exp.is_some_and(|exp| exp <= now).then_some((JobState::Expired, "deadline"))
    }

    /// What it tells by itself.
    fn view(&self) -> JobView {
        JobView {
            state: self.state,
            attempts: self.attempts,
            position: None,
            reason: Some(self.reason.to_owned()).filter(|reason| !reason.is_empty()),
            owner: self.owner.clone(),
            is_watched: false,
            response: None,
            is_tombstone: self.gone,
            history: JobHistory {
                lock: Some(self.lock.clone()),
                bytes: self.bytes,
                accepted_us: self.accepted_us,
                started_us: self.began_us,
                ended_us: self.ended_us,
                crash_count: self.crashes,
                busy_count: self.busy,
                due_in: None,
                recent_runs: self.runs.clone(),
                superseded_by: self.by.clone(),
                webhook_event: None,
            },
        }
    }
}

impl Visit<'_> {
    pub(super) fn redrive(&mut self, id: &JobId, ended_us: u64) -> Option<JobState> {
        let job = self.jobs.get(id, self.now.ms)?;
        if job.state != JobState::Dead || job.gone || job.ended_us != ended_us {
            return Some(job.state);
        }
        let (bytes, owner) = (job.bytes, job.owner.clone());
        let seq = self.next_seq();
        self.facts.dead.take(id);
        if let Some(job) = self.jobs.get_mut(id, self.now.ms) {
            (job.state, job.seq, job.attempts) = (JobState::Queued, seq, 0);
            (job.run, job.exp, job.reason, job.ended_us) = (None, None, "", 0);
        }
        self.jobs.end_at(id, None);
        self.remember_until(id, self.now.after(PENDING));
        self.facts.count(&owner, bytes);
        self.stand(seq, id, bytes);
        self.tell_all(id);
        Some(JobState::Queued)
    }
}
