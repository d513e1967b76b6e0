//! A site in the making.

use std::time::Duration;

use lockgate::Store;

use super::{AppState, RunningServer, TestSite, WebFramework, actix, axum};
use crate::scripted_handler::ScriptedHandler;

/// A site in the making.
#[derive(Debug)]
#[must_use = "nothing runs yet"]
pub struct TestSiteBuilder {
    framework: WebFramework,
    app: AppState,
    worker_options: Option<WorkerOptions>,
}

/// How a site's worker is set.
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
        desk: ScriptedHandler,
        site: String,
    ) -> Self {
        let site = site.into();
        let app =
            AppState { store, second_store: None, injects_store: true, desk, site_name: site };
        Self { framework, app, worker_options: Some(WorkerOptions::default()) }
    }

    /// In this framework.
    pub fn framework(self, framework: WebFramework) -> Self {
        Self { framework, ..self }
    }

    /// Without a worker.
    pub fn without_worker(self) -> Self {
        Self { worker_options: None, ..self }
    }

    /// With a worker that runs so many at once.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.worker_options.get_or_insert_default().concurrency = concurrency;
        self
    }

    /// With a worker whose runs outlive it for so long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.worker_options.get_or_insert_default().lease = lease;
        self
    }

    /// Forgets to give requests the store.
    pub fn without_request_store(mut self) -> Self {
        self.app.injects_store = false;
        self
    }

    /// With a second store, for the routes that have layers on both.
    pub fn second_store(mut self, store: Store) -> Self {
        self.app.second_store = Some(store);
        self
    }

    /// Starts it.
    pub async fn start(self) -> TestSite {
        let RunningServer { addr, stop, finished: ended } = match self.framework {
            WebFramework::Axum => axum::start_server(&self.app).await,
            WebFramework::Actix => actix::start_server(&self.app).await,
        };
        let works = self.worker_options.is_some();
        let mut site = TestSite {
            addr,
            framework: self.framework,
            app: self.app,
            server: Some((stop, ended)),
            worker_options: self.worker_options.unwrap_or_default(),
            worker: None,
        };
        if works {
            site.start_worker();
        }
        site
    }
}
