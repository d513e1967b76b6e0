//! `DeferLayer`: extension snapshots, such as the user of a request.

/// Defines the settings of `DeferLayer` about extension snapshots, for `__define_defer`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer_carry {
    ($found:ident) => {
        impl DeferLayer {
            /// Stores this value of the request's extensions with the job, such as the user that an
            /// authentication has put there. A worker that
            /// [restores](DeferWorker::restore_extension) it puts it into the extensions of the
            /// run.
            ///
            /// A request with a snapshot and a credential is deferred without the credential. A
            /// request without the value is deferred without a snapshot.
            ///
            /// A snapshot does not identify the user: two snapshots of one user may differ, for
            /// example by a refreshed token. Idempotency keys and merges therefore need an owner:
            /// use [`carry_identity`](Self::carry_identity), [`owner`](Self::owner) or
            /// [`share_across_owners`](Self::share_across_owners). Without any of them a request
            /// with an `Idempotency-Key` gets 500, and a log message names the fix: the key of one
            /// user must not return the job of another one, and ignoring the key would run a retry
            /// twice.
            ///
            /// A request still runs if its user has lost the right to it in the meantime, unless
            /// [`DeferWorker::authorize`] denies the run.
            ///
            /// # Panics
            ///
            /// When the layer is applied to a service: if [`coalesce`](Self::coalesce),
            /// [`supersede`](Self::supersede) or [`idempotent_direct`](Self::idempotent_direct) is
            /// set and requests have no owner by any of the three settings above.
            #[must_use]
            pub fn carry_extension<T: ::lockgate::ExtensionSnapshot>(self) -> Self {
                Self { gate: self.gate.carry_extension::<T>($found::<T>) }
            }

            /// Like [`carry_extension`](Self::carry_extension), and uses the identity of the value
            /// as the [`owner`](Self::owner) of the request if none is set.
            ///
            /// Example: `.carry_identity::<User>(|user| format!("user:{}", user.id))`.
            ///
            /// - The identity must be the same in all requests of a user, since retries are
            ///   recognized by it: an account number, not a token or another value that changes
            ///   with a login.
            /// - No other owner may have the same identity, in any layer of the store. If layers
            ///   carry users and tenants, return `user:7` and `tenant:7`, not `7`.
            /// - Identities are compared as they are, also by
            ///   [`visible_to`](DeferredRoutes::visible_to), and are stored unsealed.
            /// - A request with an empty identity is not merged with others.
            /// - A request without the value has no owner, and shares its keys with all such
            ///   requests. If it has a credential, [kept](Self::keep_header) or not, it belongs to
            ///   some user: it is not merged with others, and gets 500 if it has an
            ///   `Idempotency-Key`, as with `carry_extension`. The usual cause is an authentication
            ///   inside this layer.
            ///
            /// # Panics
            ///
            /// When the layer is applied to a service: if two snapshots have an identity and no
            /// `owner` is set.
            #[must_use]
            pub fn carry_identity<T: ::lockgate::ExtensionSnapshot>(
                self,
                identity: impl Fn(&T) -> String + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.carry_identity::<T>($found::<T>, identity) }
            }

            /// Lets the requests of all users share idempotency keys and merges, although the layer
            /// [carries](Self::carry_extension) a snapshot. For clients that trust each other, such
            /// as services of one team.
            ///
            /// # Panics
            ///
            /// When the layer is applied to a service: if an [`owner`](Self::owner) or an identity
            /// is set too.
            #[must_use]
            pub fn share_across_owners(self) -> Self {
                Self { gate: self.gate.share_across_owners() }
            }
        }
    };
}
