//! Check of the status routes when the server starts: a request of its own for each path.

use std::net::{Ipv4Addr, SocketAddr};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
};
use http::header::HOST;
use lockgate::driver::{ServerLifecycle, StatusProbe};
use tower_service::Service as _;

pub(super) async fn check_status_paths(app: Router) {
    ServerLifecycle::check_status_paths(|target, probe| send_probe(app.clone(), target, probe))
        .await;
}

/// Returns the status of the response.
async fn send_probe(mut app: Router, target: String, probe: StatusProbe) -> Option<u16> {
    let request = Request::get(target).header(HOST, "localhost").body(Body::empty());
    let mut request = request.ok()?;
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    request.extensions_mut().insert(ConnectInfo(peer));
    request.extensions_mut().insert(probe);
    app.call(request).await.ok().map(|response| response.status().as_u16())
}
