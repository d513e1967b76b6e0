//! A site that runs.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lockgate::Store;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{App, Framework, actix, axum, plan::WorkerPlan};
use crate::{
    desk::Desk,
    http::{Answer, Pending, Request, request},
    raw::Raw,
    wait::within,
};

/// A site that runs: a server with sockets, and a worker.
#[derive(Debug)]
pub struct Site {
    /// Where it listens.
    pub addr: SocketAddr,
    pub(super) framework: Framework,
    pub(super) app: App,
    pub(super) server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    pub(super) plan: WorkerPlan,
    pub(super) worker: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Site {
    /// Its name, as handlers write it down.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.app.site
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.app.store
    }

    /// A request of this method.
    pub fn request(&self, method: &str, target: &str) -> Request {
        request(self.addr, method, target)
    }

    /// A GET.
    pub fn get(&self, target: &str) -> Request {
        self.request("GET", target)
    }

    /// A POST.
    pub fn post(&self, target: &str) -> Request {
        self.request("POST", target)
    }

    /// A PUT.
    pub fn put(&self, target: &str) -> Request {
        self.request("PUT", target)
    }

    /// A DELETE.
    pub fn delete(&self, target: &str) -> Request {
        self.request("DELETE", target)
    }

    /// A bare connection.
    pub async fn raw(&self) -> Raw {
        Raw::connect(self.addr).await
    }

    /// Sends a POST whose handler stops at a gate, and returns when it is there.
    pub async fn hold(&self, target: &str) -> Hold {
        self.hold_with(self.post(""), target).await
    }

    /// As [`hold`](Self::hold), with a request that has more to it.
    pub async fn hold_with(&self, request: Request, target: &str) -> Hold {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let gate = format!("hold{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mark = if target.contains('?') { '&' } else { '?' };
        let pending = request.target(format!("{target}{mark}gate={gate}")).spawn();
        let pending = pending.brings(self.app.desk.gates.arrived(&gate)).await;
        Hold { pending, gate, desk: self.app.desk.clone() }
    }

    /// Starts a worker.
    pub fn start_worker(&mut self) {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // Whoever drops the site stops its worker.
            let _ = stopped.await;
        };
        let WorkerPlan { concurrency, lease } = self.plan;
        let worker = match self.framework {
            Framework::Axum => {
                let worker = axum::worker(&self.app).concurrency(concurrency).lease(lease);
                tokio::spawn(worker.run(stopped))
            }
            Framework::Actix => {
                let worker = actix::worker(&self.app).concurrency(concurrency).lease(lease);
                tokio::spawn(worker.run(stopped))
            }
        };
        self.worker = Some((stop, worker));
    }

    /// Ends the worker as a crash would: what runs is cut off.
    pub async fn crash_worker(&mut self) {
        if let Some((_stop, worker)) = self.worker.take() {
            worker.abort();
            let _ = worker.await;
        }
    }

    /// Stops as a service does that is told to: runs and answers may end, then nothing is left behind.
    ///
    /// # Panics
    ///
    /// If something does not end.
    pub async fn stop(mut self) {
        let (server, worker) = (self.server.take(), self.worker.take());
        let parts = [server, worker].into_iter().flatten();
        let parts: Vec<_> = parts.map(|(stop, ended)| (stop.send(()), ended).1).collect();
        for part in parts {
            let _ = within("the site to stop", part).await;
        }
        let drained = self.app.store.shutdown(Duration::from_secs(5)).await;
        assert!(drained, "something was left to give back");
    }
}

/// A request whose handler stands at a gate.
#[derive(Debug)]
#[must_use = "it holds until it is let go"]
pub struct Hold {
    pending: Pending,
    gate: String,
    desk: Desk,
}

impl Hold {
    /// Opens the gate, and returns the answer.
    pub async fn let_go(self) -> Answer {
        self.desk.gates.open(&self.gate);
        self.pending.answer().await
    }

    /// The answer of a request that is ended at its gate.
    pub async fn answer(self) -> Answer {
        self.pending.answer().await
    }

    /// Goes away without waiting for the answer.
    pub async fn disconnect(self) {
        self.pending.disconnect().await;
    }
}
