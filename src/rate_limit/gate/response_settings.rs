//! Settings of `RateLimitLayer` about the rate headers and the replies to refused requests.

use std::sync::Arc;

use super::RateLimitLayer;
use crate::{
    gate::RequestKind,
    rate_limit::{
        rate_headers::RateHeaders, rate_refusal::RateRefusal, response_options::ResponseOptions,
    },
    reply::Reply,
};

impl<R: RequestKind> RateLimitLayer<R> {
    /// Headers that report the quota to clients. Default:
    /// [`RateHeaders::Draft`](crate::RateHeaders), `RateLimit-Policy` and `RateLimit`.
    #[must_use]
    pub fn rate_headers(self, headers: RateHeaders) -> Self {
        self.update_response(|options| options.headers = headers)
    }

    /// Lists the rate headers and `Retry-After` in `Access-Control-Expose-Headers`, so that scripts
    /// of other origins can read them. Default: off.
    ///
    /// A CORS layer inside this one does not see refusals: put it outside.
    #[must_use]
    pub fn expose_headers(self) -> Self {
        self.update_response(|options| options.expose_headers = true)
    }

    /// Builds the complete response to a refused request. Default:
    /// [`RateRefusal::reply`](crate::RateRefusal::reply), which the function may call and modify.
    /// It must not block.
    #[must_use]
    pub fn refusal_response(
        self,
        respond: impl Fn(&RateRefusal<'_>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        self.update_response(|options| options.responder = Some(Arc::new(respond)))
    }

    /// Refuses requests in a form that gRPC clients understand:
    /// [`RateRefusal::grpc_reply`](crate::RateRefusal::grpc_reply).
    #[must_use]
    pub fn grpc_refusals(self) -> Self {
        // A function, since the path of the method has a single lifetime only.
        fn grpc(refusal: &RateRefusal<'_>) -> Reply {
            refusal.grpc_reply()
        }
        self.refusal_response(grpc)
    }

    fn update_response(self, change: impl FnOnce(&mut ResponseOptions)) -> Self {
        self.update(|settings| change(&mut settings.response))
    }
}
