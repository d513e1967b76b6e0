//! Setters of `DeferGate`. The layers of the integrations document them.

use std::{sync::Arc, time::Duration};

use super::{DeferGate, MAX_LOCK_WAIT, per_shard};
use crate::{
    clock::MAX_DURATION,
    defer::snapshot::ExtensionSnapshot,
    gate::{ClientAddress, HttpRequestHead, MethodFilter, parse_header_name},
    store::{MergeMode, OnFailure},
};

// Selection and owner.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::status_path`.
    ///
    /// # Panics
    ///
    /// Panics unless it is a path as in a URL: other characters percent-encoded, without a query.
    #[must_use]
    pub fn status_path(self, path: &str) -> Self {
        let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
        assert!(
            is_path,
            "DeferLayer::status_path: {path:?} is not a path such as /deferred; it is part of \
             `Location`"
        );
        // The root adds no segment: `//id` would be another path.
        let path = path.trim_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        self.with_settings(|settings| settings.status_path = path)
    }

    /// See `DeferLayer::methods`.
    ///
    /// # Panics
    ///
    /// Panics if there are none, or one of them is invalid or safe.
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        let methods = MethodFilter::listed("DeferLayer", methods);
        let safe = ["GET", "HEAD", "OPTIONS", "TRACE"].iter().find(|safe| methods.matches(safe));
        assert!(safe.is_none(), "DeferLayer::methods: {safe:?} is safe, so it is never deferred");
        self.with_settings(|settings| settings.methods = methods)
    }

    /// See `DeferLayer::owner`.
    #[must_use]
    pub fn owner(self, owner: impl Fn(&N) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with_settings(|settings| settings.owner = Some(Arc::new(owner)))
    }

    /// See `DeferLayer::share_across_owners`.
    #[must_use]
    pub fn share_across_owners(self) -> Self {
        self.with_settings(|settings| settings.shared_by_all = true)
    }

    /// See `DeferLayer::webhook`.
    #[must_use]
    pub fn webhook(
        self,
        url: impl Fn(&HttpRequestHead) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| settings.webhook_url = Some(Arc::new(url)))
    }
}

// Trigger.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::wait_up_to`.
    #[must_use]
    pub fn wait_up_to(self, wait: Duration) -> Self {
        self.with_settings(|settings| settings.trigger.lock_wait = wait.min(MAX_DURATION))
    }

    /// See `DeferLayer::max_preferred_wait`.
    #[must_use]
    pub fn max_preferred_wait(self, max: Duration) -> Self {
        self.with_settings(|settings| settings.trigger.max_wait = max.min(MAX_LOCK_WAIT))
    }

    /// See `DeferLayer::honor_respond_async`.
    #[must_use]
    pub fn honor_respond_async(self) -> Self {
        self.with_settings(|settings| settings.trigger.respond_async = true)
    }

    /// See `DeferLayer::defer_always`.
    #[must_use]
    pub fn defer_always(self) -> Self {
        self.with_settings(|settings| settings.trigger.defer_always = true)
    }

    /// See `DeferLayer::require_worker`.
    #[must_use]
    pub fn require_worker(self) -> Self {
        self.with_settings(|settings| settings.trigger.require_worker = true)
    }
}

