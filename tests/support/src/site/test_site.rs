//! `TestSite`: a running site, with server and worker.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lockgate::Store;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{AppState, WebFramework, actix, axum, test_site_builder::WorkerOptions};
use crate::{
    http_client::{PendingResponse, TestRequest, TestResponse, request},
    raw_connection::RawConnection,
    scripted_handler::ScriptedHandler,
    wait::with_timeout,
};

/// A running site: a server with sockets, and a worker.
#[derive(Debug)]
pub struct TestSite {
    /// Address on which it listens.
    pub addr: SocketAddr,
    pub(super) framework: WebFramework,
    pub(super) app: AppState,
    pub(super) server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    pub(super) worker_options: WorkerOptions,
    pub(super) worker: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl TestSite {
    /// Returns the name of the site in the handlers' records.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.app.site_name
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.app.store
    }

    /// Creates a request with this method.
    pub fn request(&self, method: &str, target: &str) -> TestRequest {
        request(self.addr, method, target)
    }

    /// Creates a GET.
    pub fn get(&self, target: &str) -> TestRequest {
        self.request("GET", target)
    }

    /// Creates a POST.
    pub fn post(&self, target: &str) -> TestRequest {
        self.request("POST", target)
    }

    /// Creates a PUT.
    pub fn put(&self, target: &str) -> TestRequest {
        self.request("PUT", target)
    }

    /// Creates a DELETE.
    pub fn delete(&self, target: &str) -> TestRequest {
        self.request("DELETE", target)
    }

    /// Opens a raw connection.
    pub async fn raw_connection(&self) -> RawConnection {
        RawConnection::connect(self.addr).await
    }

    /// Sends a POST whose handler stops at a gate, and returns when the handler has arrived.
    pub async fn post_held(&self, target: &str) -> HeldRequest {
        self.send_held(self.post(""), target).await
    }

    /// Like [`post_held`](Self::post_held), for a prepared request.
    pub async fn send_held(&self, request: TestRequest, target: &str) -> HeldRequest {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let gate = format!("hold{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let separator = if target.contains('?') { '&' } else { '?' };
        let pending = request.with_target(format!("{target}{separator}gate={gate}")).spawn();
        let pending =
            pending.wait_for_effect(self.app.handler.sync_points.wait_for_arrival(&gate)).await;
        HeldRequest {
            pending_response: pending,
            gate_name: gate,
            handler: self.app.handler.clone(),
        }
    }

    /// Starts a worker.
    pub fn start_worker(&mut self) {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // Dropping the site stops its worker.
            let _ = stopped.await;
        };
        let WorkerOptions { concurrency, lease } = self.worker_options;
        let worker = match self.framework {
            WebFramework::Axum => {
                let worker = axum::build_worker(&self.app).concurrency(concurrency).lease(lease);
                tokio::spawn(worker.run(stopped))
            }
            WebFramework::Actix => {
                let worker = actix::build_worker(&self.app).concurrency(concurrency).lease(lease);
                tokio::spawn(worker.run(stopped))
            }
        };
        self.worker = Some((stop, worker));
    }

    /// Aborts the worker with its runs, as a crash would.
    pub async fn crash_worker(&mut self) {
        if let Some((_stop, worker)) = self.worker.take() {
            worker.abort();
            let _ = worker.await;
        }
    }

    /// Shuts down like a service: runs and responses may end, and no work remains.
    ///
    /// # Panics
    ///
    /// If a task does not end.
    pub async fn stop(mut self) {
        let (server, worker) = (self.server.take(), self.worker.take());
        let tasks = [server, worker].into_iter().flatten();
        let tasks: Vec<_> = tasks.map(|(stop, ended)| (stop.send(()), ended).1).collect();
        for task in tasks {
            let _ = with_timeout("the site to stop", task).await;
        }
        let drained = self.app.store.shutdown(Duration::from_secs(5)).await;
        assert!(drained, "a lock or a queue entry is left");
    }
}

/// A request whose handler waits at a gate.
#[derive(Debug)]
#[must_use = "it holds until it is let go"]
pub struct HeldRequest {
    pending_response: PendingResponse,
    gate_name: String,
    handler: ScriptedHandler,
}

impl HeldRequest {
    /// Opens the gate, and returns the response.
    pub async fn finish(self) -> TestResponse {
        self.handler.sync_points.open(&self.gate_name);
        self.pending_response.response().await
    }

    /// Returns the response to a request that ends while its handler waits at the gate.
    pub async fn response(self) -> TestResponse {
        self.pending_response.response().await
    }

    /// Disconnects without waiting for the response.
    pub async fn disconnect(self) {
        self.pending_response.disconnect().await;
    }
}
