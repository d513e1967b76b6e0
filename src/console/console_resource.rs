//! [`ConsoleResource`]: settings of the console, and the first steps of a request: guard, origin,
//! method, path.

use std::{fmt, sync::Arc};

use super::{
    console_assets::with_security_headers,
    console_guard::{ConsoleGuard, admit_operator, refusal},
    console_request::{ConsoleRequest, ConsoleRoute},
    guard_request::GuardRequest,
    request_origin::is_same_origin,
};
use crate::{
    admin::Operator,
    gate::GateRequest,
    reply::{Reply, problem},
    store::Store,
};

/// The console, for an integration to mount. `N` is the framework's request.
pub struct ConsoleResource<N: ?Sized + 'static> {
    guard: Arc<dyn ConsoleGuard<N>>,
    store: Option<Store>,
}

impl<N: ?Sized + 'static> ConsoleResource<N> {
    /// Longest body of an action in bytes.
    pub const MAX_BODY_LEN: usize = 16 * 1024;

    /// Returns the reply to a body that is too long or cannot be read.
    #[must_use]
    pub fn unusable_body_reply() -> Reply {
        let title = "The body is too long or cannot be read";
        with_security_headers(Reply::problem(413, problem::BAD_CONSOLE_REQUEST, title))
    }

    /// Creates a console with this guard, which decides about every request.
    #[must_use]
    pub fn new(guard: impl ConsoleGuard<N>) -> Self {
        Self { guard: Arc::new(guard), store: None }
    }

    /// Uses this store instead of the one that the request provides.
    #[must_use]
    pub fn store(mut self, store: &Store) -> Self {
        self.store = Some(store.clone());
        self
    }

    /// Parses a request. `target` is its path and query as sent, and `path` the decoded part of the
    /// path behind the mount and its slash.
    ///
    /// The body is read only after this has succeeded, at most
    /// [`MAX_BODY_LEN`](Self::MAX_BODY_LEN) bytes of it.
    ///
    /// # Errors
    ///
    /// Returns the reply if the request is refused, or is not one of the console's.
    pub fn parse_request<V: GateRequest<NativeRequest = N>>(
        &self,
        view: &mut V,
        target: &str,
        path: &str,
    ) -> Result<ConsoleRequest, Reply> {
        let operator = admit_operator(&*self.guard, view)?;
        let request = GuardRequest::new(view);
        let (requested_path, query) = target.split_once('?').unwrap_or((target, ""));
        if let Some(mount) = requested_path.rsplit('/').next().filter(|name| !name.is_empty())
            && path.is_empty()
        {
            // The page's addresses are relative to the mount with its slash.
            let reply = Reply::new(308).header("location", format!("{mount}/"));
            return Err(with_security_headers(reply));
        }
        let route =
            ConsoleRoute::parse(view.method(), path, query).map_err(with_security_headers)?;
        if route.is_action() {
            if !is_same_origin(&request) {
                warn_cross_origin_action(&operator, &request);
                return Err(refusal("Actions are sent by the console's own page only"));
            }
            let is_json = request.header("content-type").is_some_and(|kind| {
                kind.split(|byte| *byte == b';').next().map(<[u8]>::trim_ascii)
                    == Some(b"application/json")
            });
            if !is_json {
                let reply =
                    Reply::problem(415, problem::BAD_CONSOLE_REQUEST, "Send application/json");
                return Err(with_security_headers(reply));
            }
        }
        let store = self.store.clone().or_else(|| view.store());
        let store = store
            .ok_or_else(|| with_security_headers(crate::outage::missing_store_reply("console")))?;
        Ok(ConsoleRequest { store, operator, route })
    }
}

/// Warns of an action that another page has sent with the operator's credentials. It is not in the
/// audit log: such a page could fill it.
fn warn_cross_origin_action(operator: &Operator, request: &GuardRequest) {
    let text = |name| request.header(name).map(String::from_utf8_lossy);
    crate::throttle::throttled!(
        warn,
        operator = operator.name(),
        origin = text("origin").as_deref(),
        site = text("sec-fetch-site").as_deref(),
        "an action was sent to the console by another page than its own, and refused: has the \
         operator opened a page that abuses the console, or does a proxy change the Host?"
    );
}

impl<N: ?Sized + 'static> Clone for ConsoleResource<N> {
    fn clone(&self) -> Self {
        Self { guard: Arc::clone(&self.guard), store: self.store.clone() }
    }
}

impl<N: ?Sized + 'static> fmt::Debug for ConsoleResource<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ConsoleResource")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
