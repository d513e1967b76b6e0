//! `WiringRegistry`: which layers, workers and status routes this process has put together, to
//! report parts that do not fit.
//!
//! A user is carried by three parts that are built apart: the layer stores it, the worker restores
//! it, and the status routes compare with it. One part without the others would fail in silence,
//! for the client alone. Two scopes hold what is known:
//!
//! - **The process**: layers and workers, by the names of their snapshots, and the mounts of the
//!   status routes. A layer does not know its store before a request has arrived, so it is compared
//!   with any worker only while this process has a single store; one that was dropped (the kit of
//!   an earlier test) does not count. With several stores (tests in threads, one Redis for quotas
//!   and another one for jobs) a worker may rightly lack a snapshot.
//! - **The store** ([`WiringRegistry`], an extension of the handle that its clones share): parts
//!   that know their store, for a process with several. A worker knows it at once, a layer when its
//!   first request has met its lock. Faults of the status routes are logged once.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use super::{extension_snapshot::SnapshotNames, status::StatusMount};
use crate::{
    error::Error,
    store::{Store, live_store_count},
};

/// Layers and running workers of this process or of a store.
///
/// The pointers are weak: a part counts for as long as it exists. A test thus does not see the
/// layers of an earlier test.
#[derive(Debug, Default)]
struct WiredParts {
    /// Layers around a service.
    layers: Vec<LayerRecord>,
    /// Names of the snapshots that each running worker restores.
    workers: Vec<Weak<SnapshotNames>>,
}

/// Layer around a service.
#[derive(Debug)]
struct LayerRecord {
    /// Names of the snapshots that it carries.
    carried: Weak<SnapshotNames>,
    /// Path of the status resource that it sets.
    status_path: Option<String>,
    /// Its jobs have owners.
    has_owners: bool,
}

impl WiredParts {
    /// Adds a layer. Returns false if it is known: routers apply a layer once for each route.
    fn add_layer(
        &mut self,
        carried: &Arc<SnapshotNames>,
        status_path: Option<&str>,
        has_owners: bool,
    ) -> bool {
        let carried = Arc::downgrade(carried);
        let mut known = self.layers.iter();
        if known.any(|layer| {
            layer.carried.ptr_eq(&carried)
                && layer.status_path.as_deref() == status_path
                && layer.has_owners == has_owners
        }) {
            return false;
        }
        self.layers.retain(|layer| layer.carried.strong_count() > 0);
        let status_path = status_path.map(str::to_owned);
        self.layers.push(LayerRecord { carried, status_path, has_owners });
        true
    }

    fn add_worker(&mut self, restored: &Arc<SnapshotNames>) {
        self.workers.retain(|known| known.strong_count() > 0);
        self.workers.push(Arc::downgrade(restored));
    }

    /// Returns a snapshot that some layer carries and a worker with these restorers lacks.
    fn snapshot_missing_in(&self, restored: &SnapshotNames) -> Option<&'static str> {
        let mut layers = self.layers.iter().filter_map(|layer| layer.carried.upgrade());
        layers.find_map(|carried| carried.difference(restored).next().copied())
    }

    /// Returns a snapshot that a worker with these restorers restores and no layer carries. `None`
    /// without layers, which are then in other processes.
    fn snapshot_missing_in_layers(&self, restored: &SnapshotNames) -> Option<&'static str> {
        let layers = self.layers.iter().filter_map(|layer| layer.carried.upgrade());
        let layers: Vec<_> = layers.collect();
        let is_carried = |name: &&str| layers.iter().any(|carried| carried.contains(name));
        restored.iter().copied().find(|name| !layers.is_empty() && !is_carried(name))
    }

    /// Returns a snapshot of this layer that some running worker lacks.
    fn snapshot_missing_in_workers(&self, carried: &SnapshotNames) -> Option<&'static str> {
        let mut workers = self.workers.iter().filter_map(Weak::upgrade);
        workers.find_map(|restored| carried.difference(&restored).next().copied())
    }

    /// Adds a layer. Returns a snapshot of it that some running worker lacks.
    fn add_and_check_layer(
        &mut self,
        carried: &Arc<SnapshotNames>,
        status_path: Option<&str>,
        has_owners: bool,
    ) -> Option<&'static str> {
        let is_new = self.add_layer(carried, status_path, has_owners);
        is_new.then(|| self.snapshot_missing_in_workers(carried)).flatten()
    }
}

