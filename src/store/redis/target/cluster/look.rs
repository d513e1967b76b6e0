//! Asking the nodes who has what.
//!
//! One that is cut off from the others would tell of days gone by: so several are asked at once, and what most of
//! them say is believed. What is wrong with it is told by the next redirect.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::Value;
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Cluster, Endpoint, Failure, Settings, Shared, slots::View};

/// Nodes that are asked at once, at most.
const ASKED: usize = 5;

/// Pause between two looks, longer each time: a node that is away is away for each shard it has.
const PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// Who looks.
#[derive(Default)]
pub(super) struct Looking {
    task: Option<JoinHandle<()>>,
    /// Something has happened since the last look began.
    wanted: bool,
    ended: bool,
}

impl Cluster {
    /// Sees to it that somebody looks; false if there is no runtime to do it.
    pub(in super::super::super) fn look_again(&self) -> bool {
        let mut looking = self.0.looking.lock();
        looking.wanted = true;
        // A task whose runtime ended is finished, too.
        if !looking.ended && looking.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        looking.ended = false;
        looking.task = Some(runtime.spawn(self.clone().looks()));
        true
    }

    /// Until nobody wants it any more.
    async fn looks(self) {
        let [mut pause, longest] = PAUSES;
        while self.is_wanted() {
            self.look().await;
            self.0.looked.send_modify(|times| *times += 1);
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    fn is_wanted(&self) -> bool {
        let mut looking = self.0.looking.lock();
        looking.ended = !looking.wanted;
        std::mem::take(&mut looking.wanted)
    }

    async fn look(&self) {
        let (mut views, mut failure): (Vec<(View, usize)>, _) = (Vec::new(), None);
        let candidates = self.0.candidates();
        let majority = candidates.len() / 2 + 1;
        let asked = candidates.into_iter().map(|node| async move {
            let answer = timeout(self.0.within, self.ask(&node)).await;
            answer.unwrap_or(Err(Failure::Away))
        });
        let mut answers: FuturesUnordered<_> = asked.collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(view) => {
                    let same = views.iter_mut().find(|(other, _)| other.owners == view.owners);
                    match same {
                        Some((_, votes)) => *votes += 1,
                        None => views.push((view, 1)),
                    }
                }
                // A configuration that is wrong is wrong everywhere.
                Err(other) if matches!(failure, None | Some(Failure::Away)) => {
                    failure = Some(other);
                }
                Err(_) => {}
            }
            if views.iter().any(|(_, votes)| *votes >= majority) {
                break;
            }
        }
        let known = |view: &View| view.owners.iter().flatten().count();
        let best = views.into_iter().max_by_key(|(view, votes)| (*votes, known(view)));
        let mut map = self.0.map.lock();
        map.looks += 1;
        let Some((view, _)) = best else {
            map.failure = failure;
            return;
        };
        map.failure = None;
        map.nodes = view.nodes;
        let changed = self.0.adopt(&mut map, view.owners);
        drop(map);
        if changed {
            tracing::info!("shards of the store are on other nodes of its cluster than before");
            self.0.has_changed();
        }
    }

    async fn ask(&self, node: &Endpoint) -> Result<View, Failure> {
        let settings = Settings { within: Some(self.0.within), ..Settings::default() };
        let mut connection = self.node(node)?.open(&settings).await?;
        let mut slots = redis::cmd("CLUSTER");
        let reply: Result<Value, _> = slots.arg("SLOTS").query_async(&mut connection).await;
        match reply {
            Ok(reply) => View::read(reply, &self.0.slots, node).ok_or(Failure::Away),
            Err(error) if error.detail().is_some_and(|text| text.contains("cluster support")) => {
                let sentence = "the store's server is no node of a cluster; use redis://host:port";
                Err(Failure::Config(sentence.to_owned()))
            }
            Err(error) => Err(Failure::of(&error)),
        }
    }
}

impl Shared {
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
