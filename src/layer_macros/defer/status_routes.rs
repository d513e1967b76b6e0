//! `DeferredRoutes`: where clients ask for it.

/// `DeferredRoutes`, for `__defer_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_deferred_routes {
    ($native:ty) => {
        /// The status resource of deferred requests, to be mounted. Made by [`deferred_routes`].
        #[derive(Debug, Clone)]
        #[must_use = "the routes have to be mounted"]
        pub struct DeferredRoutes {
            pub(crate) path: String,
            pub(crate) gate: ::lockgate::defer::StatusGate<$native>,
        }

        /// The status resource, at this path: what the `Location` of a 202 points to.
        ///
        /// `GET {path}/{id}` is a JSON document, or a stream of it (`Accept: text/event-stream`);
        /// `{path}/{id}/response` the stored response as it was, to a browser no page of this origin
        /// (`Content-Security-Policy: sandbox`, unless the handler has sent one of its own); `DELETE {path}/{id}` cancels what
        /// waits. `Prefer: wait=N` (at most 25 s) holds an answer until something changes, one of the response until
        /// there is one or none, and `If-None-Match` leaves out what the client has. An id that is unknown, malformed or
        /// somebody else's is the same 404. All four are 410 for a job that has ended and was evicted or purged before its time:
        /// its owner is told that it has run, or what else became of it, and no one else anything. Where 4,096 wait in this process already, whoever comes then is answered at once.
        ///
        /// At the root (`"/"`) every path of one part is taken for an id, or of two that ends with `response`: beside other routes
        /// actix-web takes the first that fits, so mount this one behind them; axum takes the most exact.
        pub fn deferred_routes(path: &str) -> DeferredRoutes {
            let path = path.trim_matches('/');
            let path = if path.is_empty() { String::new() } else { format!("/{path}") };
            DeferredRoutes { path, gate: ::lockgate::defer::StatusGate::new() }
        }

        impl DeferredRoutes {
            /// Answers from this store, whatever the request brings along.
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store), ..self }
            }

            /// Shows a job only to its [owner](DeferLayer::owner), or the [identity](DeferLayer::carry_identity) it was carried
            /// with: the function says who asks.
            /// Default: whoever knows the id, which is 128 random bits.
            pub fn visible_to(
                self,
                asker: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.visible_to(asker), ..self }
            }

            /// As [`visible_to`](Self::visible_to), for those who have to look somewhere to know who asks: a
            /// session, a database. The function takes what it needs out of the request, and the future goes
            /// on with that; it is awaited once for each request, before the store is asked, for as long as it
            /// takes. Whoever it finds to be nobody gets the 404 of an unknown id.
            pub fn visible_to_async<F>(
                self,
                asker: impl Fn(&$native) -> F + Send + Sync + 'static,
            ) -> Self
            where
                F: ::std::future::Future<Output = Option<String>> + Send + 'static,
            {
                Self { gate: self.gate.visible_to_async(asker), ..self }
            }
        }
    };
}
