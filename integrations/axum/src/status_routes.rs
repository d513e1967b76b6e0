//! `DeferredRoutes`: the status resource as a `Router`.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures_util::StreamExt as _;
use http::request::Parts;
use lockgate::{
    Reply, RequestUser, Store,
    defer::{StatusReply, StatusResource},
    driver::{StopPhase, StopSignals},
    middleware::{Framework as _, PartsView, response_from_reply},
};

use crate::axum_framework::AxumFramework;

/// Routes of the status resource of deferred requests. Created by [`deferred_routes`].
///
/// ```
/// # use axum::Router;
/// # use lockgate_axum::{Store, deferred_routes};
/// let app: Router = Router::new().merge(deferred_routes("/deferred").store(&Store::memory()));
/// # drop(app);
/// ```
#[derive(Debug, Clone)]
#[must_use = "the routes must be mounted"]
pub struct DeferredRoutes {
    path: String,
    resource: StatusResource<Parts>,
}

/// Creates the status resource at this path, to which the `Location` of a 202 points.
///
/// | request | response |
/// |---|---|
/// | `GET {path}/{id}` | the job as a JSON document |
/// | the same with `Accept: text/event-stream` | a stream of that document |
/// | `GET {path}/{id}/response` | the stored response, unchanged |
/// | `DELETE {path}/{id}` | cancels a request that has not started |
///
/// - `Prefer: wait=N` (at most 25 s) holds the response until the job changes, and for
///   `{path}/{id}/response` until there is a response or will be none. With 4,096 waiting requests
///   in this process, further ones get their response at once.
/// - When [`serve`](crate::serve()) drains, waiting requests get their response at once, and
///   streams end, so that their clients ask another process.
/// - `If-None-Match` omits a document that the client has already.
/// - A stored response is not treated as a page of this origin by browsers
///   (`Content-Security-Policy: sandbox`), unless the handler has sent a policy of its own.
/// - An id that is unknown, malformed or of another owner gets the same 404.
/// - All four are 410 for a job that has ended and was evicted or purged early. The response tells
///   the owner that the job has run or how else it ended; other clients learn nothing.
///
/// At the root (`"/"`) every path of one segment is taken for an id, and so is every path of two
/// segments that ends with `response`. In actix-web the first route that matches is used, so mount
/// this one after the others; in axum it is the most specific one.
///
/// ```
/// # use axum::{Router, body::Body, extract::Request};
/// # use lockgate_axum::{Store, deferred_routes};
/// # use tower::ServiceExt as _;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let app: Router = Router::new().merge(deferred_routes("/deferred").store(&Store::memory()));
///
/// let unknown = Request::get("/deferred/0123456789abcdef").body(Body::empty())?;
/// assert_eq!(app.oneshot(unknown).await?.status(), 404);
/// # Ok(()) }
/// ```
pub fn deferred_routes(path: &str) -> DeferredRoutes {
    let path = path.trim_matches('/');
    let path = if path.is_empty() { String::new() } else { format!("/{path}") };
    DeferredRoutes { path, resource: StatusResource::new() }
}

impl DeferredRoutes {
    /// Uses this store instead of the one that the request provides.
    ///
    /// See the core's [`store`](lockgate::defer::StatusResource::store).
    pub fn store(self, store: &Store) -> Self {
        Self { resource: self.resource.store(store), ..self }
    }

    /// Shows a job only to its user, the one that
    /// [`DeferLayer::for_user`](crate::DeferLayer::for_user) has stored with it. The authentication
    /// that puts the user into the request's extensions is outside the routes.
    ///
    /// See the core's [`for_user`](lockgate::defer::StatusResource::for_user).
    ///
    /// ```
    /// # use axum::Router;
    /// # use lockgate_axum::{ExtensionSnapshot, RequestUser, Store, deferred_routes};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # impl RequestUser for User {
    /// #     fn owner(&self) -> String { format!("user:{}", self.id) }
    /// # }
    /// let routes = deferred_routes("/deferred").store(&Store::memory()).for_user::<User>();
    /// let app: Router = Router::new().merge(routes); // then the authentication
    /// # drop(app);
    /// ```
    pub fn for_user<U: RequestUser>(self) -> Self {
        Self { resource: self.resource.for_user::<AxumFramework, U>(), ..self }
    }

    /// Shows a job only to its [owner](crate::DeferLayer::owner), or to the
    /// [identity](crate::DeferLayer::carry_identity) that was carried with it.
    ///
    /// See the core's [`visible_to`](lockgate::defer::StatusResource::visible_to).
    ///
    /// ```
    /// # use axum::Router;
    /// # use lockgate_axum::{Store, deferred_routes};
    /// # #[derive(Clone)]
    /// # struct User { id: u64 }
    /// # fn main() -> Result<(), lockgate_axum::Error> {
    /// let routes = deferred_routes("/deferred").store(&Store::memory()).visible_to(|parts| {
    ///     let user = parts.extensions.get::<User>()?; // by an authentication outside
    ///     Some(format!("user:{}", user.id)) // as in `DeferLayer::carry_identity`
    /// });
    /// let app: Router = Router::new().merge(routes);
    /// # drop(app);
    /// # Ok(()) }
    /// ```
    pub fn visible_to(
        self,
        viewer: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { resource: self.resource.visible_to(viewer), ..self }
    }

    /// Like [`visible_to`](Self::visible_to), for a viewer that has to be looked up, such as in a
    /// session or a database.
    ///
    /// See the core's [`visible_to_async`](lockgate::defer::StatusResource::visible_to_async).
    pub fn visible_to_async<F>(self, viewer: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        Self { resource: self.resource.visible_to_async(viewer), ..self }
    }
}

impl<S: Clone + Send + Sync + 'static> From<DeferredRoutes> for Router<S> {
    fn from(routes: DeferredRoutes) -> Self {
        let DeferredRoutes { path, resource } = routes;
        let resource = resource.mounted_at(&path);
        let document_resource = resource.clone();
        Self::new()
            .route(
                &format!("{path}/{{id}}"),
                any(move |request: Request| {
                    status_response(document_resource.clone(), request, false)
                }),
            )
            .route(
                &format!("{path}/{{id}}/response"),
                any(move |request: Request| status_response(resource.clone(), request, true)),
            )
    }
}

async fn status_response(
    resource: StatusResource<Parts>,
    request: Request,
    wants_response: bool,
) -> Response {
    let (mut parts, _) = request.into_parts();
    // An id that is not valid UTF-8 is an unknown id.
    let id = AxumFramework::path_param(&mut parts, "id").ok().flatten().unwrap_or_default();
    let signals = parts.extensions.get::<StopSignals>().cloned();
    let mut view = PartsView::<AxumFramework>::new(&mut parts);
    let status_reply = match (resource.parse_request(&mut view, &id, wants_response), signals) {
        (Ok(request), Some(signals)) => {
            request.end_waits_at(signals.reached(StopPhase::Draining)).execute().await
        }
        (Ok(request), None) => request.execute().await,
        (Err(reply), _) => return reply_response(reply),
    };
    match status_reply {
        StatusReply::Complete(reply) => reply_response(reply),
        StatusReply::Events(head, events) => {
            reply_response(head).map(|_| Body::from_stream(events.map(Ok::<_, Infallible>)))
        }
        // Variant that a newer version of the core crate has added.
        _ => reply_response(Reply::misconfigured()),
    }
}

fn reply_response(reply: Reply) -> Response {
    response_from_reply::<Body>(reply).map(Body::new)
}
