//! What a `DeferLayer` is set to.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    clock::LONGEST,
    defer::snapshot::{Captures, Snapshot},
    gate::{Head, Methods},
    key::SHARDS,
    store::{Caps, OnFailure, Wins},
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
    pub(super) caps: Caps,
    /// How many must have what a 202 speaks of.
    pub(super) replicas: u32,
    pub(super) owner: Option<Arc<Owner<N>>>,
    pub(super) callback: Option<Arc<Callback>>,
    pub(super) carries: Captures<N>,
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
    pub(super) budget: usize,
    pub(super) keep: Vec<String>,
}

/// How it runs.
#[derive(Debug, Clone)]
pub(super) struct How {
    pub(super) max_attempts: u32,
    pub(super) retry_unsafe: bool,
    pub(super) delay: Duration,
    pub(super) deadline: Option<Duration>,
    pub(super) on_failure: OnFailure,
    pub(super) wins: Option<Wins>,
}

/// What is remembered of an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) life: Duration,
    pub(super) direct: bool,
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
            what: What { body_limit: 64 * 1024, budget: 64 << 20, keep: Vec::new() },
            how: How {
                max_attempts: 5,
                retry_unsafe: false,
                delay: Duration::ZERO,
                deadline: None,
                on_failure: OnFailure::Block,
                wins: None,
            },
            keys: Keys { life: Duration::from_secs(24 * 60 * 60), direct: false },
            caps: Caps {
                resource_jobs: 1_000,
                resource_bytes: 16 << 20,
                shard_jobs: of_a_shard(100_000),
                shard_bytes: of_a_shard(1 << 30),
                owner_jobs: of_a_shard(50_000),
                owner_bytes: of_a_shard(1 << 29),
                ended_bytes: of_a_shard(1 << 30),
            },
            replicas: 0,
            owner: None,
            callback: None,
            carries: Captures::default(),
        }))
    }

    /// See `DeferLayer::status_at`.
    #[must_use]
    pub fn status_at(self, path: &str) -> Self {
        let path = format!("/{}", path.trim_matches('/'));
        self.with(|settings| settings.status_at = path)
    }

    /// See `DeferLayer::methods`.
    ///
    /// # Panics
    ///
    /// If there are none, or one of them is no method's name, or safe.
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        let methods = Methods::these("DeferLayer", methods);
        let safe = ["GET", "HEAD", "OPTIONS", "TRACE"].iter().find(|safe| methods.include(safe));
        assert!(safe.is_none(), "DeferLayer::methods: {safe:?} is safe, and never deferred");
        self.with(|settings| settings.methods = methods)
    }

    /// See `DeferLayer::owner`.
    #[must_use]
    pub fn owner(self, owner: impl Fn(&N) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.owner = Some(Arc::new(owner)))
    }

    /// See `DeferLayer::callback`.
    #[must_use]
    pub fn callback(self, url: impl Fn(&Head) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.callback = Some(Arc::new(url)))
    }

    fn with(self, change: impl FnOnce(&mut Settings<N>)) -> Self {
        let mut settings = (*self.0).clone();
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

// When.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::wait_up_to`.
    #[must_use]
    pub fn wait_up_to(self, wait: Duration) -> Self {
        self.with(|settings| settings.when.wait = wait.min(LONGEST))
    }

    /// See `DeferLayer::max_wait`.
    #[must_use]
    pub fn max_wait(self, max: Duration) -> Self {
        self.with(|settings| settings.when.max_wait = max.min(LONGEST))
    }

    /// See `DeferLayer::respond_async`.
    #[must_use]
    pub fn respond_async(self) -> Self {
        self.with(|settings| settings.when.respond_async = true)
    }

    /// See `DeferLayer::defer_always`.
    #[must_use]
    pub fn defer_always(self) -> Self {
        self.with(|settings| settings.when.always = true)
    }

    /// See `DeferLayer::require_worker`.
    #[must_use]
    pub fn require_worker(self) -> Self {
        self.with(|settings| settings.when.needs_worker = true)
    }
}

