//! `TestSiteBuilder`: settings of a site before its start.

use std::time::Duration;

use lockgate::Store;

use super::{AppState, RunningServer, TestSite, WebFramework, actix, axum};
use crate::scripted_handler::ScriptedHandler;

/// Settings of a site before its start.
#[derive(Debug)]
#[must_use = "nothing runs yet"]
pub struct TestSiteBuilder {
    framework: WebFramework,
    app: AppState,
    worker_options: Option<WorkerOptions>,
}

/// Settings of a site's worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerOptions {
    pub(super) concurrency: usize,
    pub(super) lease: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { concurrency: 16, lease: Duration::from_secs(10) }
    }
}

impl TestSiteBuilder {
    pub(crate) fn new(
        framework: WebFramework,
        store: Store,
        handler: ScriptedHandler,
        site_name: String,
    ) -> Self {
        let site_name = site_name.into();
        let app = AppState { store, second_store: None, injects_store: true, handler, site_name };
        Self { framework, app, worker_options: Some(WorkerOptions::default()) }
    }

    /// Sets the framework.
    pub fn framework(self, framework: WebFramework) -> Self {
        Self { framework, ..self }
    }

    /// Starts no worker.
    pub fn without_worker(self) -> Self {
        Self { worker_options: None, ..self }
    }

    /// Sets the concurrency of the worker.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.worker_options.get_or_insert_default().concurrency = concurrency;
        self
    }

    /// Sets the lease of the worker.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.worker_options.get_or_insert_default().lease = lease;
        self
    }

    /// Omits the store from the requests.
    pub fn without_request_store(mut self) -> Self {
        self.app.injects_store = false;
        self
    }

    /// Adds a second store, for the routes with layers on both.
    pub fn second_store(mut self, store: Store) -> Self {
        self.app.second_store = Some(store);
        self
    }

    /// Starts the site.
    pub async fn start(self) -> TestSite {
        let RunningServer { addr, stop, finished: ended } = match self.framework {
            WebFramework::Axum => axum::start_server(&self.app).await,
            WebFramework::Actix => actix::start_server(&self.app).await,
        };
        let has_worker = self.worker_options.is_some();
        let mut site = TestSite {
            addr,
            framework: self.framework,
            app: self.app,
            server: Some((stop, ended)),
            worker_options: self.worker_options.unwrap_or_default(),
            worker: None,
        };
        if has_worker {
            site.start_worker();
        }
        site
    }
}
