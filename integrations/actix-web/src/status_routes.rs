//! `DeferredRoutes`: the status resource, for `App::service`, `Scope::service` and
//! `ServiceConfig::service`.

use std::convert::Infallible;

use actix_web::{
    HttpMessage as _, HttpRequest, HttpResponse, Resource,
    body::{BodyStream, BoxBody},
    dev::{AppService, HttpServiceFactory},
    web,
};
use futures_util::StreamExt as _;
use lockgate::{
    Reply, RequestUser, Store,
    defer::{StatusReply, StatusResource},
    driver::{GateRequest as _, StopPhase, StopSignals},
};

use crate::{
    actix_framework::ActixFramework, reply_to_response::response_from_reply,
    request_view::RequestView,
};

/// Routes of the status resource of deferred requests. Created by [`deferred_routes`].
///
/// ```
/// # use actix_web::App;
/// # use lockgate_actix_web::{Store, deferred_routes};
/// let app = App::new().service(deferred_routes("/deferred").store(&Store::memory()));
/// # drop(app);
/// ```
#[derive(Debug, Clone)]
#[must_use = "the routes must be mounted"]
pub struct DeferredRoutes {
    path: String,
    resource: StatusResource<HttpRequest>,
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
/// # use actix_web::{App, test::{TestRequest, call_service, init_service}};
/// # use lockgate_actix_web::{Store, deferred_routes};
/// # #[actix_web::main]
/// # async fn main() {
/// let routes = deferred_routes("/deferred").store(&Store::memory());
/// let app = init_service(App::new().service(routes)).await;
///
/// let unknown = TestRequest::get().uri("/deferred/0123456789abcdef").to_request();
/// assert_eq!(call_service(&app, unknown).await.status(), 404);
/// # }
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
    /// # use actix_web::App;
    /// # use lockgate_actix_web::{ExtensionSnapshot, RequestUser, Store, deferred_routes};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # impl RequestUser for User {
    /// #     fn owner(&self) -> String { format!("user:{}", self.id) }
    /// # }
    /// let routes = deferred_routes("/deferred").store(&Store::memory()).for_user::<User>();
    /// let app = App::new().service(routes); // then the authentication, by `wrap`
    /// # drop(app);
    /// ```
    pub fn for_user<U: RequestUser>(self) -> Self {
        Self { resource: self.resource.for_user::<ActixFramework, U>(), ..self }
    }

    /// Shows a job only to its [owner](crate::DeferLayer::owner), or to the
    /// [identity](crate::DeferLayer::carry_identity) that was carried with it.
    ///
    /// See the core's [`visible_to`](lockgate::defer::StatusResource::visible_to).
    ///
    /// ```
    /// # use actix_web::{App, HttpMessage as _};
    /// # use lockgate_actix_web::{Store, deferred_routes};
    /// # #[derive(Clone)]
    /// # struct User { id: u64 }
    /// let routes = deferred_routes("/deferred").store(&Store::memory()).visible_to(|request| {
    ///     let extensions = request.extensions();
    ///     let user = extensions.get::<User>()?; // by an authentication outside
    ///     Some(format!("user:{}", user.id)) // as in `DeferLayer::carry_identity`
    /// });
    /// let app = App::new().service(routes);
    /// # drop(app);
    /// ```
    pub fn visible_to(
        self,
        viewer: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { resource: self.resource.visible_to(viewer), ..self }
    }

    /// Like [`visible_to`](Self::visible_to), for a viewer that has to be looked up, such as in a
    /// session or a database.
    ///
    /// See the core's [`visible_to_async`](lockgate::defer::StatusResource::visible_to_async).
    pub fn visible_to_async<F>(
        self,
        viewer: impl Fn(&HttpRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        Self { resource: self.resource.visible_to_async(viewer), ..self }
    }
}

impl HttpServiceFactory for DeferredRoutes {
    fn register(self, config: &mut AppService) {
        let Self { path, resource } = self;
        let resource = resource.mounted_at(&path);
        status_resource(&format!("{path}/{{id}}"), resource.clone(), false).register(config);
        status_resource(&format!("{path}/{{id}}/response"), resource, true).register(config);
    }
}

/// Creates the resource of the status document, or of the stored response if `wants_response` is
/// set.
fn status_resource(
    path: &str,
    resource: StatusResource<HttpRequest>,
    wants_response: bool,
) -> Resource {
    web::resource(path)
        .to(move |request: HttpRequest| status_response(resource.clone(), request, wants_response))
}

async fn status_response(
    resource: StatusResource<HttpRequest>,
    request: HttpRequest,
    wants_response: bool,
) -> HttpResponse {
    let mut view = RequestView::new(&request);
    // An unreadable value is not an id, and gets the 404 of an unknown one.
    let id = view.path_param("id").ok().flatten().unwrap_or_default();
    let signals = request.extensions().get::<StopSignals>().cloned();
    let status_reply = match (resource.parse_request(&mut view, &id, wants_response), signals) {
        (Ok(request), Some(signals)) => {
            request.end_waits_at(signals.reached(StopPhase::Draining)).execute().await
        }
        (Ok(request), None) => request.execute().await,
        (Err(reply), _) => return response_from_reply(reply),
    };
    match status_reply {
        StatusReply::Complete(reply) => response_from_reply(reply),
        StatusReply::Events(head, events) => {
            let body = BodyStream::new(events.map(Ok::<_, Infallible>));
            response_from_reply(head).set_body(BoxBody::new(body))
        }
        // Variant that a newer version of the core crate has added.
        _ => response_from_reply(Reply::misconfigured()),
    }
}
