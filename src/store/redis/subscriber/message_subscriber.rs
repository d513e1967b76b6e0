//! `MessageSubscriber`: keeps the subscriptions of a store, and delivers their wake-ups.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt as _;
use redis::Msg;
use tokio::sync::watch;

use super::super::target::{ConnectionTarget, MessageStream};
use crate::store::key_names::KeyNames;
use crate::store::{
    backend::NodeId,
    wakeups::{WakeupMessage, Wakeups},
};

/// First and longest pause between two attempts to subscribe.
pub(super) const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

pub(in super::super) struct MessageSubscriber {
    pub(in super::super) target: ConnectionTarget,
    pub(in super::super) keys: KeyNames,
    pub(in super::super) node: NodeId,
    pub(in super::super) connect_timeout: Duration,
    pub(in super::super) server_changes: watch::Receiver<u64>,
    /// True if job events are subscribed.
    pub(in super::super) job_events_wanted: watch::Receiver<bool>,
}

impl MessageSubscriber {
    /// Runs until the store handle is dropped.
    pub(in super::super) fn run(
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

    /// Delivers messages until the connection breaks or the server changes. Returns false if no
    /// connection could be made.
    async fn deliver_until_disconnected(&mut self, hints: &Weak<Wakeups>) -> bool {
        loop {
            // Changes from here on are noticed.
            self.server_changes.mark_unchanged();
            self.job_events_wanted.mark_unchanged();
            let (mut servers, mut jobs) =
                (self.server_changes.clone(), self.job_events_wanted.clone());
            tokio::select! {
                biased;
                // The sender is dropped with the store handle; `run` then ends by `life`.
                Ok(()) = servers.changed() => return true,
                // Subscribes again without a pause.
                Ok(()) = jobs.changed() => {}
                heard = self.subscribe_and_deliver(hints) => return heard,
            }
        }
    }

    pub(super) fn wants_job_events(&self) -> bool {
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

/// Delivers messages until the stream ends.
pub(super) async fn deliver_messages(hints: &Weak<Wakeups>, mut messages: MessageStream) {
    while let Some(message) = messages.next().await {
        parse_message(&message, |hint| deliver_wakeup(hints, hint));
    }
}

pub(super) fn parse_message(message: &Msg, deliver: impl Fn(Option<WakeupMessage>)) {
    let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else {
        return;
    };
    if KeyNames::is_event_channel(message.get_channel_name()) {
        WakeupMessage::parse_events(text).for_each(|hint| deliver(Some(hint)));
    } else {
        deliver(WakeupMessage::parse(text));
    }
}

pub(super) fn deliver_wakeup(hints: &Weak<Wakeups>, hint: Option<WakeupMessage>) {
    if let (Some(hints), Some(hint)) = (hints.upgrade(), hint) {
        hints.deliver(hint);
    }
}

/// Pause between attempts; it doubles until a subscription succeeds, up to the longest of
/// `RETRY_DELAYS`.
pub(in super::super) struct RetryDelay(Duration);

impl RetryDelay {
    pub(in super::super) fn record_outcome(&mut self, heard: bool) {
        if heard {
            *self = Self::default();
        }
    }

    pub(in super::super) async fn sleep(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY_DELAYS[1]);
    }
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self(RETRY_DELAYS[0])
    }
}
