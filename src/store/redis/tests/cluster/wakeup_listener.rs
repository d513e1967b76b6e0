//! `WakeupListener`: receives wake-ups over one of the nodes.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::timeout};

use super::retry_while_unavailable;
use crate::{
    key::Key,
    store::{
        Store,
        backend::{JobId, NodeId},
        wakeup_listeners::WakeupListeners,
        wakeup_message::WakeupMessage,
    },
};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Receiver of wake-ups, as a process of its own.
pub(in super::super) struct WakeupListener {
    pub(super) node: NodeId,
    _wakeups: Arc<WakeupListeners>,
    messages: mpsc::UnboundedReceiver<WakeupMessage>,
}

impl WakeupListener {
    pub(in super::super) async fn new(store: &Store) -> Self {
        let (node, wakeups) = (NodeId::new(), Arc::new(WakeupListeners::default()));
        let messages = wakeups.subscribe_work();
        let subscription = store.backend().subscribe(node.clone(), &wakeups);
        drop(crate::store::spawn(subscription.expect("the subscription starts")));
        let mut listener = Self { node, _wakeups: wakeups, messages };
        listener.wait_for_resync().await;
        listener
    }

    /// Waits for the message that others may have been lost.
    pub(super) async fn wait_for_resync(&mut self) {
        let received = async { while self.messages.recv().await != Some(WakeupMessage::Resync) {} };
        timeout(20 * SECOND, received).await.expect("it listens again");
    }

    /// Waits for a message and skips others.
    pub(super) async fn wait_for_message(&mut self, message: &WakeupMessage) {
        let received = async { while self.messages.recv().await.as_ref() != Some(message) {} };
        timeout(20 * SECOND, received).await.expect("the message arrives");
    }

    /// Sends messages until one is received: the subscription may be moving to another node.
    pub(in super::super) async fn assert_delivers_for(&mut self, store: &Store, key: &Key) {
        for _ in 0..20 {
            let message = WakeupMessage::JobOffer(key.clone(), JobId::new(key));
            let send =
                async || store.backend().send_wakeup(self.node.clone(), message.clone()).await;
            retry_while_unavailable(send).await;
            let received = async { while self.messages.recv().await != Some(message.clone()) {} };
            if timeout(SECOND, received).await.is_ok() {
                return;
            }
        }
        panic!("messages do not arrive");
    }
}
