//! Warning about a GET that passes a `background` layer, logged once for each layer: it runs at
//! once, although its route may be meant for the background.

use std::sync::atomic::Ordering;

use super::defer_layer::DeferLayer;
use crate::gate::{GateRequest, RequestKind, RouteMatch};

impl<R: RequestKind> DeferLayer<R> {
    /// Warns of a request that the layer does not defer because of its method.
    ///
    /// A HEAD or OPTIONS often comes from a proxy or a browser. Once a request has met a lock, the
    /// layer has routes that it defers, and a GET beside them is usual.
    pub(super) fn warn_undeferred_get<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) {
        let settings = &*self.0;
        let is_suspect = settings.trigger.background
            && view.method() == "GET"
            && !settings.lock_presence.has_met_lock();
        if !is_suspect || settings.has_warned_of_get.load(Ordering::Relaxed) {
            return;
        }
        let RouteMatch::Matched(route) = view.route() else { return };
        if !settings.has_warned_of_get.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                layer = "DeferLayer",
                route,
                "a GET ran at once although its layer is set to `background`: safe methods are \
                 never deferred; use POST for work in the background, or put the layer around the \
                 other routes alone. Logged once for each layer"
            );
        }
    }
}
