//! Asking the nodes who has what.
//!
//! One that is cut off from the others would tell of days gone by: so several are asked at once, and what most of
//! them say is believed; who does not answer soon after the first is not waited for. What is wrong with it is told by the next redirect.

use std::{
    future::{Future, ready},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{Cluster, Endpoint, Failure, Shared, kept, slots::View};

/// Nodes that are asked at once, at most.
const ASKED: usize = 5;

/// Pause between two looks, longer each time: a node that is away is away for each shard it has.
const PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// How seldom one looks for what another look will hardly change.
const SELDOM: Duration = Duration::from_secs(1);

/// Who looks.
#[derive(Default)]
pub(super) struct Looking {
    task: Option<JoinHandle<()>>,
    /// Something has happened since the last look began.
    wanted: bool,
    ended: bool,
    /// Whose turn it is: one who is taken over may go on until he awaits something, and must leave all this alone.
    turn: u64,
    /// How many have begun.
    begun: u64,
    /// When somebody who looks last did something.
    sign: Option<Instant>,
}

impl Cluster {
    /// Sees to it that somebody looks; false if there is no runtime to do it.
    pub(in super::super::super) fn look_again(&self) -> bool {
        let mut looking = self.0.looking.lock();
        looking.wanted = true;
        // A task whose runtime ended is finished, too. One whose runtime stands still, as where a handler blocks its
        // thread, gives no sign: a look takes as long as its slowest node may.
        let silent = looking.sign.is_some_and(|sign| sign.elapsed() > self.longest_silence());
        let runs = looking.task.as_ref().is_some_and(|task| !task.is_finished());
        if !looking.ended && runs && !silent {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        (looking.ended, looking.sign) = (false, Some(Instant::now()));
        looking.turn += 1;
        let looks = self.clone().looks(looking.turn);
        if let Some(before) = looking.task.replace(runtime.spawn(looks)) {
            before.abort();
        }
        true
    }

    /// As [`look_again`](Self::look_again), unless somebody has just looked.
    pub(in super::super::super) fn look_now_and_then(&self) {
        let last = self.0.looking.lock().sign;
        if last.is_none_or(|last| last.elapsed() > SELDOM) {
            self.look_again();
        }
    }

    /// How long one who looks may give no sign: a look, the pause behind it, and as much again.
    fn longest_silence(&self) -> Duration {
        let [_, pause] = PAUSES;
        self.0.within.saturating_add(pause).saturating_mul(2)
    }

    /// Until a look is over that begins from now on, without a pause before it.
    pub(in super::super::super) async fn look_now(&self) {
        let mut looked = self.0.looked.subscribe();
        let next = self.0.looking.lock().begun + 1;
        if self.look_again() {
            self.0.hurry.notify_one();
            // Whoever waits has a deadline of his own.
            let _ = looked.wait_for(|done| *done >= next).await;
        }
    }

    /// Until nobody wants it any more.
    async fn looks(self, turn: u64) {
        let [mut pause, longest] = PAUSES;
        while let Some(number) = self.next_look(turn) {
            self.look().await;
            self.0.looked.send_replace(number);
            let _ = timeout(pause, self.0.hurry.notified()).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// The number of the look that begins now, if one is wanted.
    fn next_look(&self, turn: u64) -> Option<u64> {
        let mut looking = self.0.looking.lock();
        if looking.turn != turn {
            return None;
        }
        (looking.ended, looking.sign) = (!looking.wanted, Some(Instant::now()));
        std::mem::take(&mut looking.wanted).then(|| {
            looking.begun += 1;
            looking.begun
        })
    }

    async fn look(&self) {
        let mut said = self.hear().await;
        let mut map = self.0.map.lock();
        map.looks += 1;
        let Some(view) = said.best() else {
            map.failure = said.failure;
            return;
        };
        map.failure = None;
        map.nodes = view.nodes;
        map.timeout = said.timeout.or(map.timeout);
        let changed = self.0.adopt(&mut map, view.owners);
        drop(map);
        if changed {
            tracing::info!("shards of the store are on other nodes of its cluster than before");
            self.0.has_changed();
        }
    }

    /// What several nodes say, until most of them say the same.
    async fn hear(&self) -> Said {
        let candidates = self.0.candidates();
        self.0.kept.retain(&candidates);
        let majority = candidates.len() / 2 + 1;
        let asked = candidates.into_iter().map(|node| {
            let own = self.clone();
            async move {
                let answer = timeout(own.0.within, own.ask(&node)).await;
                answer.unwrap_or(Err(Failure::Away))
            }
        });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let said = self.hear_most(&mut answers, majority).await;
        // Who is late is heard out, so that his connection is kept.
        let (late, shared) = (answers.for_each(|_| ready(())), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            late.await;
            sleep(kept::IDLE).await;
            // Unless there was another look.
            if let Some(shared) = shared.upgrade() {
                shared.kept.close_idle();
            }
        });
        said
    }

    async fn hear_most(
        &self,
        answers: &mut FuturesUnordered<impl Future<Output = Result<View, Failure>>>,
        majority: usize,
    ) -> Said {
        let (mut said, mut until) = (Said::default(), None);
        loop {
            let answer = match until {
                None => answers.next().await,
                Some(until) => timeout_at(until, answers.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(view)) => {
                    until.get_or_insert_with(|| Instant::now() + self.0.within / 4);
                    if said.add(view) >= majority {
                        return said;
                    }
                }
                Some(Err(failure)) => said.fail(failure),
                None => return said,
            }
        }
    }
}

/// What nodes have said.
#[derive(Default)]
struct Said {
    /// And how many say so.
    views: Vec<(View, usize)>,
    failure: Option<Failure>,
    /// The shortest.
    timeout: Option<Duration>,
}

impl Said {
    /// How many say this by now.
    fn add(&mut self, view: View) -> usize {
        self.timeout = self.timeout.into_iter().chain(view.timeout).min();
        match self.views.iter_mut().find(|(other, _)| other.owners == view.owners) {
            Some((_, votes)) => {
                *votes += 1;
                *votes
            }
            None => {
                self.views.push((view, 1));
                1
            }
        }
    }

    /// A configuration that is wrong is wrong everywhere.
    fn fail(&mut self, failure: Failure) {
        let told = match (&self.failure, &failure) {
            (None | Some(Failure::Away), _) => true,
            (Some(Failure::Refused(_)), new) => matches!(new, Failure::Config(_)),
            (Some(Failure::Config(_)), _) => false,
        };
        if told {
            self.failure = Some(failure);
        }
    }

    /// What most say; of those, who knows most.
    fn best(&mut self) -> Option<View> {
        let known = |view: &View| view.owners.iter().flatten().count();
        let views = self.views.drain(..);
        views.max_by_key(|(view, votes)| (*votes, known(view))).map(|(view, _)| view)
    }
}

impl Shared {
    /// Its user may not ask for settings: nobody asks again.
    pub(super) fn tells_no_settings(&self) {
        if self.tells.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                "the store's cluster does not tell its `cluster-node-timeout` (`CONFIG GET` is refused): it is taken for \
                 5 s. If it is shorter, what a node that stood still acknowledges when it wakes may be lost"
            );
        }
    }

    /// Known nodes and those that were named, others at each look if there are many.
    fn candidates(&self) -> Vec<Endpoint> {
        let map = self.map.lock();
        let turned = |nodes: Vec<Endpoint>, from: usize, most: usize| {
            let length = nodes.len();
            nodes.into_iter().cycle().skip(from % length.max(1)).take(most.min(length))
        };
        let mut asked: Vec<Endpoint> = turned(map.nodes.clone(), map.looks, ASKED - 1).collect();
        let room = ASKED - asked.len();
        let new: Vec<_> = self.seeds.iter().filter(|node| !asked.contains(node)).cloned().collect();
        asked.extend(turned(new, map.looks, room));
        asked
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{runtime, time::timeout};

    use super::*;

    /// Where a handler blocks its thread, nothing else of its runtime is polled.
    #[test]
    fn a_look_whose_runtime_stands_still_is_taken_over() {
        let nobody = ("127.0.0.1".to_owned(), 1);
        let cluster =
            Cluster::new(vec![nobody], Box::new(|_| Err(Failure::Away)), Duration::from_millis(1));
        let runtime = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (still, other) = (runtime(), runtime());
        assert!(still.block_on(async { cluster.look_again() }));
        let began = std::time::Instant::now();
        other.block_on(async {
            while timeout(Duration::from_millis(20), cluster.look_now()).await.is_err() {
                assert!(began.elapsed() < Duration::from_secs(20), "nobody looks");
            }
        });
        drop(still);
    }

    /// It runs on until it awaits something.
    #[test]
    fn a_look_that_was_taken_over_takes_nothing_from_its_successor() {
        let nobody = ("127.0.0.1".to_owned(), 1);
        let cluster =
            Cluster::new(vec![nobody], Box::new(|_| Err(Failure::Away)), Duration::from_millis(1));
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert!(cluster.look_again());
            let before = cluster.0.looking.lock().turn;
            cluster.0.looking.lock().ended = true;
            assert!(cluster.look_again());
            assert_eq!(cluster.next_look(before), None);
            assert_eq!(cluster.next_look(before + 1), Some(1));
        });
    }
}
