//! `ConnectionService`: the application of one connection. It adds the address of the peer, and
//! cuts requests off.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    task::{Context, Poll},
};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    response::{IntoResponse as _, Response},
    serve::{IncomingStream, Listener},
};
use futures_util::future::BoxFuture;
use http::StatusCode;
use lockgate::driver::{StopPhase, StopSignals};
use tower_service::Service;

/// Creates a [`ConnectionService`] for each connection.
pub(super) struct MakeConnectionService {
    app: Router,
    signals: StopSignals,
}

impl MakeConnectionService {
    pub(super) fn new(app: Router, signals: StopSignals) -> Self {
        // Builds the routes once. Otherwise the first call of each clone would.
        Self { app: app.with_state(()), signals }
    }
}

impl<L> Service<IncomingStream<'_, L>> for MakeConnectionService
where
    L: Listener<Addr = SocketAddr>,
{
    type Response = ConnectionService;
    type Error = Infallible;
    type Future = Ready<Result<ConnectionService, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, stream: IncomingStream<'_, L>) -> Self::Future {
        ready(Ok(ConnectionService {
            app: self.app.clone(),
            peer: ConnectInfo(*stream.remote_addr()),
            signals: self.signals.clone(),
        }))
    }
}

#[derive(Clone)]
pub(super) struct ConnectionService {
    app: Router,
    peer: ConnectInfo<SocketAddr>,
    signals: StopSignals,
}

impl Service<Request> for ConnectionService {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    /// A `Router` is always ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        // The status routes end their streams when the server drains.
        request.extensions_mut().insert(self.signals.clone());
        let (response, signals) = (self.app.call(request), self.signals.clone());
        Box::pin(async move {
            tokio::select! {
                // In this order: a response that is ready at once registers for no signal.
                biased;
                response = response => response,
                () = signals.reached(StopPhase::CuttingOff) => {
                    Ok(StatusCode::SERVICE_UNAVAILABLE.into_response())
                }
            }
        })
    }
}
