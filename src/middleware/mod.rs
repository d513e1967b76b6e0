//! The tower driver: any [`Gate`](crate::gate::Gate) as a layer over any `http` 1.x service.
//!
//! What happens to a request: the gate is asked; if it has nothing to do with the request, the inner
//! service is called as if the layer were not there. Otherwise the future enters the gate, calls the
//! inner service, leaves the gate, and never changes the service's error. The gate may end the call, or
//! stay until the response's body has ended. Dropping the future or the body drops the gate's ticket, which
//! gives back whatever was taken.
//!
//! The layer is generic over request and response body. It differs from a middleware written for one
//! framework in that it has to be told how a router shows itself ([`Framework`]); without a router,
//! as in plain hyper, that is [`Plain`].

mod body;
mod framework;
mod future;
mod layer;
mod parking;
mod replay;
mod service;
mod settle;
#[cfg(test)]
mod tests;
mod timed;

#[cfg(feature = "http-replay")]
pub(crate) use self::replay::keep;
pub use self::{
    body::{BodyError, GateBody, response},
    framework::{Framework, PartsView, Plain},
    future::ResponseFuture,
    layer::GateLayer,
    replay::{Put, ServiceReplayer, put},
    service::GateService,
    timed::{TimedBody, Untimed},
};
