//! `MessageSubscriber`: keeps the subscriptions of a store, and delivers their wake-ups.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt as _;
use redis::Msg;
use tokio::sync::watch;

use super::{
    super::target::{ConnectionTarget, MessageStream},
    retry_delay::RetryDelay,
};
use crate::store::key_names::KeyNames;
use crate::store::{
    backend::NodeId, wakeup_listeners::WakeupListeners, wakeup_message::WakeupMessage,
};

/// Subscriptions of a store: its channels, and the events that renew them.
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
        listeners: &Arc<WakeupListeners>,
    ) -> impl Future<Output = ()> + Send + use<> + 'static {
        let (listeners, mut store_lifetime) = (Arc::downgrade(listeners), listeners.lifetime());
        async move {
            let mut retry_delay = RetryDelay::default();
            loop {
                tokio::select! {
                    // The sender is never used: this resolves when the store handle is dropped.
                    _ = store_lifetime.changed() => return,
                    is_subscribed = self.deliver_until_disconnected(&listeners) => retry_delay.record_outcome(is_subscribed),
                }
                retry_delay.sleep().await;
            }
        }
    }

    /// Delivers messages until the connection breaks or the server changes. Returns false if no
    /// connection could be made.
    async fn deliver_until_disconnected(&mut self, listeners: &Weak<WakeupListeners>) -> bool {
        loop {
            // Changes from here on are noticed.
            self.server_changes.mark_unchanged();
            self.job_events_wanted.mark_unchanged();
            let (mut server_changes, mut job_events_wanted) =
                (self.server_changes.clone(), self.job_events_wanted.clone());
            tokio::select! {
                biased;
                // The sender is dropped with the store handle; `run` then ends by `store_lifetime`.
                Ok(()) = server_changes.changed() => return true,
                // Subscribes again without a pause.
                Ok(()) = job_events_wanted.changed() => {}
                is_subscribed = self.subscribe_and_deliver(listeners) => return is_subscribed,
            }
        }
    }

    pub(super) fn wants_job_events(&self) -> bool {
        *self.job_events_wanted.borrow()
    }

    async fn subscribe_and_deliver(&self, listeners: &Weak<WakeupListeners>) -> bool {
        if let ConnectionTarget::Cluster(cluster) = &self.target {
            return self.deliver_from_nodes(cluster, listeners).await;
        }
        let channels = self.keys.subscriptions(&self.node, self.wants_job_events());
        let subscribe = self.target.subscribe(&channels);
        let Ok(Ok(messages)) = tokio::time::timeout(self.connect_timeout, subscribe).await else {
            return false;
        };
        deliver_wakeup(listeners, Some(WakeupMessage::Resync));
        deliver_messages(listeners, messages).await;
        true
    }
}

/// Delivers messages until the stream ends.
pub(super) async fn deliver_messages(
    listeners: &Weak<WakeupListeners>,
    mut messages: MessageStream,
) {
    while let Some(message) = messages.next().await {
        parse_message(&message, |wakeup| deliver_wakeup(listeners, wakeup));
    }
}

pub(super) fn parse_message(message: &Msg, deliver: impl Fn(Option<WakeupMessage>)) {
    let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else {
        return;
    };
    if KeyNames::is_event_channel(message.get_channel_name()) {
        WakeupMessage::parse_events(text).for_each(|wakeup| deliver(Some(wakeup)));
    } else {
        deliver(WakeupMessage::parse(text));
    }
}

pub(super) fn deliver_wakeup(listeners: &Weak<WakeupListeners>, wakeup: Option<WakeupMessage>) {
    if let (Some(listeners), Some(wakeup)) = (listeners.upgrade(), wakeup) {
        listeners.deliver(wakeup);
    }
}
