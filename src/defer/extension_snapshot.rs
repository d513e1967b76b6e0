//! `ExtensionSnapshot`: a value of a request's extensions that is stored with a deferred request,
//! such as the user, instead of a token.
//!
//! Credentials are not stored: they would outlive their purpose, and may expire while a request
//! waits. The result of the authentication, a user or a tenant, is in the request's extensions. A
//! `DeferLayer` that carries such a type stores it with the request. A worker that restores it puts
//! it into the extensions of the run, so that routes inside the authentication find the usual
//! value.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde::{Serialize, de::DeserializeOwned};

/// Value of a request's extensions that is stored with a deferred request.
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
/// For a type that identifies a user or tenant, implement [`RequestUser`] too.
///
/// Values are stored as JSON, so fields can be added with `#[serde(default)]` while requests wait.
/// An incompatible change needs a new name; restore the old type beside it until all its jobs have
/// run.
pub trait ExtensionSnapshot: Clone + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// Name in the store: short, and unique among the snapshots.
    const NAME: &'static str;

    /// Serializes the value. On `None` the request is not deferred.
    #[must_use]
    fn save(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok()
    }

    /// Deserializes a saved value. On `None` the job waits for a worker that can read it.
    #[must_use]
    fn load(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// User or tenant of a request: a snapshot that names the owner of the deferred request.
///
/// Three settings share it, and each of them needs the other two:
///
/// | setting | effect |
/// |---|---|
/// | [`DeferLayer::for_user`] | stores the user with the request, as its owner |
/// | [`DeferWorker::for_user`] | puts the user into the extensions of the run |
/// | [`StatusResource::for_user`], of `deferred_routes` | shows a job to its owner alone |
///
/// A worker without its part fails when it starts. Status routes without theirs log a warning at
/// the first request that shows it.
///
/// [`DeferLayer::for_user`]: super::DeferLayer::for_user
/// [`DeferWorker::for_user`]: super::DeferWorker::for_user
/// [`StatusResource::for_user`]: super::StatusResource::for_user
///
/// ```
/// # use std::convert::Infallible;
/// # use http::{Request, Response, request::Parts};
/// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
/// # use lockgate::defer::{DeferLayer, DeferWorker, StatusResource};
/// # use tower::{Layer, service_fn};
/// # type Body = http_body_util::Full<bytes::Bytes>;
/// use lockgate::{ExtensionSnapshot, RequestUser};
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
///
/// impl RequestUser for User {
///     fn owner(&self) -> String {
///         format!("user:{}", self.id)
///     }
/// }
///
/// # let handler = service_fn(async |_: Request<Body>| {
/// #     Ok::<_, Infallible>(Response::new(Body::default()))
/// # });
/// # let store = Store::memory();
/// # let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
/// let service = DeferLayer::<PlainHttp>::new().for_user::<User>().layer(lock.layer(handler));
/// let worker = DeferWorker::<PlainHttp>::new(&store, service).for_user::<User>();
/// let status = StatusResource::<Parts>::new().for_user::<PlainHttp, User>();
/// # drop((worker, status));
/// ```
pub trait RequestUser: ExtensionSnapshot {
    /// Returns the [owner](super::DeferLayer::owner) of the user's requests: the stable id of the
    /// account, with its kind in front, such as `user:7`.
    ///
    /// - It must be the same in all requests of a user, since retries are recognized by it: an
    ///   account number, not a token or another value that changes with a login.
    /// - No other owner may have the same text, in any layer of the store. The prefix keeps the
    ///   user `user:7` apart from the tenant `tenant:7`.
    /// - It is compared as it is, and stored unsealed.
    /// - A request whose user returns an empty text has no owner: it is merged with no other one,
    ///   and its job is shown to no user.
    fn owner(&self) -> String;
}

/// Names of the snapshots that a layer carries, or that a worker restores.
pub(super) type SnapshotNames = BTreeSet<&'static str>;

/// Stored snapshots: names and bytes.
pub(super) type SavedSnapshots = Vec<(String, Vec<u8>)>;

/// Serializer of a request's value that has not run yet.
type SnapshotWriter = Box<dyn FnOnce() -> Option<(String, Vec<u8>)> + Send + Sync>;

/// Snapshot found in a request, with its identity if the layer asks for one.
struct ExtractedSnapshot {
    writer: SnapshotWriter,
    identity: Option<String>,
}

type ExtractFn<N> = dyn Fn(&N) -> Option<ExtractedSnapshot> + Send + Sync;

/// Function that reads the identity from a snapshot.
pub(super) type IdentityFn<T> = dyn Fn(&T) -> String + Send + Sync;

/// Snapshots of a request that may be deferred. Most requests are not, so the values are not
/// serialized before.
#[derive(Default)]
pub(super) struct RequestSnapshots {
    writers: Vec<SnapshotWriter>,
    identity: Option<String>,
}

impl RequestSnapshots {
    pub(super) fn is_empty(&self) -> bool {
        self.writers.is_empty()
    }

    /// Takes the identity of the request.
    pub(super) fn take_identity(&mut self) -> Option<String> {
        self.identity.take()
    }

    /// Serializes all snapshots. Returns `None` if one of them fails.
    pub(super) fn save_all(self) -> Option<SavedSnapshots> {
        self.writers.into_iter().map(|writer| writer()).collect()
    }
}

impl fmt::Debug for RequestSnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestSnapshots({})", self.writers.len())
    }
}

