//! `PING`s in place of a lock: two round trips without work, to put the targets of a lock into
//! perspective.

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use redis::aio::MultiplexedConnection;
use tokio::sync::{mpsc, oneshot};

/// Sends a `PING` before and after the handler, over one multiplexed connection.
pub(super) async fn separate_pings(
    State(mut connection): State<MultiplexedConnection>,
    request: Request,
    next: Next,
) -> Response {
    let before = redis::cmd("PING").exec_async(&mut connection).await;
    let response = next.run(request).await;
    let after = redis::cmd("PING").exec_async(&mut connection).await;
    if before.and(after).is_ok() { response } else { unavailable_response() }
}

/// Like [`separate_pings`], but requests share a `PING`: those that arrive while one is in flight
/// share the next one.
pub(super) async fn shared_pings(
    State(pings): State<PingBatcher>,
    request: Request,
    next: Next,
) -> Response {
    let before = pings.ping().await;
    let response = next.run(request).await;
    let after = pings.ping().await;
    if before.and(after).is_some() { response } else { unavailable_response() }
}

fn unavailable_response() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

/// Task that sends one `PING` for all waiting requests.
#[derive(Clone)]
pub(super) struct PingBatcher(mpsc::UnboundedSender<oneshot::Sender<()>>);

impl PingBatcher {
    pub(super) fn start(mut connection: MultiplexedConnection) -> Self {
        let (sender, mut receiver) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while receiver.recv_many(&mut batch, usize::MAX).await > 0 {
                let result = redis::cmd("PING").exec_async(&mut connection).await;
                // After an error, the callers see that their sender was dropped.
                let callers = batch.drain(..).filter(|_| result.is_ok());
                callers.for_each(|caller| caller.send(()).unwrap_or_default());
            }
        });
        Self(sender)
    }

    async fn ping(&self) -> Option<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.send(sender).ok()?;
        receiver.await.ok()
    }
}
