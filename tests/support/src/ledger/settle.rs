//! The end of a fleet: whether all requests have ended, whether it adds up, and what it has cost.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use super::{Fleet, books::ALL};
use crate::{
    checker::{
        Guarantee, Violation, deferred::DeferredCheckStats, idle_snapshot::check_command_cost,
    },
    fleet::Ground,
};

/// Calls per request, retries, refusals and the clients that ask in vain included. Histories take 3 to 3.5.
const CEILING: u64 = 6;

/// Calls of a process for itself: at its start, and after each loss of its connections.
const OWN: u64 = 32;

/// What came of it.
#[derive(Debug)]
pub struct Verdict {
    /// What was looked at.
    pub looked: DeferredCheckStats,
    /// What was asked of the server, and for how much.
    pub cost: String,
    /// What is wrong; empty if all is well.
    pub wrong: Vec<Violation>,
    /// Requests that were answered 202, and of which nobody knows at the end.
    pub lost: usize,
    /// How often each final state was reached.
    pub states: BTreeMap<String, usize>,
    /// Where the logs are, if something is wrong.
    pub logs: Option<PathBuf>,
}

impl Verdict {
    /// Fails the test if something is wrong.
    ///
    /// # Panics
    ///
    /// If something is wrong.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "that all is well is enough for most")]
    pub fn is_good(self) -> DeferredCheckStats {
        println!("figure: accepted and lost {}", self.lost);
        assert!(self.wrong.is_empty(), "{self}");
        self.looked
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = vec![format!("{:?}; {:?}; {}", self.looked, self.states, self.cost)];
        let (wrong, logs) = (self.wrong.clone(), self.logs.clone());
        write!(f, "{}", crate::fleet::Verdict { told, wrong, logs })
    }
}

impl<G: Ground> Fleet<G> {
    /// Waits until all has ended, and has it checked. At least this process has to live.
    pub async fn settle(mut self, node: usize) -> Verdict {
        let mut verdict = self.checked(node).await;
        verdict.logs = self.close(verdict.wrong.is_empty());
        verdict
    }

    pub(super) async fn checked(&mut self, node: usize) -> Verdict {
        self.all_end(node).await;
        // Before the pass, which asks a lot.
        let (cost, too_much) = self.paid();
        // While the processes still work: what moves meanwhile must not be taken for lost.
        let broken = self.looked_through().await.into_iter();
        let mut wrong: Vec<_> =
            broken.map(|told| Violation { guarantee: Guarantee::N1, description: told }).collect();
        wrong.extend(too_much);
        wrong.extend(self.left().await);
        let taken = self.domain.taken().await;
        let mut history = std::mem::take(&mut *self.domain.history.lock());
        let written = self.written();
        (history.runs, history.stalls) = (written.runs, written.stalls);
        history.registers = taken;
        self.take_notes().tell(&mut history);
        let unknown = |id: &String| {
            let last = history.observed.get(id).and_then(|seen| seen.last());
            last.is_none_or(|seen| seen.state.is_empty())
        };
        let lost = history.accepted.iter().filter(|one| one.is_certain && unknown(&one.id)).count();
        let (looked, found) = history.check();
        wrong.extend(found);
        let mut states = BTreeMap::new();
        for seen in history.observed.values().filter_map(|seen| seen.last()) {
            *states.entry(format!("{} {}", seen.state, seen.reason)).or_default() += 1;
        }
        Verdict { looked, cost, wrong, lost, states, logs: None }
    }

    /// What a pass over the store finds.
    async fn looked_through(&self) -> Vec<String> {
        match self.store().check().run().await {
            Ok(report) => report.faults().map(ToString::to_string).collect(),
            Err(error) => vec![format!("no pass over the store: {error}")],
        }
    }

    /// Asks about each id until it has ended, or until it takes too long: then the check says so.
    async fn all_end(&self, node: usize) {
        let ids: Vec<_> = {
            let history = self.domain.history.lock();
            history
                .accepted
                .iter()
                .map(|accepted| (accepted.id.clone(), accepted.is_certain))
                .collect()
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

    /// What it has cost, told; and what is wrong with that. In a cluster it is told alone: there what is about several
    /// shards is several calls.
    fn paid(&self) -> (String, Option<Violation>) {
        let (calls, requests) = (self.calls(), self.asked());
        let lives = self.lives_of_all().len() as u64;
        let told = format!("{calls} calls for {requests} requests to {lives} processes");
        let too_much = check_command_cost(calls.saturating_sub(lives * OWN), requests, CEILING);
        (told, too_much.filter(|_| self.server.alone().is_some()))
    }
}
