//! Check of the status routes when the server starts: a request of its own for each path.

use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
};

use actix_http::Request;
use actix_service::Service;
use actix_web::{
    HttpMessage as _,
    http::header::{HOST, HeaderValue},
};
use lockgate::driver::{ServerLifecycle, StatusProbe};

/// `status_of` reads the status of a response.
pub(super) async fn check_status_paths<S: Service<Request>>(
    app: Rc<S>,
    status_of: fn(S::Response) -> u16,
) {
    ServerLifecycle::check_status_paths(|target, probe| {
        let app = Rc::clone(&app);
        async move { send_probe(&*app, &target, probe).await.map(status_of) }
    })
    .await;
}

async fn send_probe<S: Service<Request>>(
    app: &S,
    target: &str,
    probe: StatusProbe,
) -> Option<S::Response> {
    let mut request = Request::new();
    let head = request.head_mut();
    head.uri = target.parse().ok()?;
    head.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    head.peer_addr = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    request.extensions_mut().insert(probe);
    poll_fn(|cx| app.poll_ready(cx)).await.ok()?;
    app.call(request).await.ok()
}
