//! `ConsoleRoutes`: the operators' console as a `Router`.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures_util::StreamExt as _;
use http::request::Parts;
use lockgate::{
    Reply, Store,
    console::{ConsoleGuard, ConsoleReply, ConsoleResource},
    middleware::{Framework as _, PartsView, response_from_reply},
};

use crate::axum_framework::AxumFramework;

/// Routes of the operators' console. Created by [`console`].
#[derive(Debug, Clone)]
#[must_use = "the routes must be mounted"]
pub struct ConsoleRoutes {
    path: String,
    resource: ConsoleResource<Parts>,
}

/// Creates the operators' console at this path: pages of locks, limits, deferred requests, queues
/// and processes, with actions for operators who may act.
///
/// `guard` decides who may open it, for every request: a function of the request's head that
/// returns an [`Operator`](lockgate::admin::Operator), or a ready-made one,
/// [`LocalOperator`](crate::LocalOperator) or
/// [`BasicAuth`](crate::BasicAuth). There is no console without a guard.
///
/// The page is embedded in the library and loads nothing from elsewhere. Actions need the page's
/// own origin. Mount it outside of layers that limit or lock requests: it is needed most when they
/// refuse.
///
/// ```
/// # use axum::Router;
/// use lockgate_axum::{LocalOperator, Store, admin::Permission, console};
///
/// let guard = LocalOperator::new(Permission::Act);
/// let app: Router = Router::new().merge(console("/ops", guard).store(&Store::memory()));
/// # drop(app);
/// ```
pub fn console(path: &str, guard: impl ConsoleGuard<Parts>) -> ConsoleRoutes {
    ConsoleRoutes {
        path: format!("/{}", path.trim_matches('/')),
        resource: ConsoleResource::new(guard),
    }
}

impl ConsoleRoutes {
    /// Uses this store instead of the one that the request provides.
    pub fn store(self, store: &Store) -> Self {
        Self { resource: self.resource.store(store), ..self }
    }
}

impl<S: Clone + Send + Sync + 'static> From<ConsoleRoutes> for Router<S> {
    fn from(routes: ConsoleRoutes) -> Self {
        let ConsoleRoutes { path, resource } = routes;
        let mount = path.trim_end_matches('/').to_owned();
        let route = any(move |request: Request| console_response(resource.clone(), request));
        let router = Self::new()
            .route(&format!("{mount}/"), route.clone())
            .route(&format!("{mount}/{{*path}}"), route.clone());
        if mount.is_empty() { router } else { router.route(&mount, route) }
    }
}

async fn console_response(resource: ConsoleResource<Parts>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let path = AxumFramework::path_param(&mut parts, "path").ok().flatten().unwrap_or_default();
    let mut view = PartsView::<AxumFramework>::new(&mut parts);
    let request = match resource.parse_request(&mut view, &target, &path) {
        Ok(request) => request,
        Err(reply) => return reply_response(reply),
    };
    let body = if request.wants_body() { body } else { Body::empty() };
    let Ok(body) = axum::body::to_bytes(body, ConsoleResource::<Parts>::MAX_BODY_LEN).await else {
        return reply_response(ConsoleResource::<Parts>::unusable_body_reply());
    };
    match request.execute(&body).await {
        ConsoleReply::Complete(reply) => reply_response(reply),
        ConsoleReply::Events(head, events) => {
            reply_response(head).map(|_| Body::from_stream(events.map(Ok::<_, Infallible>)))
        }
        // Variant that a newer version of the core crate has added.
        _ => reply_response(Reply::misconfigured()),
    }
}

fn reply_response(reply: Reply) -> Response {
    response_from_reply::<Body>(reply).map(Body::new)
}
