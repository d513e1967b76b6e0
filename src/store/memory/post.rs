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
pub(super) struct Mail {
    /// The node it is for; `None` = every node.
    pub(super) to: Option<Arc<str>>,
    pub(super) hint: WakeupMessage,
}

#[derive(Default)]
pub(super) struct Post {
    listeners: Mutex<HashMap<Arc<str>, Weak<Wakeups>>>,
}

impl Post {
    pub(super) fn listen(&self, node: &NodeId, hints: &Arc<Wakeups>) {
        let mut listeners = self.listeners.lock();
        // Handles come and go: those that have gone are swept by those that come.
        listeners.retain(|_, hints| hints.strong_count() > 0);
        listeners.insert(node.as_str().into(), Arc::downgrade(hints));
    }

    /// Whether a message to this node would reach somebody.
    pub(super) fn hears(&self, node: &str) -> bool {
        self.of(Some(node)).len() == 1
    }

    pub(super) fn send(&self, post: Vec<Mail>) {
        for Mail { to, hint } in post {
            for listener in self.of(to.as_deref()) {
                listener.deliver(hint.clone());
            }
        }
    }

    fn of(&self, node: Option<&str>) -> Vec<Arc<Wakeups>> {
        let listeners = self.listeners.lock();
        match node {
            Some(node) => Vec::from_iter(listeners.get(node).and_then(Weak::upgrade)),
            None => listeners.values().filter_map(Weak::upgrade).collect(),
        }
    }
}
