//! `StatusGate`: reads a request to the status resource.

use std::{fmt, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{
    fields::{last_event, matched, wait, wants_events},
    request::{Asks, StatusRequest, What},
};
use crate::{
    gate::View,
    reply::{Reply, problem},
    store::{JobId, Store},
};

/// Who asks.
type Knows<N> = dyn Fn(&N) -> Option<String> + Send + Sync;
type Finds<N> = dyn Fn(&N) -> BoxFuture<'static, Option<String>> + Send + Sync;

enum Asker<N: ?Sized> {
    AtOnce(Arc<Knows<N>>),
    Later(Arc<Finds<N>>),
}

impl<N: ?Sized> Asker<N> {
    fn ask(&self, request: &N) -> Asks {
        match self {
            Self::AtOnce(asker) => Asks::Known(asker(request)),
            Self::Later(asker) => Asks::ToBeFound(asker(request)),
        }
    }
}

impl<N: ?Sized> Clone for Asker<N> {
    fn clone(&self) -> Self {
        match self {
            Self::AtOnce(asker) => Self::AtOnce(Arc::clone(asker)),
            Self::Later(asker) => Self::Later(Arc::clone(asker)),
        }
    }
}

/// The status resource, for an integration to mount.
pub struct StatusGate<N: ?Sized> {
    store: Option<Store>,
    asker: Option<Asker<N>>,
}

impl<N: ?Sized> StatusGate<N> {
    /// Visible to whoever knows an id.
    #[must_use]
    pub fn new() -> Self {
        Self { store: None, asker: None }
    }

    /// Answers from this store, whatever the request brings along.
    #[must_use]
    pub fn store(mut self, store: &Store) -> Self {
        self.store = Some(store.clone());
        self
    }

    /// See `DeferredRoutes::visible_to`.
    #[must_use]
    pub fn visible_to(
        mut self,
        asker: impl Fn(&N) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.asker = Some(Asker::AtOnce(Arc::new(asker)));
        self
    }

    /// See `DeferredRoutes::visible_to_async`.
    #[must_use]
    pub fn visible_to_async<F>(mut self, asker: impl Fn(&N) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        self.asker = Some(Asker::Later(Arc::new(move |request| asker(request).boxed())));
        self
    }

    /// Reads a request for this id; `response` is true for `.../response`.
    ///
    /// # Errors
    ///
    /// The answer, if there is nothing to ask the store.
    pub fn ask<V: View<Native = N>>(
        &self,
        view: &mut V,
        id: &str,
        response: bool,
    ) -> Result<StatusRequest, Reply> {
        let what = match view.method() {
            "GET" | "HEAD" if response => What::Response,
            // What streams has no length, nor anything else that a HEAD could tell.
            "GET" if wants_events(&view.header("accept")) => {
                What::Events { seen: last_event(&view.header("last-event-id")) }
            }
            "GET" | "HEAD" => What::Document { known: matched(&view.header("if-none-match")) },
            "DELETE" if !response => What::Cancel,
            _ => {
                let allow = if response { "GET, HEAD" } else { "GET, HEAD, DELETE" };
                let reply = Reply::problem(405, problem::METHOD, "Method not allowed");
                return Err(reply.field("allow", allow));
            }
        };
        let store = self.store.clone().or_else(|| view.store());
        let store = store.ok_or_else(|| crate::outage::no_store("deferred_routes"))?;
        let asks = self.asker.as_ref().map_or(Asks::Anybody, |asker| asker.ask(view.native()));
        let wait = wait(&view.header("prefer"));
        Ok(StatusRequest { store, id: JobId::parse(id), what, wait, asks })
    }
}

impl<N: ?Sized> Default for StatusGate<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: ?Sized> Clone for StatusGate<N> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), asker: self.asker.clone() }
    }
}

impl<N: ?Sized> fmt::Debug for StatusGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusGate").field("store", &self.store).finish_non_exhaustive()
    }
}
