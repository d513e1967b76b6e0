//! Messages between the store handles of this process: PUBLISH and SUBSCRIBE of the embedded store.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::store::{
    backend::NodeId, wakeup_listeners::WakeupListeners, wakeup_message::WakeupMessage,
};

/// Message to be sent. An operation collects its messages; they are sent after its shard is
/// unlocked, because a subscriber runs code of its own.
pub(super) struct OutgoingWakeup {
    /// Receiving node; `None` for every node.
    pub(super) recipient: Option<Arc<str>>,
    pub(super) message: WakeupMessage,
}

/// Subscribers of this process, by node.
#[derive(Default)]
pub(super) struct LocalPubsub {
    subscribers: Mutex<HashMap<Arc<str>, Weak<WakeupListeners>>>,
}

impl LocalPubsub {
    pub(super) fn subscribe(&self, node: &NodeId, wakeups: &Arc<WakeupListeners>) {
        let mut subscribers = self.subscribers.lock();
        // Handles come and go: a new subscriber removes the dropped ones.
        subscribers.retain(|_, wakeups| wakeups.strong_count() > 0);
        subscribers.insert(node.as_str().into(), Arc::downgrade(wakeups));
    }

    /// Returns true if a message to this node would be received.
    pub(super) fn has_subscriber(&self, node: &str) -> bool {
        self.subscribers_of(Some(node)).len() == 1
    }

    pub(super) fn publish(&self, messages: Vec<OutgoingWakeup>) {
        for OutgoingWakeup { recipient, message } in messages {
            for subscriber in self.subscribers_of(recipient.as_deref()) {
                subscriber.deliver(message.clone());
            }
        }
    }

    /// Sends a message to all subscribers and returns their number.
    pub(super) fn broadcast(&self, message: &WakeupMessage) -> usize {
        let subscribers = self.subscribers_of(None);
        subscribers.iter().for_each(|subscriber| subscriber.deliver(message.clone()));
        subscribers.len()
    }

    fn subscribers_of(&self, node: Option<&str>) -> Vec<Arc<WakeupListeners>> {
        let subscribers = self.subscribers.lock();
        match node {
            Some(node) => Vec::from_iter(subscribers.get(node).and_then(Weak::upgrade)),
            None => subscribers.values().filter_map(Weak::upgrade).collect(),
        }
    }
}
