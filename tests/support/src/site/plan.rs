//! A site in the making.

use std::time::Duration;

use lockgate::Store;

use super::{App, Framework, Running, Site, actix, axum};
use crate::desk::Desk;

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
pub(super) struct WorkerPlan {
    pub(super) concurrency: usize,
    pub(super) lease: Duration,
}

impl Default for WorkerPlan {
    fn default() -> Self {
        Self { concurrency: 16, lease: Duration::from_secs(10) }
    }
}

impl Plan {
    pub(crate) fn new(framework: Framework, store: Store, desk: Desk, site: String) -> Self {
        let site = site.into();
        let app = App { store, second: None, given: true, desk, site };
        Self { framework, app, worker: Some(WorkerPlan::default()) }
    }

    /// In this framework.
    pub fn framework(self, framework: Framework) -> Self {
        Self { framework, ..self }
    }

    /// Without a worker.
    pub fn no_worker(self) -> Self {
        Self { worker: None, ..self }
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

    /// With a second store, for the routes that have layers on both.
    pub fn second(mut self, store: Store) -> Self {
        self.app.second = Some(store);
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
