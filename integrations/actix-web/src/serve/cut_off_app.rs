//! `CutOffApp`: an application whose open requests end with 503 when the drain timeout is over.

use std::{
    fmt,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use actix_http::Request;
use actix_service::{Service, ServiceFactory};
use actix_web::{Error, HttpMessage as _, dev::AppConfig, error::ErrorServiceUnavailable};
use futures_util::future::LocalBoxFuture;
use lockgate::driver::{StopPhase, StopSignals};

use super::status_path_check::check_status_paths;

/// Application of a [`Serve`](super::Serve), once for each thread.
pub struct CutOffApp<S: ServiceFactory<Request>> {
    app: S,
    signals: StopSignals,
    status_of: fn(S::Response) -> u16,
    /// Shared by the threads, the first of which checks the status routes.
    is_checked: Arc<AtomicBool>,
}

impl<S: ServiceFactory<Request>> CutOffApp<S> {
    pub(super) fn new(
        app: S,
        signals: StopSignals,
        status_of: fn(S::Response) -> u16,
        is_checked: Arc<AtomicBool>,
    ) -> Self {
        Self { app, signals, status_of, is_checked }
    }
}

impl<S> ServiceFactory<Request> for CutOffApp<S>
where
    S: ServiceFactory<Request, Config = AppConfig, Error = Error>,
    S::Response: 'static,
    S::Service: 'static,
    S::InitError: 'static,
    S::Future: 'static,
    <S::Service as Service<Request>>::Future: 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Config = AppConfig;
    type Service = CutOffService<S::Service>;
    type InitError = S::InitError;
    type Future = LocalBoxFuture<'static, Result<CutOffService<S::Service>, S::InitError>>;

    fn new_service(&self, config: AppConfig) -> Self::Future {
        let (service, signals) = (self.app.new_service(config), self.signals.clone());
        let (status_of, is_checked) = (self.status_of, Arc::clone(&self.is_checked));
        Box::pin(async move {
            let service = Rc::new(service.await?);
            if !is_checked.swap(true, Ordering::Relaxed) {
                // A task of its own: a panic of the application stays there.
                actix_rt::spawn(check_status_paths(Rc::clone(&service), status_of));
            }
            Ok(CutOffService { service, signals })
        })
    }
}

impl<S: ServiceFactory<Request>> fmt::Debug for CutOffApp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CutOffApp").field("signals", &self.signals).finish_non_exhaustive()
    }
}

/// Service of a [`CutOffApp`].
pub struct CutOffService<S> {
    service: Rc<S>,
    signals: StopSignals,
}

impl<S> Service<Request> for CutOffService<S>
where
    S: Service<Request, Error = Error>,
    S::Response: 'static,
    S::Future: 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<S::Response, Error>>;

    actix_service::forward_ready!(service);

    fn call(&self, request: Request) -> Self::Future {
        // The status routes end their streams when the server drains.
        request.extensions_mut().insert(self.signals.clone());
        let (response, signals) = (self.service.call(request), self.signals.clone());
        Box::pin(async move {
            tokio::select! {
                // In this order: a response that is ready at once registers for no signal.
                biased;
                response = response => response,
                () = signals.reached(StopPhase::CuttingOff) => Err(ErrorServiceUnavailable("")),
            }
        })
    }
}

impl<S> fmt::Debug for CutOffService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CutOffService").field("signals", &self.signals).finish_non_exhaustive()
    }
}
