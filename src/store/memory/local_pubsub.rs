//! Messages between the store handles of this process: PUBLISH and SUBSCRIBE of the embedded store.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::store::{
    backend::NodeId,
    wakeups::{WakeupMessage, Wakeups},
};

/// Message to be sent. An operation collects its messages; they are sent after its shard is
/// unlocked, because a subscriber runs code of its own.
pub(super) struct OutgoingWakeup {
    /// Receiving node; `None` for every node.
    pub(super) recipient: Option<Arc<str>>,
    pub(super) message: WakeupMessage,
}

#[derive(Default)]
pub(super) struct LocalPubsub {
    subscribers: Mutex<HashMap<Arc<str>, Weak<Wakeups>>>,
}

impl LocalPubsub {
    pub(super) fn subscribe(&self, node: &NodeId, hints: &Arc<Wakeups>) {
        let mut listeners = self.subscribers.lock();
        // Handles come and go: a new subscriber removes the dropped ones.
        listeners.retain(|_, hints| hints.strong_count() > 0);
        listeners.insert(node.as_str().into(), Arc::downgrade(hints));
    }

    /// Returns true if a message to this node would be received.
    pub(super) fn has_subscriber(&self, node: &str) -> bool {
        self.subscribers_of(Some(node)).len() == 1
    }

    pub(super) fn publish(&self, post: Vec<OutgoingWakeup>) {
        for OutgoingWakeup { recipient: to, message: hint } in post {
            for listener in self.subscribers_of(to.as_deref()) {
                listener.deliver(hint.clone());
            }
        }
    }

    fn subscribers_of(&self, node: Option<&str>) -> Vec<Arc<Wakeups>> {
        let listeners = self.subscribers.lock();
        match node {
            Some(node) => Vec::from_iter(listeners.get(node).and_then(Weak::upgrade)),
            None => listeners.values().filter_map(Weak::upgrade).collect(),
        }
    }
}