// Storage.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::body_limit`.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.storage.body_limit = bytes)
    }

    /// See `DeferLayer::head_limit`.
    #[must_use]
    pub fn head_limit(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.storage.head_limit = bytes)
    }

    /// See `DeferLayer::client_address`.
    #[must_use]
    pub fn client_address(self, client: ClientAddress) -> Self {
        self.with_settings(|settings| settings.storage.client = client)
    }

    /// See `DeferLayer::buffer_budget`.
    #[must_use]
    pub fn buffer_budget(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.storage.buffer_budget = bytes)
    }

    /// See `DeferLayer::body_read_timeout`.
    #[must_use]
    pub fn body_read_timeout(self, time: Duration) -> Self {
        self.with_settings(|settings| settings.storage.body_read_timeout = time.min(MAX_DURATION))
    }

    /// See `DeferLayer::keep_header`.
    ///
    /// # Panics
    ///
    /// Panics if the name is not a valid header name.
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        let name = parse_header_name("DeferLayer::keep_header", name);
        self.with_settings(|settings| settings.storage.header_filter.keep_headers.push(name))
    }

    /// See `DeferLayer::credential_header`.
    ///
    /// # Panics
    ///
    /// Panics if the name is not a valid header name.
    #[must_use]
    pub fn credential_header(self, name: &str) -> Self {
        let name = parse_header_name("DeferLayer::credential_header", name);
        self.with_settings(|settings| settings.storage.header_filter.credential_headers.push(name))
    }

    /// See `DeferLayer::carry_extension`. `find` reads the value from the request's extensions.
    #[must_use]
    pub fn carry_extension<T: ExtensionSnapshot>(
        self,
        find: impl Fn(&N) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| settings.snapshot_extractors.add(find, None))
    }

    /// See `DeferLayer::carry_identity`. `find` reads the value from the request's extensions.
    #[must_use]
    pub fn carry_identity<T: ExtensionSnapshot>(
        self,
        find: impl Fn(&N) -> Option<T> + Send + Sync + 'static,
        identity: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| {
            settings.snapshot_extractors.add(find, Some(Box::new(identity)));
        })
    }

    /// See `DeferLayer::max_resource_jobs`.
    #[must_use]
    pub fn max_resource_jobs(self, per_resource: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.resource_jobs = per_resource)
    }

    /// See `DeferLayer::max_resource_bytes`.
    #[must_use]
    pub fn max_resource_bytes(self, per_resource: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.resource_bytes = per_resource)
    }

    /// See `DeferLayer::max_queue_jobs`.
    #[must_use]
    pub fn max_queue_jobs(self, jobs: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.shard_jobs = per_shard(jobs))
    }

    /// See `DeferLayer::max_queue_bytes`.
    #[must_use]
    pub fn max_queue_bytes(self, bytes: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.shard_bytes = per_shard(bytes))
    }

    /// See `DeferLayer::min_replicas`.
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.with_settings(|settings| settings.min_replicas = replicas)
    }

    /// See `DeferLayer::max_owner_jobs`.
    #[must_use]
    pub fn max_owner_jobs(self, jobs: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.owner_jobs = per_shard(jobs))
    }

    /// See `DeferLayer::max_owner_bytes`.
    #[must_use]
    pub fn max_owner_bytes(self, bytes: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.owner_bytes = per_shard(bytes))
    }
}

// Retention.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::max_ended_bytes`.
    #[must_use]
    pub fn max_ended_bytes(self, bytes: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.ended_bytes = per_shard(bytes))
    }

    /// See `DeferLayer::max_idempotency_keys`.
    #[must_use]
    pub fn max_idempotency_keys(self, keys: u64) -> Self {
        self.with_settings(|settings| settings.storage_limits.owner_records = per_shard(keys))
    }
}

// Runs.
impl<N: ?Sized> DeferGate<N> {
    /// See `DeferLayer::max_attempts`.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with_settings(|settings| settings.run.max_attempts = attempts.max(1))
    }

    /// See `DeferLayer::retry_non_idempotent`.
    #[must_use]
    pub fn retry_non_idempotent(self) -> Self {
        self.with_settings(|settings| settings.run.retry_unsafe = true)
    }

    /// See `DeferLayer::delay`.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.with_settings(|settings| settings.run.delay = delay.min(MAX_DURATION))
    }

    /// See `DeferLayer::expires_after`.
    #[must_use]
    pub fn expires_after(self, deadline: Duration) -> Self {
        self.with_settings(|settings| settings.run.deadline = Some(deadline.min(MAX_DURATION)))
    }

    /// See `DeferLayer::on_failure`.
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.with_settings(|settings| settings.run.on_failure = on_failure)
    }

    /// See `DeferLayer::coalesce`.
    #[must_use]
    pub fn coalesce(self) -> Self {
        self.with_settings(|settings| settings.run.merge_mode = Some(MergeMode::Coalesce))
    }

    /// See `DeferLayer::supersede`.
    #[must_use]
    pub fn supersede(self) -> Self {
        self.with_settings(|settings| settings.run.merge_mode = Some(MergeMode::Supersede))
    }

    /// See `DeferLayer::idempotency_ttl`.
    #[must_use]
    pub fn idempotency_ttl(self, life: Duration) -> Self {
        self.with_settings(|settings| {
            settings.idempotency.ttl = life.clamp(Duration::from_secs(1), MAX_DURATION);
        })
    }

    /// See `DeferLayer::idempotent_direct`.
    #[must_use]
    pub fn idempotent_direct(self) -> Self {
        self.with_settings(|settings| settings.idempotency.idempotent_direct = true)
    }

    /// See `DeferLayer::max_direct_runs`.
    #[must_use]
    pub fn max_direct_runs(self, most: usize) -> Self {
        self.with_settings(|settings| settings.idempotency.max_direct_runs = most)
    }

    /// See `DeferLayer::direct_response_limit`.
    #[must_use]
    pub fn direct_response_limit(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.idempotency.direct_response_limit = bytes)
    }
}
