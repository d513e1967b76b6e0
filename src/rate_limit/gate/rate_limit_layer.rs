//! `RateLimitLayer`: the policies of a layer, applied to requests.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{
    rate_limit_settings::{LayerPolicy, RateLimitSettings},
    refusal_reply_cache::RefusalReplyCache,
};
use crate::{
    error::{Error, expect_setting},
    gate::{KeySource, RequestKind},
    rate_limit::{
        exemption_rules::ExemptionRules, policy_cost_and_reactions::Policy,
        response_options::ResponseOptions,
    },
    store::Store,
};

/// Limits requests per client: 429 beyond the quota, `RateLimit` headers within it.
///
/// See [`rate_limit`](crate::rate_limit) for the handling of a request. Put it outside the other
/// layers.
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
/// let quota = Quota::requests(1).per(Duration::from_secs(60));
/// let limit = RateLimitLayer::<PlainHttp>::by_header("x-api-key", quota);
/// let service = limit.store(&Store::memory()).layer(handler);
///
/// let request = || Request::get("/").header("x-api-key", "abc").body(Body::default());
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
/// assert_eq!(service.oneshot(request()?).await?.status(), 429);
/// # Ok(()) }
/// ```
pub struct RateLimitLayer<R: RequestKind>(pub(super) Arc<RateLimitSettings<R>>);

impl<R: RequestKind> RateLimitLayer<R> {
    /// One quota for each value of this key: one part, or a tuple of up to four.
    #[must_use]
    pub fn by(keys: impl Into<KeySource<R>>, policy: impl Into<Policy>) -> Self {
        Self(Arc::new(RateLimitSettings {
            policies: vec![LayerPolicy::new(keys.into(), policy.into())],
            group_source: None,
            store: None,
            engine: OnceLock::new(),
            registered: OnceLock::new(),
            exemptions: ExemptionRules::default(),
            response: ResponseOptions::default(),
            reply_cache: RefusalReplyCache::default(),
        }))
    }

    /// Adds the policies of another layer: a request has to be within all policies, and is charged
    /// to all of them or to none.
    ///
    /// Setters of a policy apply to the last policy added, so set those of the other layer before
    /// you pass it here. A policy without a [name](Self::policy_name) is called after its quota,
    /// with a number if another policy of the layer has that name: `10-per-1s-2`.
    ///
    /// Policies with the same key for a request, and all policies of a [group](Self::group_by), are
    /// decided in one call. Other policies are asked one after the other; if one refuses, the
    /// charges of the earlier ones are refunded. The access lists, rate headers and refusal
    /// responses are those of the outer layer.
    ///
    /// The layer panics when it is put around a service if two policies with the same key have the
    /// same name, or the same quota while both have no name: they would share a counter, and each
    /// request would be charged to it twice.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let other = Arc::unwrap_or_clone(other.0);
        self.update(|settings| {
            other.policies.into_iter().for_each(|added| settings.add_policy(added));
            settings.group_source = settings.group_source.take().or(other.group_source);
            settings.store = settings.store.take().or(other.store);
            settings.engine = OnceLock::new();
        })
    }

    /// Adds a policy on the key of the last one: a request has to be within all policies, and is
    /// charged to all of them or to none. One call to the store decides them.
    ///
    /// Setters of a policy, such as [`policy_name`](Self::policy_name), then apply to this one. Set
    /// what belongs to the first policy before. For a policy on another key use [`and`](Self::and).
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
    /// let per_hour = Quota::requests(100).per(Duration::from_secs(3600));
    /// let per_second = Quota::requests(1).per(Duration::from_secs(1));
    /// let limit = RateLimitLayer::<PlainHttp>::by_header("x-api-key", per_hour)
    ///     .and_policy(per_second)
    ///     .store(&Store::memory());
    /// let service = limit.layer(handler);
    ///
    /// let request = || Request::get("/").header("x-api-key", "abc").body(Body::default());
    /// let admitted = service.clone().oneshot(request()?).await?;
    /// let policies = &admitted.headers()["ratelimit-policy"];
    /// assert_eq!(policies, "\"100-per-3600s\";q=100;w=3600, \"1-per-1s\";q=1;w=1");
    /// assert_eq!(service.oneshot(request()?).await?.status(), 429);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If another policy of this key has the same name, or the same quota while both have no name:
    /// they would share a counter, and each request would be charged to it twice. For a policy from
    /// a configuration use [`try_and_policy`](Self::try_and_policy).
    #[must_use]
    pub fn and_policy(self, policy: impl Into<Policy>) -> Self {
        expect_setting(self.try_and_policy(policy))
    }

    /// Like [`and_policy`](Self::and_policy), for a policy from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if another policy of this key has the same name, or
    /// the same quota while both have no name.
    pub fn try_and_policy(self, policy: impl Into<Policy>) -> Result<Self, Error> {
        let mut settings = Arc::unwrap_or_clone(self.0);
        settings
            .add_policy_of_last_key(policy.into())
            .map_err(|name| policy_conflict_error("RateLimitLayer::and_policy", &name))?;
        Ok(Self(Arc::new(settings)))
    }

    /// Counts all policies of this layer under one key, so that one call decides all of them.
    /// Default: each policy under its own key.
    ///
    /// Each group has counters of its own: a policy for all clients together needs a group that all
    /// clients share.
    #[must_use]
    pub fn group_by(self, keys: impl Into<KeySource<R>>) -> Self {
        self.update(|settings| settings.group_source = Some(keys.into()))
    }

    /// Uses this store instead of the one that the request provides.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.update(|settings| {
            (settings.store, settings.engine) = (Some(store.clone()), OnceLock::new());
        })
    }

    pub(super) fn update(self, change: impl FnOnce(&mut RateLimitSettings<R>)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.0);
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

impl<R: RequestKind> Clone for RateLimitLayer<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: RequestKind> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Error of two policies of one key that share a counter or a name.
pub(in crate::rate_limit) fn policy_conflict_error(place: &str, policy_name: &str) -> Error {
    Error::setting(format!(
        "{place}: another policy of this key is called {policy_name:?} too, so that each request \
         would be charged twice; give one of them another name with Policy::with_name, or remove it"
    ))
}
