//! Settings of `RateLimitLayer` for the policy that was added last.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{RateLimitLayer, quota_lookup::QuotaLookup, rate_limit_settings::LayerPolicy};
use crate::{
    gate::RequestKind,
    outage::RateLimitOutage,
    rate_limit::{policy_cost_and_reactions::Policy, quota::Quota},
};

impl<R: RequestKind> RateLimitLayer<R> {
    /// Name of the policy, which clients see and counters are stored under: see
    /// [`Policy::with_name`](crate::Policy::with_name).
    ///
    /// Default: the quota, such as `100-per-60s`, and layers share the counter of a key only if
    /// their quotas are equal.
    #[must_use]
    pub fn policy_name(self, name: &str) -> Self {
        self.map_last_policy(|policy| policy.with_name(name))
    }

    /// Reaction to an unavailable store. Default:
    /// [`RateLimitOutage::Local`](crate::RateLimitOutage), in which each process enforces its share
    /// of the quota, so that an outage of the limiter neither stops the service nor leaves it
    /// without a limit.
    #[must_use]
    pub fn on_outage(self, outage: RateLimitOutage) -> Self {
        self.map_last_policy(|policy| policy.on_outage(outage))
    }

    /// Charges and reports, but never refuses: see [`Policy::shadow`](crate::Policy::shadow).
    /// Clients do not see the policy.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.map_last_policy(Policy::shadow)
    }

    /// Cost of a request. Default: the cost of the policy, 1.
    ///
    /// A cost of 0 charges nothing. A request that costs more than the quota ever admits at once
    /// gets 403.
    #[must_use]
    pub fn cost_by(self, cost: impl Fn(&R::Native) -> u64 + Send + Sync + 'static) -> Self {
        self.update_last_policy(|layer_policy| layer_policy.cost_by = Some(Arc::new(cost)))
    }

    /// Quota that depends on the request, such as on its client's plan. Default: the layer's quota,
    /// for all requests.
    ///
    /// The function reads the request, and the future that it returns may look the quota up
    /// elsewhere; it has no timeout but its own.
    ///
    /// - A quota is cached for 10 s (see [`quota_ttl`](Self::quota_ttl)), for every request of its
    ///   key, in this layer and its clones, and for at most 65,536 keys. Requests that arrive
    ///   during a lookup look it up too. (In actix-web a layer that is created in the closure of
    ///   `HttpServer::new` exists once for each thread: create it outside and clone it.)
    /// - Units already spent stay spent when a quota changes, except between fixed windows, sliding
    ///   windows and GCRA, which have separate counters.
    /// - Refusals are cached for 100 ms, not until the end of the window.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Quota, Store, middleware::PlainHttp, rate_limit::RateLimitLayer};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let per_minute = |requests| Quota::requests(requests).per(Duration::from_secs(60));
    /// let limit = RateLimitLayer::<PlainHttp>::by_header("x-api-key", per_minute(1))
    ///     .quota_by(move |parts| {
    ///         let is_paid = parts.headers["x-api-key"] == "paid"; // or a lookup in the future
    ///         async move { if is_paid { per_minute(100) } else { per_minute(1) } }
    ///     })
    ///     .store(&Store::memory());
    /// let service = limit.layer(handler);
    ///
    /// let request = |key| Request::get("/").header("x-api-key", key).body(Body::default());
    /// for (api_key, status) in [("free", 200), ("free", 429), ("paid", 200), ("paid", 200)] {
    ///     assert_eq!(service.clone().oneshot(request(api_key)?).await?.status(), status);
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn quota_by<F>(self, quota: impl Fn(&R::Native) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Quota> + Send + 'static,
    {
        let lookup = QuotaLookup::new(Arc::new(move |native| quota(native).boxed()));
        self.update_last_policy(|layer_policy| layer_policy.quota_by = Some(Arc::new(lookup)))
    }

    /// Time for which the result of `quota_by` is cached. Default: 10 s, the time that a client may
    /// have to wait for a new plan. Zero looks it up for every request; at most a year.
    ///
    /// # Panics
    ///
    /// If [`quota_by`](Self::quota_by) was not called before.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "a misconfiguration is reported where the layer is built"
    )]
    pub fn quota_ttl(self, ttl: Duration) -> Self {
        self.update_last_policy(|layer_policy| {
            let lookup = layer_policy
                .quota_by
                .take()
                .expect("RateLimitLayer::quota_ttl: call quota_by first");
            layer_policy.quota_by = Some(Arc::new(lookup.with_ttl(ttl)));
        })
    }

    /// Refunds the charge of a request if the function returns true for the status of its response.
    /// Default: no refunds.
    ///
    /// An error of the inner service counts as 500; in actix-web it counts as the status of its
    /// response.
    ///
    /// - The response waits for the refund, unless the store is unavailable. Then the refund is
    ///   retried in the background, for at most five minutes and for at most 1,024 counters at
    ///   once. A refund that fails within that time, or within the shutdown, leaves the charge in
    ///   place until its window ends. So does a refund that the store did not answer in time, since
    ///   it may have been executed.
    /// - A refund lapses with the window of its charge.
    /// - A request that is dropped keeps its charge.
    /// - Refusals are cached for 100 ms, not until the end of the window.
    /// - Inside another layer with the same policy this one charges the request as well, because it
    ///   refunds only its own charges.
    #[must_use]
    pub fn refund_on(self, refund: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
        self.update_last_policy(|layer_policy| layer_policy.refund_on = Some(Arc::new(refund)))
    }

    /// Lets the handler set the cost of its request by
    /// [`RateStatus::set_cost`](crate::RateStatus::set_cost). Default: it cannot.
    ///
    /// - A higher cost than the one charged on arrival is charged even beyond the limit, up to [ten
    ///   times the quota](crate::Quota::max_charge).
    /// - A lower cost is refunded as by [`refund_on`](Self::refund_on), which takes precedence.
    /// - A cost that was set applies even if the request is dropped afterwards.
    /// - If the store is unavailable, the rules of refunds apply; a charge that fails for too long
    ///   is dropped.
    /// - Inside another layer with the same policy this one charges the request as well.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::RateStatus;
    /// # use lockgate::{Quota, Store, middleware::PlainHttp, rate_limit::RateLimitLayer};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handler = service_fn(async |request: Request<Body>| {
    ///     let rate = request.extensions().get::<RateStatus>().expect("it was charged");
    ///     let _ = rate.set_cost(10); // the rows that it has read
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let quota = Quota::requests(10).per(Duration::from_secs(60));
    /// let limit = RateLimitLayer::<PlainHttp>::by_header("x-api-key", quota).handler_sets_cost();
    /// let service = limit.store(&Store::memory()).layer(handler);
    ///
    /// let request = || Request::get("/").header("x-api-key", "abc").body(Body::default());
    /// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
    /// assert_eq!(service.oneshot(request()?).await?.status(), 429);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn handler_sets_cost(self) -> Self {
        self.update_last_policy(|layer_policy| layer_policy.handler_sets_cost = true)
    }

    /// Changes the policy that was added last.
    fn update_last_policy(self, change: impl FnOnce(&mut LayerPolicy<R>)) -> Self {
        self.update(|settings| {
            if let Some(last_policy) = settings.policies.last_mut() {
                change(last_policy);
            }
        })
    }

    fn map_last_policy(self, change: impl FnOnce(Policy) -> Policy) -> Self {
        self.update_last_policy(|layer_policy| {
            layer_policy.policy = Arc::new(change((*layer_policy.policy).clone()));
        })
    }
}
