//! `StatusResource`: the settings of the status resource, and the parser of its requests.

use std::{fmt, sync::Arc};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, pending},
};

use super::{
    request_headers::{accepts_event_stream, parse_if_none_match, parse_last_event_id, parse_wait},
    status_paths::StatusMount,
    status_request::{StatusAction, StatusRequest, StatusViewer, not_found_reply},
};
use crate::{
    defer::RequestUser,
    gate::{GateRequest, RequestKind, RouteMatch, StatusProbe},
    reply::{Reply, problem},
    store::{JobId, Store},
};

/// Returns the identity of the viewer.
type ViewerFn<N> = dyn Fn(&N) -> Option<String> + Send + Sync;
type AsyncViewerFn<N> = dyn Fn(&N) -> BoxFuture<'static, Option<String>> + Send + Sync;

enum ViewerSource<N: ?Sized> {
    Sync(Arc<ViewerFn<N>>),
    Async(Arc<AsyncViewerFn<N>>),
}

impl<N: ?Sized> ViewerSource<N> {
    fn identify(&self, request: &N) -> StatusViewer {
        match self {
            Self::Sync(viewer) => StatusViewer::Identified(viewer(request)),
            Self::Async(viewer) => StatusViewer::Pending(viewer(request)),
        }
    }
}

impl<N: ?Sized> Clone for ViewerSource<N> {
    fn clone(&self) -> Self {
        match self {
            Self::Sync(viewer) => Self::Sync(Arc::clone(viewer)),
            Self::Async(viewer) => Self::Async(Arc::clone(viewer)),
        }
    }
}

/// The status resource of deferred requests, for an integration to mount.
pub struct StatusResource<N: ?Sized> {
    store: Option<Store>,
    viewer: Option<ViewerSource<N>>,
    /// Shared by the clones, of which each route has one.
    mount: Option<Arc<StatusMount>>,
}

impl<N: ?Sized> StatusResource<N> {
    /// Creates a resource in which every job is visible to any client that knows its id.
    #[must_use]
    pub fn new() -> Self {
        Self { store: None, viewer: None, mount: None }
    }

    /// Uses this store instead of the one that the request provides.
    #[must_use]
    pub fn store(mut self, store: &Store) -> Self {
        self.store = Some(store.clone());
        self
    }

    /// Shows a job only to its user, the one that
    /// [`DeferLayer::for_user`](crate::defer::DeferLayer::for_user) has stored with it. Default:
    /// every client that knows the id, which is 128 random bits.
    ///
    /// It is [`visible_to`](Self::visible_to) the [owner](RequestUser::owner) of the user in the
    /// request's extensions, so the authentication is outside the status routes. A request without
    /// a user sees no job; the response is the 404 of an unknown id, and a warning is logged, at
    /// most once a minute.
    ///
    /// `R` is the kind of the request, such as `PlainHttp`. The `deferred_routes` of the
    /// integrations take the user alone: `deferred_routes("/deferred").for_user::<User>()`.
    ///
    /// ```
    /// # use http::request::Parts;
    /// # use lockgate::{defer::StatusResource, middleware::PlainHttp};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # impl lockgate::RequestUser for User {
    /// #     fn owner(&self) -> String { format!("user:{}", self.id) }
    /// # }
    /// let status = StatusResource::<Parts>::new().for_user::<PlainHttp, User>();
    /// # drop(status);
    /// ```
    #[must_use]
    pub fn for_user<R: RequestKind<Native = N>, U: RequestUser>(self) -> Self {
        self.visible_to(|request| {
            let viewer = R::read_extension(request, U::owner);
            if viewer.is_none() {
                crate::throttle::throttled!(
                    warn,
                    "a request to the status routes sees no job: no {} in the request's \
                     extensions; put the authentication outside of deferred_routes(..) too",
                    std::any::type_name::<U>()
                );
            }
            viewer
        })
    }

    /// Shows a job only to its [owner](crate::defer::DeferLayer::owner), or to the
    /// [identity](crate::defer::DeferLayer::carry_identity) that was carried with it. The function
    /// returns the viewer of a request.
    ///
    /// Default: every client that knows the id, which is 128 random bits.
    #[must_use]
    pub fn visible_to(
        mut self,
        viewer: impl Fn(&N) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.viewer = Some(ViewerSource::Sync(Arc::new(viewer)));
        self
    }

