//! Service with one method and text messages, as `tonic-build` would generate it from a `.proto`
//! file. It is written by hand so that the example does not need `protoc`.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BufMut as _};
use http::{Request, Response};
use tonic::{
    Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{Grpc, NamedService},
};
use tower::{Service, service_fn};

/// Path of the method.
pub(crate) const GREET_PATH: &str = "/hello.Greeter/Greet";

/// Greets the name in the request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "hello.Greeter";
}

impl Service<Request<Body>> for Greeter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != GREET_PATH {
                return Ok(Status::unimplemented("there is no such method").into_http());
            }
            Ok(Grpc::new(TextCodec).unary(service_fn(greet), request).await)
        })
    }
}

async fn greet(request: tonic::Request<String>) -> Result<tonic::Response<String>, Status> {
    let name = request.into_inner();
    if name.is_empty() {
        return Err(Status::invalid_argument("the name is empty"));
    }
    Ok(tonic::Response::new(format!("hello {name}")))
}

/// Codec for text messages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TextCodec;

impl Codec for TextCodec {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let text = from.copy_to_bytes(from.remaining()).into();
        String::from_utf8(text).map(Some).map_err(|_| Status::invalid_argument("not UTF-8"))
    }
}
