//! The tower driver: any [`Gate`](crate::gate::Gate) as a layer over any `http` 1.x service.
//!
//! What happens to a request: the gate is asked; if it has nothing to do with the request, the inner
//! service is called as if the layer were not there. Otherwise the future enters the gate, calls the
//! inner service, leaves the gate, and never changes the service's error. The gate may end the call, or
//! stay until the response's body has ended. Dropping the future or the body drops the gate's ticket, which
//! gives back whatever was taken.
//!
//! The layer is generic over the bodies of requests and of answers, as long as they are made of `Bytes`; which body its own
//! answers have is said by the framework ([`Framework::Answer`]). It differs from a middleware written for one
//! framework in that it has to be told how a router shows itself ([`Framework`]); without a router,
//! as in plain hyper, that is [`PlainHttp`].
//!
//! Deferral without a framework, from the 202 to the answer: the worker runs what waits through the same
//! service, and the server asks the [`StatusGate`](crate::defer::StatusGate) about paths below `/deferred`.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response, request::Parts};
//! use http_body_util::Full;
//! use lockgate::{
//!     Key, Store,
//!     defer::{DeferGate, DeferWorker, StatusAnswer, StatusGate},
//!     gate::KeySource,
//!     lock::LockGate,
//!     middleware::{GateLayer, PartsView, PlainHttp, ServiceReplayer},
//! };
//! use tokio::sync::oneshot;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::memory();
//! let lock = LockGate::<Parts>::new(KeySource::header("order")).store(&store);
//! let service = ServiceBuilder::new()
//!     .layer(GateLayer::<_, PlainHttp>::new(DeferGate::<Parts>::new()))
//!     .layer(GateLayer::<_, PlainHttp>::new(lock))
//!     .service_fn(async |_: Request<Full<Bytes>>| {
//!         Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("refunded")))
//!     });
//!
//! let replayer = ServiceReplayer::<_, Full<Bytes>, PlainHttp>::new(service.clone());
//! let (stop, stopped) = oneshot::channel::<()>();
//! let worker = tokio::spawn(DeferWorker::on(&store, replayer).run(async {
//!     let _ = stopped.await;
//! }));
//!
//! // Somebody has the order just now: the request is kept.
//! let held = store.lock(Key::header("order", b"7")).acquire().await?;
//! let request = Request::post("/refund").header("order", "7").body(Full::default())?;
//! let accepted = service.oneshot(request).await?;
//! assert_eq!(accepted.status(), 202);
//! let _ = held.release().await;
//!
//! // Its client asks for the answer, and waits for it: 202 is "not yet".
//! let location = accepted.headers()["location"].to_str()?;
//! let id = location.trim_start_matches("/deferred/");
//! let status = StatusGate::<Parts>::new().store(&store);
//! let reply = loop {
//!     let asked = Request::get(format!("{location}/response")).header("prefer", "wait=10");
//!     let (mut asked, ()) = asked.body(())?.into_parts();
//!     let reply = match status.ask(&mut PartsView::<PlainHttp>::new(&mut asked), id, true) {
//!         Ok(request) => match request.answer().await {
//!             StatusAnswer::Whole(reply) => reply,
//!             _ => unreachable!("nobody has asked for events"),
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

mod boxed_request;
mod detached_call;
mod framework;
mod gate_body;
mod gate_layer;
mod gate_service;
mod guarded_call;
mod response_future;
mod service_replayer;
mod settle;
#[cfg(test)]
mod tests;
mod timed_body;

#[cfg(feature = "http-replay")]
pub(crate) use self::service_replayer::read_response_body;
pub use self::{
    framework::{Framework, PartsView, PlainHttp},
    gate_body::{BodyError, BoxError, GateBody, response_from_reply},
    gate_layer::GateLayer,
    gate_service::GateService,
    response_future::ResponseFuture,
    service_replayer::{ExtensionInserter, ServiceReplayer, extension_inserter},
    timed_body::{TimedBody, UntimedBody},
};