    /// Like [`visible_to`](Self::visible_to), for a viewer that has to be looked up, such as in a
    /// session or a database.
    ///
    /// The function takes the data that it needs from the request, and the future that it returns
    /// continues with them. It is awaited once for each request, before the store is asked, without
    /// a time limit. If it returns `None`, the response is the 404 of an unknown id.
    #[must_use]
    pub fn visible_to_async<F>(mut self, viewer: impl Fn(&N) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        self.viewer = Some(ViewerSource::Async(Arc::new(move |request| viewer(request).boxed())));
        self
    }

    /// Registers the path at which an integration mounts the resource, for as long as the resource
    /// and its clones exist. A [`DeferLayer`](crate::defer::DeferLayer::status_path) without a path
    /// of its own sends its clients there.
    ///
    /// Set the [store](Self::store) and the viewer before: a mount with a store is that of its jobs
    /// alone, and a server warns of one that shows every job beside layers whose jobs have owners.
    /// The root and a path with parameters do not say where clients find the resource, so no client
    /// is sent there.
    ///
    /// ```
    /// # use lockgate::{Store, defer::StatusResource};
    /// let store = Store::memory();
    /// let status = StatusResource::<http::request::Parts>::new().store(&store);
    /// let status = status.mounted_at("/jobs"); // `Location: /jobs/{id}`
    /// # drop(status);
    /// ```
    #[must_use]
    pub fn mounted_at(mut self, path: &str) -> Self {
        self.mount = Some(StatusMount::register(path, self.store.as_ref(), self.viewer.is_some()));
        self
    }

    /// Parses a request for this id; `response` is true for `.../response`.
    ///
    /// # Errors
    ///
    /// Returns the reply if no query of the store is needed.
    pub fn parse_request<V: GateRequest<NativeRequest = N>>(
        &self,
        view: &mut V,
        id: &str,
        response: bool,
    ) -> Result<StatusRequest, Reply> {
        if let Some(probe) = view.extension::<StatusProbe>() {
            probe.note_found();
            return Err(not_found_reply());
        }
        let action = match view.method() {
            "GET" | "HEAD" if response => StatusAction::Response,
            // An event stream has neither a length nor other metadata for a HEAD.
            "GET" if accepts_event_stream(&view.header_values("accept")) => StatusAction::Events {
                last_event_id: parse_last_event_id(&view.header_values("last-event-id")),
            },
            "GET" | "HEAD" => StatusAction::Document {
                if_none_match: parse_if_none_match(&view.header_values("if-none-match")),
            },
            "DELETE" if !response => StatusAction::Cancel,
            _ => {
                let allow = if response { "GET, HEAD" } else { "GET, HEAD, DELETE" };
                let reply = Reply::problem(405, problem::METHOD_NOT_ALLOWED, "Method not allowed");
                return Err(reply.header("allow", allow));
            }
        };
        let store = self.store.clone().or_else(|| view.store());
        let store = store.ok_or_else(|| crate::outage::missing_store_reply("deferred_routes"))?;
        let viewer = self
            .viewer
            .as_ref()
            .map_or(StatusViewer::Anyone, |source| source.identify(view.native_request()));
        let wait = parse_wait(&view.header_values("prefer"));
        let served_path = served_path(&view.route());
        let (id, wait_end) = (JobId::parse(id), pending().boxed().shared());
        Ok(StatusRequest { store, id, action, wait, viewer, served_path, wait_end })
    }
}

/// Returns the path under which the resource was requested, as far as the router tells it.
fn served_path(route: &RouteMatch) -> Option<String> {
    let RouteMatch::Matched(pattern) = route else { return None };
    let document = pattern.strip_suffix("/response").unwrap_or(pattern);
    let (path, id) = document.rsplit_once('/')?;
    (id.starts_with('{') && !path.contains('{')).then(|| path.to_owned())
}

impl<N: ?Sized> Default for StatusResource<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: ?Sized> Clone for StatusResource<N> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), viewer: self.viewer.clone(), mount: self.mount.clone() }
    }
}

impl<N: ?Sized> fmt::Debug for StatusResource<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusResource").field("store", &self.store).finish_non_exhaustive()
    }
}
