//! The application that the scenarios ask: the same in both frameworks.
//!
//! | route | layers, outside in |
//! |---|---|
//! | `/quota/three` | 3 a minute by ip, named `three` |
//! | `/quota/ten` | 10 a minute by ip, named `ten` |
//! | `/quota/second` | 1 a second by ip, named `second` |
//! | `/quota/header` | 2 a minute by the header `x-api-key`, named `header` |
//! | `/quota/param/{id}` | 2 a minute by the parameter, named `param` |
//! | `/quota/user` | 2 a minute by a function that reads `x-user`, named `user` |
//! | `/quota/both/{id}` | 5 a minute by route, named `outer`; 2 a minute by the parameter, named `inner` |
//! | `/quota/refuse` | 3 a minute by ip; 503 while the store is away |
//! | `/orders/{id}/pay` | lock by `id`; every method but PATCH |
//! | `/orders/{id}/ship` | lock by `id`, waits up to 15 s |
//! | `/orders/{id}/hurry` | lock by `id`, waits up to 100 ms |
//! | `/orders/{id}/audit` | lock by `id`, safe methods too |
//! | `/orders/{id}/anyway` | lock by `id`; admits while the store is away |
//! | `/users/{id}` | lock by `id` in the scope `users` |
//! | `/ab/{id}`, `/a/{id}` | lock by `id` in the scopes `a:b` and `a` |
//! | `/account` | lock by the header `x-account` |
//! | `/nested/{id}` | lock by `id` twice |
//! | `/wrong/{id}` | lock by a parameter that the route does not have |
//! | `/inverted/{id}` | lock by `id`, defer: the wrong way round |
//! | `/orders/{id}/refund` | defer, lock by `id` |
//! | `/peer` | defer, lock by ip |
//! | `/small/{id}` | defer with bodies up to 16 bytes and 2 jobs, lock by `id` |
//! | `/kept/{id}` | defer that keeps `Authorization`, lock by `id` |
//! | `/owned/{id}` | defer with `x-user` as owner and the status at `/mine`, lock by `id` |
//! | `/metered/{id}` | 5 a minute by ip, named `metered`; defer, lock by `id` |
//! | `/guarded/{id}` | 401 without `x-pass`, which goes no further; defer, lock by `id` |
//! | `/rewritten/{id}` | defer, a 409 becomes a 418, lock by `id` |
//! | `/rebuilt/{id}` | defer, the response is made anew with status and body, lock by `id` |
//! | `/late/{id}` | defer, a 409 stops at the gate named by `after`, lock by `id` |
//! | `/unknown/{id}` | defer, lock by `id`; the worker does not have it |
//! | `/deferred`, `/mine` | the status resource; the second one visible to `x-user` |

mod actix;
mod axum;

use std::{
    net::SocketAddr, sync::Arc, sync::atomic::AtomicUsize, sync::atomic::Ordering, time::Duration,
};

use lockgate::Store;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    desk::Desk,
    http::{Answer, Pending, Request, request},
    raw::Raw,
    wait::within,
};

/// The frameworks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    /// axum.
    Axum,
    /// actix-web.
    Actix,
}

impl Framework {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Axum => Self::Actix,
            Self::Actix => Self::Axum,
        }
    }
}

/// The gate at which a busy answer stops on its way out.
fn late_gate(query: Option<&str>) -> &str {
    query
        .and_then(|query| query.strip_prefix("after="))
        .unwrap_or_default()
}

/// What the routes are made of.
#[derive(Debug, Clone)]
struct App {
    store: Store,
    /// Whether requests bring it along.
    given: bool,
    desk: Desk,
    site: Arc<str>,
}

/// A server that runs.
struct Running {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    /// Resolves when the last connection has ended.
    ended: JoinHandle<()>,
}

/// A site in the making.
#[derive(Debug)]
#[must_use = "nothing runs yet"]
pub struct Plan {
    framework: Framework,
    app: App,
    worker: Option<WorkerPlan>,
}

/// How a site's worker is set.
#[derive(Debug, Clone, Copy)]
struct WorkerPlan {
    concurrency: usize,
    lease: Duration,
}

impl Default for WorkerPlan {
    fn default() -> Self {
        Self {
            concurrency: 16,
            lease: Duration::from_secs(10),
        }
    }
}

impl Plan {
    pub(crate) fn new(framework: Framework, store: Store, desk: Desk, site: String) -> Self {
        let site = site.into();
        let app = App {
            store,
            given: true,
            desk,
            site,
        };
        Self {
            framework,
            app,
            worker: Some(WorkerPlan::default()),
        }
    }

    /// In this framework.
    pub fn framework(self, framework: Framework) -> Self {
        Self { framework, ..self }
    }

    /// Without a worker.
    pub fn no_worker(self) -> Self {
        Self {
            worker: None,
            ..self
        }
    }

    /// With a worker that runs so many at once.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.worker.get_or_insert_default().concurrency = concurrency;
        self
    }

    /// With a worker whose runs outlive it for so long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.worker.get_or_insert_default().lease = lease;
        self
    }

    /// Forgets to give requests the store.
    pub fn forget_store(mut self) -> Self {
        self.app.given = false;
        self
    }

    /// Starts it.
    pub async fn start(self) -> Site {
        let Running { addr, stop, ended } = match self.framework {
            Framework::Axum => axum::serve(&self.app).await,
            Framework::Actix => actix::serve(&self.app).await,
        };
        let works = self.worker.is_some();
        let mut site = Site {
            addr,
            framework: self.framework,
            app: self.app,
            server: Some((stop, ended)),
            plan: self.worker.unwrap_or_default(),
            worker: None,
        };
        if works {
            site.start_worker();
        }
        site
    }
}

/// A site that runs: a server with sockets, and a worker.
#[derive(Debug)]
pub struct Site {
    /// Where it listens.
    pub addr: SocketAddr,
    framework: Framework,
    app: App,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    plan: WorkerPlan,
    worker: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
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
        self.app.desk.gates.arrived(&gate).await;
        Hold {
            pending,
            gate,
            desk: self.app.desk.clone(),
        }
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
                let worker = axum::worker(&self.app)
                    .concurrency(concurrency)
                    .lease(lease);
                tokio::spawn(worker.run(stopped))
            }
            Framework::Actix => {
                let worker = actix::worker(&self.app)
                    .concurrency(concurrency)
                    .lease(lease);
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
        let parts: Vec<_> = parts
            .map(|(stop, ended)| (stop.send(()), ended).1)
            .collect();
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

    /// Goes away without waiting for the answer.
    pub async fn disconnect(self) {
        self.pending.disconnect().await;
    }

    /// Opens the gate and leaves the answer alone.
    pub fn open(&self) {
        self.desk.gates.open(&self.gate);
    }
}
