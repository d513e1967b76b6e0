//! Who hears messages by one of the nodes.

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

/// One that hears messages by one of the nodes.
pub(in super::super) struct WakeupListener {
    pub(super) node: NodeId,
    _wakeups: Arc<WakeupListeners>,
    messages: mpsc::UnboundedReceiver<WakeupMessage>,
}

impl WakeupListener {
    pub(in super::super) async fn new(store: &Store) -> Self {
        let (node, hints) = (NodeId::new(), Arc::new(WakeupListeners::default()));
        let heard = hints.subscribe_work();
        let listens = store.backend().subscribe(node.clone(), &hints);
        drop(crate::store::spawn(listens.expect("there is somebody to hear")));
        let mut ear = Self { node, _wakeups: hints, messages: heard };
        ear.wait_for_resync().await;
        ear
    }

    /// It is told that it may have missed something.
    pub(super) async fn wait_for_resync(&mut self) {
        let heard = async { while self.messages.recv().await != Some(WakeupMessage::Resync) {} };
        timeout(20 * SECOND, heard).await.expect("it listens again");
    }

    /// Whatever comes before it.
    pub(super) async fn wait_for_message(&mut self, hint: &WakeupMessage) {
        let heard = async { while self.messages.recv().await.as_ref() != Some(hint) {} };
        timeout(20 * SECOND, heard).await.expect("it is told");
    }

    /// Until a message arrives: it may be on its way from one node to another.
    pub(in super::super) async fn assert_delivers_for(&mut self, store: &Store, key: &Key) {
        for _ in 0..20 {
            let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(key));
            let told = async || store.backend().send_wakeup(self.node.clone(), hint.clone()).await;
            retry_while_unavailable(told).await;
            let heard = async { while self.messages.recv().await != Some(hint.clone()) {} };
            if timeout(SECOND, heard).await.is_ok() {
                return;
            }
        }
        panic!("messages do not arrive");
    }
}
