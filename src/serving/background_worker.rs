//! `BackgroundWorker`: a worker that runs beside a server.

use futures_util::future::BoxFuture;

use super::{StopPhase, StopSignals};
use crate::{defer::DeferWorker, queue::QueueWorker, store::Store};

/// Worker that runs beside a server: a [`DeferWorker`] or a [`QueueWorker`].
pub trait BackgroundWorker: Sized + Send + 'static {
    /// Returns the store of the worker, which is shut down after the worker.
    fn store(&self) -> &Store;

    /// Runs until the server drains, and lets current runs end until open requests are cut off.
    /// What runs then is returned to its queue.
    fn run_beside_server(self, signals: StopSignals) -> BoxFuture<'static, ()>;
}

impl<R: 'static> BackgroundWorker for DeferWorker<R> {
    fn store(&self) -> &Store {
        Self::store(self)
    }

    fn run_beside_server(self, signals: StopSignals) -> BoxFuture<'static, ()> {
        let stop = signals.reached(StopPhase::Draining);
        Box::pin(self.run_until(stop, signals.reached(StopPhase::CuttingOff)))
    }
}

impl BackgroundWorker for QueueWorker {
    fn store(&self) -> &Store {
        Self::store(self)
    }

    fn run_beside_server(self, signals: StopSignals) -> BoxFuture<'static, ()> {
        let stop = signals.reached(StopPhase::Draining);
        Box::pin(self.run_until(stop, signals.reached(StopPhase::CuttingOff)))
    }
}
