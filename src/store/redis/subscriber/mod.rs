//! Messages from other processes, on connections of their own.
//!
//! They are made at the first wait, and made again whenever one breaks; after each time everybody is told
//! to look again, since messages may have been missed. They are made again too when a lane has met another
//! server: the one before may live on, and hear nothing of what is said on its successor; and once, when somebody waits
//! for a job for the first time: until then a worker is spared a message for each of its own steps. In a cluster there is
//! one to each node ([`apart`]).

mod subscription;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt as _;
use redis::Msg;
use tokio::sync::watch;

use super::{
    KeyNames,
    target::{ConnectionTarget, MessageStream},
};
use crate::store::{
    backend::NodeId,
    wakeups::{WakeupMessage, Wakeups},
};

/// Pause before another attempt to subscribe: the first, and the longest.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

pub(super) struct MessageSubscriber {
    pub(super) target: ConnectionTarget,
    pub(super) keys: KeyNames,
    pub(super) node: NodeId,
    pub(super) connect_timeout: Duration,
    pub(super) server_changes: watch::Receiver<u64>,
    /// Whether changes of jobs are heard.
    pub(super) job_events_wanted: watch::Receiver<bool>,
}

impl MessageSubscriber {
    /// Ends when the store handle is gone.
    pub(super) fn run(
        mut self,
        hints: &Arc<Wakeups>,
    ) -> impl Future<Output = ()> + Send + use<> + 'static {
        let (hints, mut life) = (Arc::downgrade(hints), hints.lifetime());
        async move {
            let mut pause = RetryDelay::default();
            loop {
                tokio::select! {
                    // The sender is never used: this resolves when the store handle is dropped.
                    _ = life.changed() => return,
                    heard = self.deliver_until_disconnected(&hints) => pause.record_outcome(heard),
                }
                pause.sleep().await;
            }
        }
    }

    /// Delivers until the connection breaks; false if it could not be made. Another server ends it at once.
    async fn deliver_until_disconnected(&mut self, hints: &Weak<Wakeups>) -> bool {
        loop {
            // What changes from here on is not missed.
            self.server_changes.mark_unchanged();
            self.job_events_wanted.mark_unchanged();
            let (mut servers, mut jobs) =
                (self.server_changes.clone(), self.job_events_wanted.clone());
            tokio::select! {
                biased;
                // It ends when the store handle does, as `life` tells.
                Ok(()) = servers.changed() => return true,
                // No reason for a pause.
                Ok(()) = jobs.changed() => {}
                heard = self.subscribe_and_deliver(hints) => return heard,
            }
        }
    }

    fn wants_job_events(&self) -> bool {
        *self.job_events_wanted.borrow()
    }

    async fn subscribe_and_deliver(&self, hints: &Weak<Wakeups>) -> bool {
        if let ConnectionTarget::Cluster(cluster) = &self.target {
            return self.deliver_from_nodes(cluster, hints).await;
        }
        let channels = self.keys.subscriptions(&self.node, self.wants_job_events());
        let subscribe = self.target.subscribe(&channels);
        let Ok(Ok(messages)) = tokio::time::timeout(self.connect_timeout, subscribe).await else {
            return false;
        };
        deliver_wakeup(hints, Some(WakeupMessage::Resync));
        deliver_messages(hints, messages).await;
        true
    }
}

/// Until there are no more.
async fn deliver_messages(hints: &Weak<Wakeups>, mut messages: MessageStream) {
    while let Some(message) = messages.next().await {
        parse_message(&message, |hint| deliver_wakeup(hints, hint));
    }
}

fn parse_message(message: &Msg, deliver: impl Fn(Option<WakeupMessage>)) {
    let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else {
        return;
    };
    if KeyNames::is_event_channel(message.get_channel_name()) {
        WakeupMessage::parse_events(text).for_each(|hint| deliver(Some(hint)));
    } else {
        deliver(WakeupMessage::parse(text));
    }
}

fn deliver_wakeup(hints: &Weak<Wakeups>, hint: Option<WakeupMessage>) {
    if let (Some(hints), Some(hint)) = (hints.upgrade(), hint) {
        hints.deliver(hint);
    }
}

/// Longer each time that nothing could be heard.
pub(super) struct RetryDelay(Duration);

impl RetryDelay {
    pub(super) fn record_outcome(&mut self, heard: bool) {
        if heard {
            *self = Self::default();
        }
    }

    pub(super) async fn sleep(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY_DELAYS[1]);
    }
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self(RETRY_DELAYS[0])
    }
}
