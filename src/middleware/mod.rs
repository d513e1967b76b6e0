//! The tower driver: any [`Gate`](crate::gate::Gate) as a layer over any `http` 1.x service.
//!
//! The gate inspects each request. If it does not apply, the inner service is called as if the
//! layer were not there. Otherwise the future enters the gate, calls the inner service, leaves the
//! gate, and never changes the service's error. The gate may stop the call, or keep its ticket
//! until the end of the response body. Dropping the future or the body drops the ticket, which
//! releases everything that the request has taken.
//!
//! `RateLimitLayer`, `LockLayer` and `DeferLayer` are tower layers themselves. [`GateLayer`] is for
//! other gates.
//!
//! The layer is generic over request and response bodies, as long as their data is `Bytes`. A
//! [`Framework`] tells it how a router shows itself, and which response body the layer has
//! ([`Framework::ResponseBody`]). Without a router, as in plain hyper, that is [`PlainHttp`].
//!
//! The example defers a request without a framework, from the 202 to the response. The worker runs
//! the stored request through the same service, and the server passes paths below `/deferred` to
//! the [`StatusResource`](crate::defer::StatusResource).
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response, request::Parts};
//! use http_body_util::Full;
//! use lockgate::{
//!     Key, Store,
//!     defer::{DeferLayer, DeferWorker, StatusResource, StatusReply},
//!     lock::LockLayer,
//!     middleware::{PartsView, PlainHttp},
//! };
//! use tokio::sync::oneshot;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::memory();
//! let service = ServiceBuilder::new()
//!     .layer(DeferLayer::<PlainHttp>::new())
//!     .layer(LockLayer::<PlainHttp>::by_header("order").store(&store))
//!     .service_fn(async |_: Request<Full<Bytes>>| {
//!         Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("refunded")))
//!     });
//!
//! let (stop, stopped) = oneshot::channel::<()>();
//! let worker = DeferWorker::<PlainHttp>::new(&store, service.clone());
//! let worker = tokio::spawn(worker.run(async {
//!     let _ = stopped.await;
//! }));
//!
//! // A 202 names the path of the status resource.
//! let status = StatusResource::<Parts>::new().store(&store).mounted_at("/deferred");
//!
//! // The order is locked, so the request is stored.
//! let held = store.lock(Key::header("order", b"7")).acquire().await?;
//! let request = Request::post("/refund").header("order", "7").body(Full::default())?;
//! let accepted = service.oneshot(request).await?;
//! assert_eq!(accepted.status(), 202);
//! let _ = held.release().await;
//!
//! // The client polls for the response; 202 means that there is none yet.
//! let location = accepted.headers()["location"].to_str()?;
//! let id = location.trim_start_matches("/deferred/");
//! let reply = loop {
//!     let poll = Request::get(format!("{location}/response")).header("prefer", "wait=10");
//!     let (mut parts, ()) = poll.body(())?.into_parts();
//!     let mut view = PartsView::<PlainHttp>::new(&mut parts);
//!     let reply = match status.parse_request(&mut view, id, true) {
//!         Ok(request) => match request.execute().await {
//!             StatusReply::Complete(reply) => reply,
//!             _ => unreachable!("no event stream was requested"),
//!         },
//!         Err(reply) => reply,
//!     };
//!     if reply.status != 202 {
//!         break reply;
//!     }
//! };
//! assert_eq!((reply.status, &reply.body[..]), (200, &b"refunded"[..]));
//!
//! drop(stop);
//! worker.await?;
//! # Ok(()) }
//! ```

mod detached_call;
mod framework;
mod gate_body;
mod gate_layer;
mod gate_service;
mod guarded_call;
mod layers;
mod parked_request;
mod parts_view;
mod reply_response;
mod response_future;
mod service_replayer;
mod settle;
#[cfg(test)]
mod tests;
mod timed_and_hashed_body;

#[cfg(feature = "http-replay")]
pub(crate) use self::service_replayer::read_response_body;
pub use self::{
    framework::{Framework, PlainHttp},
    gate_body::{BodyError, BoxError, GateBody},
    gate_layer::GateLayer,
    gate_service::GateService,
    parts_view::PartsView,
    reply_response::response_from_reply,
    response_future::ResponseFuture,
    service_replayer::{ExtensionInserter, ServiceReplayer, extension_inserter},
    timed_and_hashed_body::{TimedBody, UntimedBody},
};
