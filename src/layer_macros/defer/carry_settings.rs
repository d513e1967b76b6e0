//! `DeferLayer`: the user that a request takes along.

/// The part of `DeferLayer` about snapshots, for `__defer_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer_carry {
    ($found:ident) => {
        impl DeferLayer {
            /// Stores this value of the request's extensions along with it, such as the user that an
            /// authentication has put there; a worker that [restores](DeferWorker::restore) it puts it into
            /// the extensions of the run. A request that has one and carries a credential is deferred
            /// without the credential. One that does not have it is deferred without it.
            ///
            /// It does not say which user the request is from: two values of one user may differ, by a refreshed token,
            /// say. What users could share then needs an owner: carry it by [`carry_identity`](Self::carry_identity), or set
            /// [`owner`](Self::owner), or say [`share_across_owners`](Self::share_across_owners). Without any of them an
            /// `Idempotency-Key` is answered with 500, and a log line names the fix: one user's key must not get
            /// another user's job, and to ignore it would run a retry twice.
            ///
            /// A user whose rights were revoked while the request waited still runs it, unless
            /// [`DeferWorker::authorize_fn`] refuses the run.
            ///
            /// # Panics
            ///
            /// Not here, but where the layer is put around a service: if there are none of them, beside
            /// [`first_wins`](Self::first_wins), [`last_wins`](Self::last_wins) or [`remember_direct`](Self::remember_direct).
            #[must_use]
            pub fn carry_extension<T: ::lockgate::ExtensionSnapshot>(self) -> Self {
                Self { gate: self.gate.carry_extension::<T>($found::<T>) }
            }

            /// As [`carry`](Self::carry), and takes the identity in the value for the [`owner`](Self::owner) of the request, if
            /// that is not set.
            ///
            /// The identity has to be the same in each request of a user (an account's number, not a token, nor what a new
            /// login changes): a retry is known by it. No other owner may have it, in any layer of the store: where layers
            /// carry users and tenants, print `user:7` and `tenant:7`, not `7`. Texts are compared as they are, by
            /// [`visible_to`](DeferredRoutes::visible_to) too, and lie in the store unsealed.
            ///
            /// A request without the value is nobody's. Such requests share their keys, unless they have a credential,
            /// [kept](Self::keep_header) or not: those are some user's, so that they are not merged with others, and their `Idempotency-Key` is answered with 500, as with `carry`. It shows an
            /// authentication that is inside of this layer. An empty identity is none: such a request is not merged with
            /// others. In code: `.carry_identity::<User>(|user| format!("user:{}", user.id))`.
            ///
            /// # Panics
            ///
            /// Where the layer is put around a service: if a second snapshot names an identity, and no `owner` is set.
            #[must_use]
            pub fn carry_identity<T: ::lockgate::ExtensionSnapshot>(
                self,
                identity: impl Fn(&T) -> String + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.carry_identity::<T>($found::<T>, identity) }
            }

            /// Lets the requests of all users share keys and merges, although the layer [carries](Self::carry) a snapshot: for
            /// clients that trust each other, such as services of one team.
            ///
            /// # Panics
            ///
            /// Where the layer is put around a service: if an [`owner`](Self::owner) or an identity is set, too.
            #[must_use]
            pub fn share_across_owners(self) -> Self {
                Self { gate: self.gate.share_across_owners() }
            }
        }
    };
}