/// Parts of this process.
#[derive(Debug, Default)]
pub(super) struct ProcessWiring {
    parts: WiredParts,
    /// Status resources that are mounted.
    status_mounts: Vec<Weak<StatusMount>>,
}

impl ProcessWiring {
    /// Returns the path of the status resource of each layer, `None` for the default.
    #[cfg(feature = "serve")]
    pub(super) fn layer_status_paths(&self) -> impl Iterator<Item = Option<&str>> {
        let layers = self.parts.layers.iter().filter(|layer| layer.carried.strong_count() > 0);
        layers.map(|layer| layer.status_path.as_deref())
    }

    pub(super) fn add_status_mount(&mut self, mount: &Arc<StatusMount>) {
        self.status_mounts.retain(|known| known.strong_count() > 0);
        self.status_mounts.push(Arc::downgrade(mount));
    }

    pub(super) fn status_mounts(&self) -> Vec<Arc<StatusMount>> {
        self.status_mounts.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Uses the wiring of this process.
#[cfg(not(test))]
pub(super) fn with_process_wiring<O>(access: impl FnOnce(&mut ProcessWiring) -> O) -> O {
    use std::sync::LazyLock;

    static WIRING: LazyLock<Mutex<ProcessWiring>> = LazyLock::new(Mutex::default);
    access(&mut WIRING.lock())
}

/// Like the function above, for each thread: tests run in parallel, and some wire parts wrongly.
#[cfg(test)]
pub(super) fn with_process_wiring<O>(access: impl FnOnce(&mut ProcessWiring) -> O) -> O {
    use std::cell::RefCell;

    thread_local!(static WIRING: RefCell<ProcessWiring> = RefCell::default());
    WIRING.with(|wiring| access(&mut wiring.borrow_mut()))
}

/// Returns true if all layers, workers and routes of this process use the same store.
fn has_single_store() -> bool {
    live_store_count() <= 1
}

/// Records a layer when it is put around a service. Logs an error if a worker that runs already
/// lacks one of its snapshots; a worker that starts later [fails](check_worker).
pub(super) fn record_layer(
    carried: &Arc<SnapshotNames>,
    status_path: Option<&str>,
    has_owners: bool,
) {
    let missing = with_process_wiring(|wiring| {
        wiring.parts.add_and_check_layer(carried, status_path, has_owners)
    });
    if let Some(snapshot) = missing.filter(|_| has_single_store()) {
        log_unrestored_snapshot(snapshot);
    }
}

fn log_unrestored_snapshot(snapshot: &str) {
    crate::throttle::throttled!(
        error,
        layer = "DeferLayer",
        snapshot,
        "the layer carries a snapshot that a DeferWorker of this process does not restore, so its \
         requests would not run; add .for_user::<U>() or .restore_extension::<T>() to the worker"
    );
}

/// Checks a worker of this store that is about to start.
///
/// # Errors
///
/// [`ErrorKind::Config`](crate::ErrorKind) if a layer of this process carries a snapshot that the
/// worker does not restore, and the layer uses this store or the process has no other one. Its
/// requests would return to their queue again and again.
pub(super) fn check_worker(store: &Store, restored: &SnapshotNames) -> Result<(), Error> {
    let missing = match has_single_store() {
        true => with_process_wiring(|wiring| wiring.parts.snapshot_missing_in(restored)),
        false => None,
    };
    let registry = store.extension::<WiringRegistry>();
    match missing.or_else(|| registry.parts.lock().snapshot_missing_in(restored)) {
        None => Ok(()),
        Some(snapshot) => Err(Error::setting(format!(
            "DeferWorker::run: a DeferLayer of this process carries the snapshot {snapshot:?}, \
             which this worker does not restore, so its requests would not run; add \
             .for_user::<U>() to the worker, as to the layer (or .restore_extension::<T>() for a \
             layer with .carry_identity::<T>(..) or .carry_extension::<T>())"
        ))),
    }
}

/// Warns of a worker that restores a snapshot which no layer of this process carries, if the
/// process has layers and a single store.
pub(super) fn warn_uncarried_snapshot(restored: &SnapshotNames) {
    let missing = with_process_wiring(|wiring| wiring.parts.snapshot_missing_in_layers(restored));
    if let Some(snapshot) = missing.filter(|_| has_single_store()) {
        crate::throttle::throttled!(
            warn,
            snapshot,
            "the worker restores a snapshot that no DeferLayer of this process carries, so its \
             handlers run without it; add .for_user::<U>() or .carry_extension::<T>() to the \
             layer, or remove it from the worker unless layers of other processes carry it"
        );
    }
}

/// Warns of status routes that show every job beside a layer whose jobs have owners, if the process
/// has a single store.
#[cfg(feature = "serve")]
pub(crate) fn warn_unrestricted_mount() {
    let is_unrestricted = with_process_wiring(|wiring| {
        let mut layers = wiring.parts.layers.iter();
        layers.any(|layer| layer.has_owners && layer.carried.strong_count() > 0)
            && wiring.status_mounts().iter().any(|mount| !mount.is_restricted())
    });
    if is_unrestricted && has_single_store() {
        crate::throttle::throttled!(
            warn,
            "the status routes show every job, and a DeferLayer of this process gives its jobs \
             owners; add .for_user::<U>() or .visible_to(..) to deferred_routes(..)"
        );
    }
}

/// Record of a running worker, which counts until the record is dropped.
#[derive(Debug)]
pub(super) struct RunningWorkerRecord {
    _restored: Arc<SnapshotNames>,
}

/// Records a worker of this store that starts.
pub(super) fn record_worker(store: &Store, restored: SnapshotNames) -> RunningWorkerRecord {
    let restored = Arc::new(restored);
    with_process_wiring(|wiring| wiring.parts.add_worker(&restored));
    store.extension::<WiringRegistry>().parts.lock().add_worker(&restored);
    RunningWorkerRecord { _restored: restored }
}

/// Wiring of the parts that know their store: `store.extension::<WiringRegistry>()`.
#[derive(Debug, Default)]
pub(super) struct WiringRegistry {
    parts: Mutex<WiredParts>,
    has_logged_unrestricted_routes: AtomicBool,
    has_logged_job_without_owner: AtomicBool,
}

impl WiringRegistry {
    /// Records a layer whose lock has this store. Logs an error if a worker of the store that runs
    /// already lacks one of its snapshots; a worker that starts later [fails](check_worker).
    pub(super) fn record_layer(&self, carried: &Arc<SnapshotNames>) {
        let missing = self.parts.lock().add_and_check_layer(carried, None, false);
        missing.into_iter().for_each(log_unrestored_snapshot);
    }

    /// Logs once that a job with an owner is shown by status routes that show every job.
    pub(super) fn warn_unrestricted_routes(&self) {
        if !self.has_logged_unrestricted_routes.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the status routes show a job that has an owner to every client that knows its id; \
                 add .for_user::<U>() or .visible_to(..) to deferred_routes(..). Logged once"
            );
        }
    }

    /// Logs once that a job without an owner was asked for where only owners see their jobs.
    pub(super) fn warn_job_without_owner(&self) {
        if !self.has_logged_job_without_owner.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the status routes are restricted by .for_user or .visible_to, and a job without \
                 an owner was requested, which no user can see: the response is 404; add \
                 .for_user::<U>() or .owner(..) to its DeferLayer, with the authentication outside \
                 it. Logged once"
            );
        }
    }
}
