//! Who hears messages by one of the nodes.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::timeout};

use super::insist;
use crate::{
    key::Key,
    store::{
        Store,
        backend::{JobId, Node},
        hints::{Hint, Hints},
    },
};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// One that hears messages by one of the nodes.
pub(in super::super) struct Ear {
    pub(super) node: Node,
    _hints: Arc<Hints>,
    heard: mpsc::UnboundedReceiver<Hint>,
}

impl Ear {
    pub(in super::super) async fn new(store: &Store) -> Self {
        let (node, hints) = (Node::new(), Arc::new(Hints::default()));
        let heard = hints.work();
        let listens = store.backend().listen(node.clone(), &hints);
        drop(crate::store::spawn(listens.expect("there is somebody to hear")));
        let mut ear = Self { node, _hints: hints, heard };
        ear.resyncs().await;
        ear
    }

    /// It is told that it may have missed something.
    pub(super) async fn resyncs(&mut self) {
        let heard = async { while self.heard.recv().await != Some(Hint::Resync) {} };
        timeout(20 * SECOND, heard).await.expect("it listens again");
    }

    /// Whatever comes before it.
    pub(super) async fn hears_this(&mut self, hint: &Hint) {
        let heard = async { while self.heard.recv().await.as_ref() != Some(hint) {} };
        timeout(20 * SECOND, heard).await.expect("it is told");
    }

    /// Until a message arrives: it may be on its way from one node to another.
    pub(in super::super) async fn hears(&mut self, store: &Store, key: &Key) {
        for _ in 0..20 {
            let hint = Hint::Work(key.clone(), JobId::new(key));
            let told = async || store.backend().tell(self.node.clone(), hint.clone()).await;
            insist(told).await;
            let heard = async { while self.heard.recv().await != Some(hint.clone()) {} };
            if timeout(SECOND, heard).await.is_ok() {
                return;
            }
        }
        panic!("messages do not arrive");
    }
}
