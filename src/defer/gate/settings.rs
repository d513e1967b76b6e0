//! What a `DeferLayer` is set to.

mod setters;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    defer::{headers::Fields, snapshot::Captures},
    gate::{ClientAddress, Head, Methods},
    key::SHARDS,
    store::{StorageLimits, OnFailure, MergeMode},
};

/// Whom to tell of a request that has ended.
pub(super) type Callback = dyn Fn(&Head) -> Option<String> + Send + Sync;

pub(super) type Owner<N> = dyn Fn(&N) -> Option<String> + Send + Sync;

/// The policy of a `DeferLayer`: what is deferred, and within which bounds.
pub struct DeferGate<N: ?Sized>(pub(super) Arc<Settings<N>>);

/// The settings. A gate is cloned for each request, so they lie behind one pointer.
pub(super) struct Settings<N: ?Sized> {
    pub(super) status_at: String,
    pub(super) methods: Methods,
    pub(super) when: When,
    pub(super) what: What,
    pub(super) how: How,
    pub(super) keys: Keys,
    pub(super) caps: StorageLimits,
    /// How many must have what a 202 speaks of.
    pub(super) replicas: u32,
    pub(super) owner: Option<Arc<Owner<N>>>,
    pub(super) callback: Option<Arc<Callback>>,
    pub(super) carries: Captures<N>,
    /// Requests of all users share keys and merges.
    pub(super) shared_by_all: bool,
}

/// When a request is deferred.
#[derive(Debug, Clone)]
pub(super) struct When {
    /// What is waited for the lock before.
    pub(super) wait: Duration,
    /// Most that a client may ask for.
    pub(super) max_wait: Duration,
    pub(super) respond_async: bool,
    pub(super) always: bool,
    pub(super) needs_worker: bool,
}

/// What may be stored of it.
#[derive(Debug, Clone)]
pub(super) struct What {
    pub(super) body_limit: usize,
    /// Of names, values, path and query.
    pub(super) head_limit: usize,
    pub(super) budget: usize,
    /// Whose share of the budget a request takes.
    pub(super) client: ClientAddress,
    /// How long a body is read.
    pub(super) read: Duration,
    pub(super) fields: Fields,
}

/// How it runs.
#[derive(Debug, Clone)]
pub(super) struct How {
    pub(super) max_attempts: u32,
    pub(super) retry_unsafe: bool,
    pub(super) delay: Duration,
    pub(super) deadline: Option<Duration>,
    pub(super) on_failure: OnFailure,
    pub(super) wins: Option<MergeMode>,
}

/// What is remembered of an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) life: Duration,
    pub(super) direct: bool,
    /// Most of those that run at once in this process.
    pub(super) runs: usize,
    /// Most bytes of the body of a response that is kept of one.
    pub(super) response_limit: usize,
}

impl<N: ?Sized> DeferGate<N> {
    /// Defers unsafe requests with bodies up to 64 KiB; the status resource is at `/deferred`.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Settings {
            status_at: "/deferred".to_owned(),
            methods: Methods::Unsafe,
            when: When {
                wait: Duration::ZERO,
                max_wait: Duration::from_secs(30),
                respond_async: false,
                always: false,
                needs_worker: false,
            },
            what: What {
                body_limit: 64 * 1024,
                head_limit: 16 * 1024,
                client: ClientAddress::peer(),
                budget: 64 << 20,
                read: Duration::from_secs(10),
                fields: Fields::default(),
            },
            how: How {
                max_attempts: 5,
                retry_unsafe: false,
                delay: Duration::ZERO,
                deadline: None,
                on_failure: OnFailure::Block,
                wins: None,
            },
            keys: Keys {
                life: Duration::from_secs(24 * 60 * 60),
                direct: false,
                runs: 1024,
                response_limit: 64 * 1024,
            },
            caps: CAPS,
            replicas: 0,
            owner: None,
            callback: None,
            carries: Captures::default(),
            shared_by_all: false,
        }))
    }

    fn with(self, change: impl FnOnce(&mut Settings<N>)) -> Self {
        let mut settings = (*self.0).clone();
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

/// For longer no lock is waited for, whoever asks (`lock::asking`). A client is told which wait it got, so it is cut here.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// What is stored at most. What one resource takes, an owner may have in its shard, and there is room left beside it: else
/// a resource could not fill its line, or would keep the others of its shard out.
const CAPS: StorageLimits = StorageLimits {
    resource_jobs: 1_000,
    resource_bytes: 8 << 20,
    shard_jobs: of_a_shard(100_000),
    shard_bytes: of_a_shard(1 << 30),
    owner_jobs: of_a_shard(64_000),
    owner_bytes: of_a_shard(1 << 29),
    ended_bytes: of_a_shard(1 << 30),
    owner_records: of_a_shard(1 << 20),
};

/// The part that a shard has in what the whole queue may hold: jobs of one lock all lie in one.
const fn of_a_shard(whole: u64) -> u64 {
    whole.div_ceil(SHARDS as u64)
}

impl<N: ?Sized> Default for DeferGate<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: ?Sized> Clone for DeferGate<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: ?Sized> Clone for Settings<N> {
    fn clone(&self) -> Self {
        Self {
            status_at: self.status_at.clone(),
            methods: self.methods.clone(),
            when: self.when.clone(),
            what: self.what.clone(),
            how: self.how.clone(),
            keys: self.keys.clone(),
            caps: self.caps,
            replicas: self.replicas,
            owner: self.owner.clone(),
            callback: self.callback.clone(),
            carries: self.carries.clone(),
            shared_by_all: self.shared_by_all,
        }
    }
}

impl<N: ?Sized> fmt::Debug for DeferGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferGate")
            .field("status_at", &self.0.status_at)
            .field("methods", &self.0.methods)
            .field("when", &self.0.when)
            .field("what", &self.0.what)
            .field("how", &self.0.how)
            .field("keys", &self.0.keys)
            .field("caps", &self.0.caps)
            .field("replicas", &self.0.replicas)
            .finish_non_exhaustive()
    }
}
