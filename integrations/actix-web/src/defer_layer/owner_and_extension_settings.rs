//! Settings of `DeferLayer`: the owner of a request, and the snapshots of its extensions.

use actix_web::HttpRequest;
use lockgate::{ExtensionSnapshot, RequestUser};

use super::DeferLayer;

impl DeferLayer {
    /// Defers requests of authenticated users: stores the user, which the authentication has put
    /// into the request's extensions, and makes its owner that of the request.
    ///
    /// See the core's [`for_user`](lockgate::defer::DeferLayer::for_user).
    #[must_use]
    pub fn for_user<U: RequestUser>(self) -> Self {
        Self { inner: self.inner.for_user::<U>() }
    }

    /// Owner of a request: an account or a tenant.
    ///
    /// See the core's [`owner`](lockgate::defer::DeferLayer::owner).
    #[must_use]
    pub fn owner(
        self,
        owner: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.owner(owner) }
    }

    /// Stores this value of the request's extensions with the job, such as the user that an
    /// authentication has put there.
    ///
    /// See the core's [`carry_extension`](lockgate::defer::DeferLayer::carry_extension).
    #[must_use]
    pub fn carry_extension<T: ExtensionSnapshot>(self) -> Self {
        Self { inner: self.inner.carry_extension::<T>() }
    }

    /// Like [`carry_extension`](Self::carry_extension), and uses the identity of the value as the
    /// [`owner`](Self::owner) of the request if none is set.
    ///
    /// See the core's [`carry_identity`](lockgate::defer::DeferLayer::carry_identity).
    #[must_use]
    pub fn carry_identity<T: ExtensionSnapshot>(
        self,
        identity: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.carry_identity::<T>(identity) }
    }

    /// Lets the requests of all users share idempotency keys and merges, although the layer
    /// [carries](Self::carry_extension) a snapshot.
    ///
    /// See the core's [`share_across_owners`](lockgate::defer::DeferLayer::share_across_owners).
    #[must_use]
    pub fn share_across_owners(self) -> Self {
        Self { inner: self.inner.share_across_owners() }
    }
}
