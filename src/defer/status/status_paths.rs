//! Paths of the status resource: where the application mounts it, and where a 202 sends its client.
//!
//! Layers and routes are built apart. A `Location` that nothing serves is visible to the client
//! alone, so the process knows its mounts ([`StatusMount`]), and each store handle compares the
//! paths that its layers name with those under which its jobs are found ([`StatusPaths`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{defer::wiring_registry::with_process_wiring, store::Store};

/// Path that a layer names if no mount is known.
pub(super) const DEFAULT_PATH: &str = "/deferred";

/// A status resource that is mounted. It counts for as long as its routes exist.
#[derive(Debug)]
pub(in crate::defer) struct StatusMount {
    /// `None` if the path does not say where clients find the resource: the root, which is usual
    /// inside a nested router, and a path with parameters.
    path: Option<String>,
    /// `None` if the requests provide the store.
    store: Option<Store>,
    #[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "compared when a server starts"))]
    is_restricted: bool,
}

impl StatusMount {
    /// Registers a mount in the process.
    pub(super) fn register(path: &str, store: Option<&Store>, is_restricted: bool) -> Arc<Self> {
        let path = normalize_path(path).filter(|path| !path.is_empty() && !path.contains('{'));
        let mount = Arc::new(Self { path, store: store.cloned(), is_restricted });
        with_process_wiring(|wiring| wiring.add_status_mount(&mount));
        mount
    }

    /// Returns true if a job is shown to its owner alone.
    #[cfg(feature = "serve")]
    pub(in crate::defer) fn is_restricted(&self) -> bool {
        self.is_restricted
    }

    /// Returns the path to which clients may be sent, without the prefix of a nested router.
    #[cfg(feature = "serve")]
    pub(super) fn client_path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

/// Returns the paths at which this process serves the jobs of a store. Mounts without a store of
/// their own count only if no other mount is known to have this one.
fn mounted_paths(store: &Store) -> BTreeSet<String> {
    let mounts = with_process_wiring(|wiring| wiring.status_mounts());
    let has_store = |mount: &&Arc<StatusMount>| {
        mount.store.as_ref().is_some_and(|own| own.is_same_as(store) == Some(true))
    };
    let own: BTreeSet<_> =
        mounts.iter().filter(has_store).filter_map(|mount| mount.path.clone()).collect();
    if !own.is_empty() {
        return own;
    }
    let shared = mounts.iter().filter(|mount| mount.store.is_none());
    shared.filter_map(|mount| mount.path.clone()).collect()
}

/// Returns true if some mount of this process may serve the jobs of a store: its own, one whose
/// requests provide the store, or one whose store is not known to be another.
fn has_possible_mount(store: &Store) -> bool {
    let mounts = with_process_wiring(|wiring| wiring.status_mounts());
    let is_other = |own: &Store| own.is_same_as(store) == Some(false);
    mounts.iter().any(|mount| !mount.store.as_ref().is_some_and(is_other))
}

/// Returns a path with one slash in front and none at its end, the root as an empty text. `None` if
/// the path is not in the form of a URL.
pub(in crate::defer) fn normalize_path(path: &str) -> Option<String> {
    let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    // The root adds no segment: `//id` would be another path.
    let path = path.trim_matches('/');
    is_path.then(|| if path.is_empty() { String::new() } else { format!("/{path}") })
}

/// Paths of the jobs of one store handle.
#[derive(Debug, Default)]
pub(in crate::defer) struct StatusPaths(Mutex<StatusPathState>);

#[derive(Debug, Default)]
struct StatusPathState {
    /// Paths that a `Location` has named, and if a job was found there.
    announced: BTreeMap<String, bool>,
    has_warned: bool,
}

impl StatusPaths {
    /// Returns the path for a `Location`: the one that the layer sets, or that of the only mount.
    /// Warns once if nothing in this process is mounted there. Without any mount for the store, a
    /// path that the layer sets tells that another process serves it.
    pub(in crate::defer) fn announce(&self, store: &Store, configured: Option<&str>) -> String {
        let mounted = mounted_paths(store);
        let path = match (configured, mounted.first()) {
            (Some(configured), _) => configured,
            (None, Some(only)) if mounted.len() == 1 => only.as_str(),
            (None, _) => DEFAULT_PATH,
        };
        // A nested router and a proxy add a prefix.
        let is_served = match mounted.is_empty() {
            true => configured.is_some() || has_possible_mount(store),
            false => mounted.iter().any(|mount| path.ends_with(&**mount)),
        };
        let mut state = self.0.lock();
        if !state.announced.contains_key(path) {
            state.announced.insert(path.to_owned(), false);
        }
        let warns = !is_served && !mem::replace(&mut state.has_warned, true);
        drop(state);
        if warns {
            warn_dead_location(path, &mounted);
        }
        path.to_owned()
    }

    /// Notes that a job was found by a request under this path. Warns once if no `Location` has
    /// named the path, and no job was found under one that was named.
    pub(super) fn note_found(&self, served: &str) {
        let mut state = self.0.lock();
        for (announced, is_found) in &mut state.announced {
            // The prefix of a proxy is not part of the path here.
            let is_same =
                announced == served || (!served.is_empty() && announced.ends_with(served));
            *is_found |= is_same;
        }
        let Some(announced) = state.announced.keys().next().cloned() else { return };
        let is_lost = !state.announced.values().any(|is_found| *is_found);
        let warns = is_lost && !mem::replace(&mut state.has_warned, true);
        drop(state);
        if warns {
            tracing::warn!(
                served,
                announced,
                "the status of a job was requested under another path than the Location of its \
                 202; set .status_path({served:?}) on the DeferLayer, including the prefix of a \
                 proxy. Logged once"
            );
        }
    }
}

fn warn_dead_location(path: &str, mounted: &BTreeSet<String>) {
    if mounted.is_empty() {
        tracing::warn!(
            path,
            "the Location of deferred requests leads nowhere: this process has no status routes \
             for their store; add deferred_routes(..) with the store of the LockLayer to the \
             application, or set .status_path(..) on the DeferLayer if another process serves \
             them. Logged once"
        );
        return;
    }
    tracing::warn!(
        path,
        ?mounted,
        "the Location of deferred requests leads nowhere: their DeferLayer names `path`, and \
         deferred_routes is mounted elsewhere; set .status_path(..) on the DeferLayer to the path \
         of the mount, including the prefix of a nested router or a proxy. Logged once"
    );
}
