//! Requests that pass a `DeferLayer` and meet no `LockLayer` inside it. The layer can never defer
//! such a request, because the lock decides whether a request is deferred.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use super::defer_layer::DeferLayer;
use crate::{
    gate::{
        GateRequest, LeaveAction, LockInstruction, ParkingSlot, RequestKind, RouteMatch,
        ServiceOutcome, has_lock_layer,
    },
    reply::Reply,
};

/// Most routes that are known to have no lock; the routes of more are tried each time. A client can
/// invent methods, and each one counts as a route of its own.
const MAX_UNLOCKED_ROUTES: usize = 256;

/// Locks inside a layer and its clones, as their requests have met them.
#[derive(Debug, Default)]
pub(super) struct LockPresence {
    /// A request has met a `LockLayer`.
    has_met_lock: AtomicBool,
    /// Methods and routes of requests that were served without meeting a `LockLayer`, although the
    /// layer runs nothing directly.
    unlocked_routes: Mutex<BTreeSet<String>>,
}

impl LockPresence {
    /// Returns true if the request of this slot has met a `LockLayer`, and remembers that one is
    /// there.
    pub(super) fn observe(&self, slot: &ParkingSlot) -> bool {
        let has_met_lock = slot.has_met_lock_layer();
        // Read first: the flag is shared by all requests, and is set by the first one.
        if has_met_lock && !self.has_met_lock() {
            self.has_met_lock.store(true, Ordering::Relaxed);
        }
        has_met_lock
    }

    pub(super) fn has_met_lock(&self) -> bool {
        self.has_met_lock.load(Ordering::Relaxed)
    }

    /// Returns true if the route is remembered from now on.
    fn remember_unlocked(&self, route: &str) -> bool {
        let mut routes = self.unlocked_routes.lock();
        routes.len() < MAX_UNLOCKED_ROUTES && routes.insert(route.to_owned())
    }

    fn is_unlocked(&self, route: &str) -> bool {
        self.unlocked_routes.lock().contains(route)
    }
}

impl<R: RequestKind> DeferLayer<R> {
    /// Returns method and route of a request, for a report that it met no lock. `None` if the
    /// router has not run yet, or if no report is to be expected.
    pub(super) fn route_to_report<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Option<String> {
        let may_report = self.0.trigger.background || !self.0.lock_presence.has_met_lock();
        match may_report.then(|| view.route())? {
            RouteMatch::Matched(route) => Some(format!("{} {route}", view.method())),
            RouteMatch::Unmatched | RouteMatch::Unknown => None,
        }
    }

    /// Refuses a request of a `background` layer that would run at once: there is no `LockLayer`
    /// at all, or an earlier request of its route was served without one.
    pub(super) fn refuse_unlocked(&self, route: Option<&str>) -> Option<Reply> {
        if !self.0.trigger.background {
            return None;
        }
        if !has_lock_layer() {
            crate::throttle::throttled!(
                error,
                layer = "DeferLayer",
                route,
                "request refused: the layer is set to `background`, and this process has created \
                 no LockLayer; add a LockLayer inside the DeferLayer"
            );
            return Some(Reply::misconfigured());
        }
        let route = route.filter(|route| self.0.lock_presence.is_unlocked(route))?;
        crate::throttle::throttled!(
            error,
            layer = "DeferLayer",
            route,
            "request refused: the layer is set to `background`, and an earlier request of this \
             route met no LockLayer; add a LockLayer inside the DeferLayer"
        );
        Some(Reply::misconfigured())
    }

    /// Settles a request that no lock has parked, and reports it if it met no lock.
    ///
    /// An error of a layer in between (401, 404, 429) stands and is not reported, since it reached
    /// no handler. A redirect may be that of a login, so it does not prove that there is no lock.
    pub(super) fn settle_unparked<T, P>(
        &self,
        slot: &ParkingSlot,
        route: Option<&str>,
        outcome: ServiceOutcome,
    ) -> LeaveAction<T, P> {
        let has_met_lock = self.0.lock_presence.observe(slot);
        let Some(status) = outcome.status().filter(|status| *status < 400) else {
            return LeaveAction::AddHeaders(Vec::new());
        };
        let is_unlocked = status < 300 && !has_met_lock;
        if slot.instruction() == LockInstruction::ParkOrRefuse && !slot.has_reached_lock() {
            let is_new_route = route
                .filter(|_| is_unlocked)
                .is_some_and(|route| self.0.lock_presence.remember_unlocked(route));
            log_unlocked_run(route, is_new_route);
            return LeaveAction::Replace(Reply::misconfigured());
        }
        // One layer may be around many routes, some of them without a lock.
        if is_unlocked && !self.0.lock_presence.has_met_lock() {
            crate::throttle::throttled!(
                warn,
                layer = "DeferLayer",
                route,
                "request not deferrable: it passed a DeferLayer and met no LockLayer inside it; \
                 add a LockLayer inside the DeferLayer (axum: .layer() before the DeferLayer, \
                 actix-web: .wrap() before it), or remove the DeferLayer"
            );
        }
        LeaveAction::AddHeaders(Vec::new())
    }
}

/// Logs a request of a `background` layer that has run at once: for each new route, of which no
/// further request runs, and otherwise once a minute.
fn log_unlocked_run(route: Option<&str>, is_new_route: bool) {
    let suppressed = crate::throttle::admit("DeferLayer: background without a lock");
    if is_new_route || suppressed.is_some() {
        tracing::error!(
            layer = "DeferLayer",
            route,
            suppressed,
            "request answered with 500: the layer is set to `background`, but no LockLayer inside \
             it locked the request, so it ran at once; add a LockLayer inside the DeferLayer"
        );
    }
}