/// Snapshot that has the identity of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdentitySnapshot {
    /// Name in the store.
    pub(super) name: &'static str,
    /// Rust type, for log records.
    pub(super) type_name: &'static str,
}

/// Extractors of a layer's snapshots.
pub(super) struct SnapshotExtractors<N: ?Sized> {
    extractors: Vec<Arc<ExtractFn<N>>>,
    /// Snapshots whose extractors read an identity.
    identities: Vec<IdentitySnapshot>,
    /// Shared by the clones of a layer, which a weak pointer therefore recognizes as one.
    names: Arc<SnapshotNames>,
}

impl<N: ?Sized> SnapshotExtractors<N> {
    /// Adds a snapshot type. `find` reads it from a request's extensions.
    pub(super) fn add<T: ExtensionSnapshot>(
        &mut self,
        find: impl Fn(&N) -> Option<T> + Send + Sync + 'static,
        identity: Option<Box<IdentityFn<T>>>,
    ) {
        let type_name = std::any::type_name::<T>();
        let named = identity.as_ref().map(|_| IdentitySnapshot { name: T::NAME, type_name });
        self.identities.extend(named);
        Arc::make_mut(&mut self.names).insert(T::NAME);
        self.extractors.push(Arc::new(move |native| {
            let value = find(native)?;
            let identity = identity.as_ref().map(|identity| identity(&value));
            let writer = Box::new(move || Some((T::NAME.to_owned(), value.save()?)));
            Some(ExtractedSnapshot { writer, identity })
        }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.extractors.is_empty()
    }

    pub(super) fn identities(&self) -> &[IdentitySnapshot] {
        &self.identities
    }

    pub(super) fn names(&self) -> &Arc<SnapshotNames> {
        &self.names
    }

    /// Extracts the snapshots that this request has.
    pub(super) fn extract(&self, native: &N) -> RequestSnapshots {
        let mut snapshots = RequestSnapshots::default();
        for ExtractedSnapshot { writer, identity } in
            self.extractors.iter().filter_map(|extract| extract(native))
        {
            snapshots.writers.push(writer);
            snapshots.identity = snapshots.identity.or(identity);
        }
        snapshots
    }
}

impl<N: ?Sized> Default for SnapshotExtractors<N> {
    fn default() -> Self {
        Self { extractors: Vec::new(), identities: Vec::new(), names: Arc::default() }
    }
}

impl<N: ?Sized> Clone for SnapshotExtractors<N> {
    fn clone(&self) -> Self {
        let Self { extractors, identities, names } = self;
        let (extractors, identities) = (extractors.clone(), identities.clone());
        Self { extractors, identities, names: Arc::clone(names) }
    }
}

/// Restored snapshot, in a type of the framework's integration.
pub(super) type RestoredExtension = Box<dyn Any + Send + Sync>;

type RestoreFn = dyn Fn(&[u8]) -> Option<RestoredExtension> + Send + Sync;

/// Restorers of a worker, by snapshot name.
#[derive(Clone, Default)]
pub(super) struct SnapshotRestorers(BTreeMap<&'static str, Arc<RestoreFn>>);

impl SnapshotRestorers {
    pub(super) fn add<T: ExtensionSnapshot, P: Any + Send + Sync>(
        &mut self,
        put: impl Fn(T) -> P + Send + Sync + 'static,
    ) {
        let restore = move |bytes: &[u8]| {
            T::load(bytes).map(|value| Box::new(put(value)) as RestoredExtension)
        };
        self.0.insert(T::NAME, Arc::new(restore));
    }

    pub(super) fn names(&self) -> SnapshotNames {
        self.0.keys().copied().collect()
    }

    /// Restores all snapshots. The error is the name of the first that is unknown or unreadable
    /// here.
    pub(super) fn restore_all(
        &self,
        snapshots: &SavedSnapshots,
    ) -> Result<Vec<RestoredExtension>, String> {
        let restore = |(name, bytes): &(String, Vec<u8>)| {
            let restored = self.0.get(&**name).and_then(|restore| restore(bytes));
            restored.ok_or_else(|| name.clone())
        };
        snapshots.iter().map(restore).collect()
    }
}

impl fmt::Debug for SnapshotRestorers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
