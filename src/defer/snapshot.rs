//! What a deferred request takes along of what was known of it: who the user was, instead of a token.
//!
//! Credentials are not stored: they would outlive what they were given for, and expire while a request
//! waits. What an authentication has made of them, a user or a tenant, lies in the request's extensions. A
//! `DeferLayer` that carries such a type stores it with the request, and a worker that restores it puts
//! it into the extensions of the run, so the routes inside the authentication find what they always do.

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

/// A value in a request's extensions that a deferred request takes along.
///
/// ```
/// use lockgate::ExtensionSnapshot;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// struct User {
///     id: u64,
/// }
///
/// impl ExtensionSnapshot for User {
///     const NAME: &'static str = "user";
/// }
/// ```
///
/// Where it says which user or tenant a request is from, carry it by `DeferLayer::carry_identity`, which reads a stable
/// identity from it.
///
/// It is stored as JSON, so that fields can be added with `#[serde(default)]` while requests wait. What
/// can't be read any more needs a new name, and the old type restored beside it until all have run.
pub trait ExtensionSnapshot: Clone + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// What it is called in the store: short, and no other snapshot's.
    const NAME: &'static str;

    /// Its bytes. `None`: it can't be written, and the request is not deferred.
    #[must_use]
    fn save(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok()
    }

    /// What was saved. `None`: it can't be read here; the request waits for a worker that can.
    #[must_use]
    fn load(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Snapshots as they are stored: names and bytes.
pub(super) type SavedSnapshots = Vec<(String, Vec<u8>)>;

/// A value of a request, not yet written.
type SnapshotWriter = Box<dyn FnOnce() -> Option<(String, Vec<u8>)> + Send + Sync>;

/// A snapshot that was found in a request, and the identity that it names, if its layer asks for one.
struct ExtractedSnapshot {
    writer: SnapshotWriter,
    identity: Option<String>,
}

type ExtractFn<N> = dyn Fn(&N) -> Option<ExtractedSnapshot> + Send + Sync;

/// Reads the identity in a snapshot.
pub(super) type IdentityFn<T> = dyn Fn(&T) -> String + Send + Sync;

/// The values of a request that it takes along if it is deferred. Most are not, so they are not written
/// before that.
#[derive(Default)]
pub(super) struct RequestSnapshots {
    writers: Vec<SnapshotWriter>,
    identity: Option<String>,
}

impl RequestSnapshots {
    pub(super) fn is_empty(&self) -> bool {
        self.writers.is_empty()
    }

    /// Takes the identity that a snapshot names.
    pub(super) fn take_identity(&mut self) -> Option<String> {
        self.identity.take()
    }

    /// `None` if one of them can't be written.
    pub(super) fn save_all(self) -> Option<SavedSnapshots> {
        self.writers.into_iter().map(|value| value()).collect()
    }
}

impl fmt::Debug for RequestSnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Captured({})", self.writers.len())
    }
}

/// What a layer takes along.
pub(super) struct SnapshotExtractors<N: ?Sized> {
    extractors: Vec<Arc<ExtractFn<N>>>,
    /// Number of those that name an identity.
    identity_count: usize,
}

impl<N: ?Sized> SnapshotExtractors<N> {
    /// `find` looks into a request's extensions.
    pub(super) fn add<T: ExtensionSnapshot>(
        &mut self,
        find: impl Fn(&N) -> Option<T> + Send + Sync + 'static,
        identity: Option<Box<IdentityFn<T>>>,
    ) {
        self.identity_count += usize::from(identity.is_some());
        self.extractors.push(Arc::new(move |native| {
            let found = find(native)?;
            let identity = identity.as_ref().map(|identity| identity(&found));
            let value = Box::new(move || Some((T::NAME.to_owned(), found.save()?)));
            Some(ExtractedSnapshot { writer: value, identity })
        }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.extractors.is_empty()
    }

    pub(super) fn identity_count(&self) -> usize {
        self.identity_count
    }

    /// Of this request, what is there.
    pub(super) fn extract(&self, native: &N) -> RequestSnapshots {
        let mut captured = RequestSnapshots::default();
        for ExtractedSnapshot { writer: value, identity } in
            self.extractors.iter().filter_map(|capture| capture(native))
        {
            captured.writers.push(value);
            captured.identity = captured.identity.or(identity);
        }
        captured
    }
}

impl<N: ?Sized> Default for SnapshotExtractors<N> {
    fn default() -> Self {
        Self { extractors: Vec::new(), identity_count: 0 }
    }
}

impl<N: ?Sized> Clone for SnapshotExtractors<N> {
    fn clone(&self) -> Self {
        Self { extractors: self.extractors.clone(), identity_count: self.identity_count }
    }
}

/// What a framework does with a snapshot, in a type of its own.
pub(super) type RestoredExtension = Box<dyn Any + Send + Sync>;

type RestoreFn = dyn Fn(&[u8]) -> Option<RestoredExtension> + Send + Sync;

/// What a worker restores.
#[derive(Clone, Default)]
pub(super) struct SnapshotRestorers(BTreeMap<&'static str, Arc<RestoreFn>>);

impl SnapshotRestorers {
    pub(super) fn add<T: ExtensionSnapshot, P: Any + Send + Sync>(
        &mut self,
        put: impl Fn(T) -> P + Send + Sync + 'static,
    ) {
        let load = move |bytes: &[u8]| {
            T::load(bytes).map(|value| Box::new(put(value)) as RestoredExtension)
        };
        self.0.insert(T::NAME, Arc::new(load));
    }

    /// All of them, or the name of the first that is not known here or can't be read.
    pub(super) fn restore_all(
        &self,
        carried: &SavedSnapshots,
    ) -> Result<Vec<RestoredExtension>, String> {
        let load = |(name, bytes): &(String, Vec<u8>)| {
            let put = self.0.get(&**name).and_then(|load| load(bytes));
            put.ok_or_else(|| name.clone())
        };
        carried.iter().map(load).collect()
    }
}

impl fmt::Debug for SnapshotRestorers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
