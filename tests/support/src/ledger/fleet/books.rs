//! What has become of the requests, and whether it adds up.

use std::{collections::BTreeMap, fs, sync::atomic::Ordering, time::Duration};

use lockgate_history::{
    Check, Violation,
    deferred::{History, Run, Seen},
};

use super::{Fleet, Ground, Verdict, status::look};
use crate::{http::request, ledger::left};

/// How long it may take until everything has ended: a watch of ten seconds over the shards of the dead,
/// a few leases, backoffs, and a machine that has other things to do.
const ALL: Duration = Duration::from_secs(90);

impl<G: Ground> Fleet<G> {
    /// What the status resource says now. It is written down.
    pub async fn see(&self, node: usize, id: &str) -> Seen {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let seen = look(self.addr(node), id).await.unwrap_or_default();
        self.history.lock().seen.entry(id.to_owned()).or_default().push(seen.clone());
        seen
    }

    /// Asks again until it has ended.
    pub async fn outcome(&self, node: usize, id: &str) -> Seen {
        let outcome = async {
            loop {
                let seen = self.see(node, id).await;
                if seen.is_final() {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(ALL, outcome).await;
        ended.unwrap_or_else(|_| panic!("{id} does not end; the logs are in {:?}", self.folder))
    }

    /// Has a job cancelled; the status of the answer, 0 for none.
    pub async fn cancel(&self, node: usize, id: &str) -> u16 {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let cancel = request(self.addr(node), "DELETE", &format!("/deferred/{id}"));
        cancel.try_send().await.map_or(0, |answer| answer.status.as_u16())
    }

    /// Waits until a handler has begun to run this job.
    pub async fn started(&self, id: &str) {
        let started = || self.runs().iter().any(|run| run.job.as_deref() == Some(id));
        let wait = async {
            while !started() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let started = tokio::time::timeout(ALL, wait).await;
        assert!(started.is_ok(), "{id} does not start; the logs are in {:?}", self.folder);
    }

    /// The runs of a job that have been written down until now.
    #[must_use]
    pub fn runs_of(&self, id: &str) -> Vec<Run> {
        self.runs().into_iter().filter(|run| run.job.as_deref() == Some(id)).collect()
    }

    /// The runs that have been written down until now, in the order they began.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        self.written().runs
    }

    /// What the processes have written down until now.
    fn written(&self) -> History {
        let mut history = History::default();
        for life in &self.lives {
            // One that was killed before it began has written nothing.
            history.read(*life, &fs::read_to_string(self.log(*life)).unwrap_or_default());
        }
        history.runs.sort_by_key(|run| run.from);
        history
    }

    /// Ends it without a look into the books, which were not kept by a client.
    pub fn leave(self) {
        drop(self.seats);
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Waits until all has ended, and has it checked. At least this process has to live.
    pub async fn settle(mut self, node: usize) -> Verdict {
        self.all_end(node).await;
        // Before the pass, which asks a lot.
        let (cost, too_much) = left::paid(&self);
        // While the processes still work: what moves meanwhile must not be taken for lost.
        let broken = self.looked_through().await.into_iter();
        let mut wrong: Vec<_> = broken.map(|told| Violation { check: Check::N1, told }).collect();
        wrong.extend(too_much);
        wrong.extend(left::behind(&mut self).await);
        let taken = self.taken().await;
        let mut history = std::mem::take(&mut *self.history.lock());
        let written = self.written();
        history.runs = written.runs;
        history.registers = taken;
        history.stalls.extend(written.stalls);
        let unknown = |id: &String| {
            history
                .seen
                .get(id)
                .and_then(|seen| seen.last())
                .is_none_or(|seen| seen.state.is_empty())
        };
        let lost = history.accepted.iter().filter(|one| one.sure && unknown(&one.id)).count();
        let (looked, found) = history.check();
        wrong.extend(found);
        let mut states = BTreeMap::new();
        for seen in history.seen.values().filter_map(|seen| seen.last()) {
            *states.entry(format!("{} {}", seen.state, seen.reason)).or_default() += 1;
        }
        drop(self.seats);
        let logs = (!wrong.is_empty()).then(|| self.folder.clone());
        if logs.is_none() {
            let _ = fs::remove_dir_all(&self.folder);
        }
        Verdict { looked, cost, wrong, lost, states, logs }
    }

    /// What a pass over the store finds.
    async fn looked_through(&self) -> Vec<String> {
        match self.store.check().run().await {
            Ok(report) => report.faults().map(ToString::to_string).collect(),
            Err(error) => vec![format!("no pass over the store: {error}")],
        }
    }

    /// Asks about each id until it has ended, or until it takes too long: then the check says so.
    async fn all_end(&self, node: usize) {
        let ids: Vec<_> = {
            let history = self.history.lock();
            history.accepted.iter().map(|accepted| (accepted.id.clone(), accepted.sure)).collect()
        };
        let until = tokio::time::Instant::now() + ALL;
        for (id, sure) in ids {
            loop {
                let seen = self.see(node, &id).await;
                let gone = seen.state.is_empty() && !sure;
                if seen.is_final() || gone || tokio::time::Instant::now() > until {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}
