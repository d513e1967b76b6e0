//! Messages between the store handles of this process: what PUBLISH and SUBSCRIBE are on Redis.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::store::{
    backend::NodeId,
    wakeups::{WakeupMessage, Wakeups},
};

/// A message on its way. A step collects its messages; they go out when its shard is unlocked, since
/// a listener is code of its own.
pub(super) struct OutgoingWakeup {
    /// The node it is for; `None` = every node.
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
        // Handles come and go: those that have gone are swept by those that come.
        listeners.retain(|_, hints| hints.strong_count() > 0);
        listeners.insert(node.as_str().into(), Arc::downgrade(hints));
    }

    /// Whether a message to this node would reach somebody.
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