// What, and how much of it.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::body_limit`.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.with(|settings| settings.what.body_limit = bytes)
    }

    /// See `DeferLayer::buffer_budget`.
    #[must_use]
    pub fn buffer_budget(self, bytes: usize) -> Self {
        self.with(|settings| settings.what.budget = bytes)
    }

    /// See `DeferLayer::keep_header`.
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        self.with(|settings| settings.what.keep.push(name.to_ascii_lowercase()))
    }

    /// See `DeferLayer::carry`; `find` looks into the request's extensions.
    #[must_use]
    pub fn carry<T: Snapshot>(
        self,
        find: impl Fn(&N) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.carries.add(find))
    }

    /// See `DeferLayer::max_jobs`.
    #[must_use]
    pub fn max_jobs(self, per_resource: u64) -> Self {
        self.with(|settings| settings.caps.resource_jobs = per_resource)
    }

    /// See `DeferLayer::max_bytes`.
    #[must_use]
    pub fn max_bytes(self, per_resource: u64) -> Self {
        self.with(|settings| settings.caps.resource_bytes = per_resource)
    }

    /// See `DeferLayer::queue_jobs`.
    #[must_use]
    pub fn queue_jobs(self, jobs: u64) -> Self {
        self.with(|settings| settings.caps.shard_jobs = of_a_shard(jobs))
    }

    /// See `DeferLayer::queue_bytes`.
    #[must_use]
    pub fn queue_bytes(self, bytes: u64) -> Self {
        self.with(|settings| settings.caps.shard_bytes = of_a_shard(bytes))
    }

    /// See `DeferLayer::replicas`.
    #[must_use]
    pub fn replicas(self, replicas: u32) -> Self {
        self.with(|settings| settings.replicas = replicas)
    }

    /// See `DeferLayer::owner_jobs`.
    #[must_use]
    pub fn owner_jobs(self, jobs: u64) -> Self {
        self.with(|settings| settings.caps.owner_jobs = of_a_shard(jobs))
    }

    /// See `DeferLayer::owner_bytes`.
    #[must_use]
    pub fn owner_bytes(self, bytes: u64) -> Self {
        self.with(|settings| settings.caps.owner_bytes = of_a_shard(bytes))
    }
}

// What is kept of it.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::ended_bytes`.
    #[must_use]
    pub fn ended_bytes(self, bytes: u64) -> Self {
        self.with(|settings| settings.caps.ended_bytes = of_a_shard(bytes))
    }
}

// How it runs.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::max_attempts`.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|settings| settings.how.max_attempts = attempts.max(1))
    }

    /// See `DeferLayer::retry_unsafe`.
    #[must_use]
    pub fn retry_unsafe(self) -> Self {
        self.with(|settings| settings.how.retry_unsafe = true)
    }

    /// See `DeferLayer::delay`.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|settings| settings.how.delay = delay.min(LONGEST))
    }

    /// See `DeferLayer::deadline`.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.how.deadline = Some(deadline.min(LONGEST)))
    }

    /// See `DeferLayer::on_failure`.
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.with(|settings| settings.how.on_failure = on_failure)
    }

    /// See `DeferLayer::first_wins`.
    #[must_use]
    pub fn first_wins(self) -> Self {
        self.with(|settings| settings.how.wins = Some(Wins::First))
    }

    /// See `DeferLayer::last_wins`.
    #[must_use]
    pub fn last_wins(self) -> Self {
        self.with(|settings| settings.how.wins = Some(Wins::Last))
    }

    /// See `DeferLayer::idempotency_for`.
    #[must_use]
    pub fn idempotency_for(self, life: Duration) -> Self {
        self.with(|settings| settings.keys.life = life.clamp(Duration::from_secs(1), LONGEST))
    }

    /// See `DeferLayer::remember_direct`.
    #[must_use]
    pub fn remember_direct(self) -> Self {
        self.with(|settings| settings.keys.direct = true)
    }
}

/// The part that a shard has in what the whole queue may hold: jobs of one lock all lie in one.
fn of_a_shard(whole: u64) -> u64 {
    whole.div_ceil(u64::from(SHARDS))
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
